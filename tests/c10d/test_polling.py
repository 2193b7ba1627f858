"""Loops that poll until something is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist.errors import LivelockError, StrictError
from tests.c10d.worlds import in_group, now_ns, ones, values


def message(rank: int) -> Any:
    return dist.irecv(ones(), 0) if rank else dist.isend(ones(), 1)


def test_a_loop_without_a_pause_sees_a_collective_end_almost_at_once() -> None:
    def body(rank: int) -> tuple[int, int]:
        if rank:
            time.sleep(100)
        work = dist.all_reduce(ones(), async_op=True)
        asked = 0
        while not work.is_completed():
            asked += 1
        return asked, now_ns()

    (asked, polled_ns), (_, waited_ns) = in_group(body, 2)

    assert asked < 20_000
    assert 0 <= polled_ns - waited_ns < waited_ns // 500


def test_a_loop_with_pauses_costs_no_time_beside_them() -> None:
    def body(rank: int) -> int:
        if rank:
            time.sleep(10)
        work = dist.all_reduce(ones(), async_op=True)
        begin_ns = now_ns()
        while not work.is_completed():
            time.sleep(0.01)
        return now_ns() - begin_ns

    polled_ns = in_group(body, 2)[0]

    assert 10_000_000_000 <= polled_ns < 10_020_000_000


@pytest.mark.parametrize("pause_s", [0, 0.01])
def test_a_rank_that_always_asks_if_a_message_is_completed_is_reported(pause_s: float) -> None:
    def body() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))
        work = message(dist.get_rank())
        while not work.is_completed():
            if pause_s:
                time.sleep(pause_s)

    result = simdist.run(body, world_size=2)

    assert [type(rank.exception) for rank in result.ranks] == [LivelockError] * 2
    reported = str(result.ranks[0].exception)
    assert reported.startswith("rank 0 has asked 1")
    assert "whether its send(dst=1, tag=0) in group '0' is completed at test_polling.py:" in reported
    assert reported.endswith("in body; with Gloo it never is before wait()")


def test_a_strict_run_refuses_a_second_wait_for_a_message() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        work = message(dist.get_rank())
        work.wait()
        work.wait()

    result = simdist.run(body, world_size=2, strict=True)

    assert [type(rank.exception) for rank in result.ranks] == [StrictError] * 2
    assert str(result.ranks[0].exception) == (
        "rank 0 waits again for its send(dst=1, tag=0) in group '0', which was done"
    )


def test_the_ideal_backend_lets_a_rank_wait_twice() -> None:
    def body() -> bool:
        dist.init_process_group()
        work = message(dist.get_rank())
        work.wait()
        again: bool = work.wait()
        dist.destroy_process_group()
        return again

    assert values(body, 2, backend="sim") == [True, True]


def opened_store() -> Any:
    stores: Any = dist
    return stores.FileStore("meeting")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("ask", "pause_s"), [("queue_len", 0), ("get", 0), ("num_keys", 0.001), ("list_keys", 0.001)])
def test_a_rank_that_asks_a_store_for_ever_is_reported(ask: str, pause_s: float) -> None:
    def body() -> None:
        stores: Any = dist
        store = stores.HashStore()
        store.set("key", "0")
        asked: dict[str, Callable[[], bool]] = {
            "queue_len": lambda: bool(store.queue_len("no")),
            "get": lambda: store.get("key") != b"0",
            "num_keys": lambda: store.num_keys() > 9,
            "list_keys": lambda: "no" in store.list_keys(),
        }
        while not asked[ask]():
            if pause_s:
                time.sleep(pause_s)

    with pytest.raises(LivelockError, match="nothing has happened for long but sleeping and asking"):
        simdist.run(body, world_size=2)


def test_a_loop_that_reads_a_key_without_a_pause_sees_what_another_sets() -> None:
    def body(rank: int) -> bytes:
        store = opened_store()
        if rank == 0:
            store.set("key", "0")
            time.sleep(0.01)
            store.set("key", "1")
        found: bytes = store.get("key")
        while found != b"1":
            found = store.get("key")
        return found

    assert in_group(body, 2) == [b"1", b"1"]
