"""A group that is made again at one store: a rank that is early looks for the others where an earlier group listened.

Real Gloo (torch 2.13), three processes, `destroy_process_group` and `init_process_group` over torchrun's store or a
FileStore: most runs fail, with "Connect timeout" after five times the timeout or with "Connection refused". Over a
FileStore all runs meet in which each rank waits for 50 ms in between: the last to close the file removes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash

MS = 1_000_000


def twice(backend: str, lateness_ms: Sequence[float], how: str = "", *, held: bool = False) -> tuple[str, int]:
    """Make two groups with the same name, the second one late; returns what the rank sees, and after how long.

    The rank waits before the second group, or holds the first one until then.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    file: dict[str, Any] = {"init_method": how, "rank": rank, "world_size": size} if how.startswith("file") else {}
    if how == "served":
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT="29700")
    began_ns = 0
    for turn in range(2):
        if turn and not held:
            time.sleep(lateness_ms[rank] / 1e3)
        began_ns = time.monotonic_ns()
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=6), **file)
            dist.all_reduce(torch.ones(1, device=f"cuda:{rank}" if backend == "nccl" else "cpu"))
        except Exception as error:
            return f"{type(error).__name__}: {error}", (time.monotonic_ns() - began_ns) // MS
        if held and not turn:
            time.sleep(lateness_ms[rank] / 1e3)
        dist.destroy_process_group()
    return "met", 0


def ends(backend: str, lateness_ms: Sequence[float], how: str = "", *, held: bool = False) -> list[Any]:
    arguments, kwargs = (backend, lateness_ms, how), {"held": held}
    return simdist.run(twice, world_size=len(lateness_ms), args=arguments, kwargs=kwargs, backend=backend).values


@pytest.mark.parametrize("lateness_ms", [(0.0, 0.0, 0.0), (0.0, 0.1, 0.15)])
def test_ranks_that_meet_before_they_read_addresses_meet(lateness_ms: Sequence[float]) -> None:
    assert ends("gloo", lateness_ms) == [("met", 0)] * 3


@pytest.mark.parametrize("how", ["", "file"])
def test_ranks_that_do_not_wait_for_five_times_the_timeout(how: str, tmp_path: Path) -> None:
    seen = ends("gloo", (0.0, 0.1, 500.0), how and f"file://{tmp_path}/store", held=how == "file")

    assert [took_ms for _, took_ms in seen] == [30_000] * 3
    assert all(text.startswith("RuntimeError: Gloo connectFullMesh failed with [") for text, _ in seen)
    assert all(text.endswith("gloo/transport/tcp/pair.h:311] Connect timeout [none]") for text, _ in seen)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_store_that_a_rank_serves_anew_has_no_old_addresses(backend: str) -> None:
    assert ends(backend, (0.0, 0.1, 500.0), "served") == [("met", 0)] * 3


def test_a_file_that_every_rank_has_closed_has_no_old_addresses(tmp_path: Path) -> None:
    assert ends("gloo", (0.0, 0.1, 500.0), f"file://{tmp_path}/store") == [("met", 0)] * 3


def test_the_ideal_backend_needs_no_addresses() -> None:
    assert ends("sim", (0.0, 0.1, 500.0)) == [("met", 0)] * 3


def test_ranks_of_nccl_need_the_one_that_makes_the_id_to_be_first() -> None:
    (late, early, other) = ends("nccl", (700.0, 0.0, 500.0))

    assert ends("nccl", (0.0, 500.0, 700.0)) == [("met", 0)] * 3
    assert "ncclRemoteError" in early[0]
    assert "returned Connection refused, exceeded error retry count after 35 attempts" in other[0]
    assert (early[1], other[1]) == (59_500, 59_500)
    assert late is None


def test_an_id_whose_maker_fails_is_no_old_one() -> None:
    def body() -> str:
        if os.environ["RANK"] == "0":
            os.environ["NCCL_NET"] = "of nobody"
        try:
            dist.init_process_group("nccl", timeout=timedelta(seconds=6))
            dist.all_reduce(torch.ones(1, device=f"cuda:{os.environ['RANK']}"))
        except Exception as error:
            return str(error)
        return "met"

    first, other = simdist.run(body, world_size=2, backend="nccl").ranks

    assert "is that of a plugin" in str(first.value)
    assert "Connection refused" not in str(other.value)


def tries(limits_s: Sequence[float], starts_s: Sequence[float]) -> list[list[tuple[float, str]]]:
    """Let each rank try with its own timeout until a group is made; returns what it sees, and when.

    On real processes a late rank sees "Connect timeout" in place of "Connection refused" where its port is the lower.
    """

    def body() -> list[tuple[float, str]]:
        rank, seen = int(os.environ["RANK"]), []
        store = dist.TCPStore("localhost", 29700, None, rank == 0, wait_for_workers=False)  # type: ignore[attr-defined]
        time.sleep(starts_s[rank])
        for _ in range(4):
            try:
                dist.init_process_group(
                    "gloo", store=store, rank=rank, world_size=len(starts_s), timeout=timedelta(seconds=limits_s[rank])
                )
            except Exception as error:
                seen.append((round(time.monotonic(), 1), str(error)[-40:]))
            else:
                seen.append((round(time.monotonic(), 1), "met"))
                break
        time.sleep(5)
        return seen

    return [list(values) for values in simdist.run(body, world_size=len(starts_s)).values]


def test_a_rank_that_gave_up_is_not_met_and_its_next_try_is() -> None:
    early, late = tries((2, 2), (0, 3))

    refused = "refused, remote=[127.0.0.1]:40000$1"
    assert [text[-len(refused) :] for _, text in late] == [refused, "met"]
    assert [text for _, text in early] == ["wait timeout after 2000ms, keys: /0//cpu//0/1"[-40:], "met"]
    assert [at_s - early[0][0] for at_s, _ in early + late] == [0, 1, 1, 1]


def test_a_rank_reads_no_address_before_the_last_is_there() -> None:
    gave_up, waits, last = tries((1, 20, 20), (0, 2, 4))

    assert waits[0][0] - gave_up[0][0] == last[0][0] - gave_up[0][0] == 3.0
    assert waits[0][1].endswith("[127.0.0.1]:40000$1")
    assert last[0][1].endswith("[127.0.0.1]:40000$2")


@pytest.mark.parametrize("at_ns", [1000 * MS, 2000 * MS + 100_000])  # before the other arrives; while they connect
def test_a_rank_that_died_while_it_waited_refuses_connections(at_ns: int, tmp_path: Path) -> None:
    def body() -> str:
        rank = int(os.environ["RANK"])
        time.sleep(2 * rank)
        try:
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
        except RuntimeError as error:
            return str(error)
        return "met"

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_ns=at_ns)])

    assert str(result.ranks[1].value).endswith("Connection refused, remote=[127.0.0.1]:40000$1")
