"""A killed rank changes no file while its thread is unwound, and the content of its buffers is lost."""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash

KILLED = [Crash(rank=0, at_ns=10**9)]


def sizes(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_size for each in sorted(folder.iterdir()) if each.is_file()}


def run_killed(body: Any, **settings: Any) -> None:
    result = simdist.run(body, **{"world_size": 1, "faults": KILLED, **settings})

    assert result.ranks[0].status == "killed"


def test_a_killed_rank_cleans_up_nothing_and_writes_no_last_file(tmp_path: Path) -> None:
    def body() -> None:
        half = tmp_path / "checkpoint.tmp"
        half.write_text("half")
        try:
            with tempfile.TemporaryDirectory(dir=tmp_path):
                time.sleep(5)
        finally:
            half.chmod(0o400)
            half.rename(tmp_path / "checkpoint")
            os.truncate(half, 0)
            (tmp_path / "emergency").write_text("state")

    run_killed(body)

    assert sizes(tmp_path) == {"checkpoint.tmp": 4}
    assert (tmp_path / "checkpoint.tmp").stat().st_mode & 0o777 != 0o400
    assert [each.is_dir() for each in tmp_path.iterdir()].count(True) == 1


def test_a_rank_that_still_waits_at_the_end_cleans_up_nothing(tmp_path: Path) -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        with tempfile.TemporaryDirectory(dir=tmp_path):
            if dist.get_rank() == 0:
                dist.recv(torch.ones(1), 1)
            else:
                time.sleep(10_000)
                os._exit(0)

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_ns=10**9)])

    assert result.ranks[1].status == "exited"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("way", ["with", "left open", "binary", "descriptor", "appended"])
def test_what_a_killed_rank_has_in_buffers_is_lost(tmp_path: Path, way: str) -> None:
    path = tmp_path / "log"
    path.write_text("old")

    def body() -> None:
        if way == "with":
            with path.open("w") as file:
                file.write("half")
                time.sleep(5)
        elif way == "left open":
            kept = path.open("w")
            kept.write("half")
            time.sleep(5)
        elif way == "binary":
            other = path.open("w+b")
            other.write(b"half")
            time.sleep(5)
        elif way == "descriptor":
            number = os.open(path, os.O_WRONLY | os.O_TRUNC)
            with os.fdopen(number, "w") as file:
                file.write("half")
                time.sleep(5)
        else:
            added = path.open("a")
            added.write("new")
            added.flush()
            added.write("half")
            time.sleep(5)

    run_killed(body)

    assert path.read_text() == ("oldnew" if way == "appended" else "")


def test_a_rank_that_returns_loses_nothing(tmp_path: Path) -> None:
    held = []

    def body() -> None:
        held.append((tmp_path / "log").open("w"))
        held[0].write("whole")

    simdist.run(body, world_size=1)
    held.pop().close()

    assert (tmp_path / "log").read_text() == "whole"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_a_file_that_is_open_when_a_rank_ends_has_all(tmp_path: Path, mode: str, fails: bool) -> None:
    held: list[Any] = []

    def body() -> str:
        dist.init_process_group("gloo")
        log = tmp_path / str(dist.get_rank())
        if dist.get_rank():
            time.sleep(1)  # the other rank has ended
            return (tmp_path / "0").read_text()
        atexit.register(lambda: held[0].write("!" if mode == "w" else b"!"))
        held.append(log.open(mode))
        held[0].write("whole" if mode == "w" else b"whole")
        assert not fails
        return ""

    result = simdist.run(body, world_size=2)
    held.pop().close()

    assert (result.ranks[0].status, result.values[1]) == ("raised" if fails else "returned", "whole!")


def test_what_a_later_life_has_saved_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"

    def body() -> None:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor)
        dist.all_reduce(tensor)
        if dist.get_rank() == 0:
            torch.save({"tensor": tensor}, path)
        torch.cuda.synchronize()

    crash = Crash(rank=1, op="all_reduce", nth=2, when="during")
    result = simdist.run(body, world_size=2, backend="nccl", faults=[crash], max_restarts=1)

    assert result.restarts
    assert torch.load(path, map_location="cpu")["tensor"].tolist() == [4.0] * 4


def test_the_torch_file_of_a_killed_rank_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"

    def body() -> None:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor)
        if dist.get_rank() == 0:
            dist.all_reduce(tensor)
            torch.save({"tensor": tensor}, path)

    run_killed(body, world_size=2, backend="nccl")

    assert path.stat().st_size == 0
