"""Locks on files, by `fcntl`: a rank waits for one in virtual time, and a rank that dies gives its own up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist.faults import Crash

fcntl = pytest.importorskip("fcntl")
NEEDS_OPEN_FILE_LOCKS = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="Linux has these locks")
LOCKS = [fcntl.flock, pytest.param(fcntl.lockf, marks=NEEDS_OPEN_FILE_LOCKS)]


def rank_here() -> int:
    return int(os.environ["RANK"])


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("gives_back", [True, False], ids=["unlocks", "closes"])
def test_ranks_have_a_lock_one_after_another(lock: Callable[..., None], gives_back: bool, tmp_path: Path) -> None:
    def body() -> float:
        with (tmp_path / "lock").open("a") as file:
            lock(file, fcntl.LOCK_EX)
            taken_s = time.monotonic()
            time.sleep(100)
            if gives_back:
                lock(file, fcntl.LOCK_UN)
        return round(taken_s)

    assert simdist.run(body, world_size=3).values == [0, 100, 200]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_rank_that_does_not_wait_is_refused(lock: Callable[..., None], tmp_path: Path) -> None:
    def body() -> list[str]:
        rank = rank_here()
        dist.init_process_group("gloo")
        found = []
        with (tmp_path / "lock").open("a+") as file:
            for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
                if rank == 0:
                    lock(file, kind)
                dist.barrier()
                if rank == 1:
                    try:
                        lock(file, kind | fcntl.LOCK_NB)
                        found.append("taken")
                    except BlockingIOError:
                        found.append("refused")
                    lock(file, fcntl.LOCK_UN)
                dist.barrier()
        return found

    assert simdist.run(body, world_size=2).values == [[], ["taken", "refused"]]


@NEEDS_OPEN_FILE_LOCKS
def test_ranks_lock_different_parts_of_a_file(tmp_path: Path) -> None:
    def body() -> float:
        rank = rank_here()
        with (tmp_path / "lock").open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, rank // 2)
            taken_s = time.monotonic()
            time.sleep(100)
        return round(taken_s)

    assert simdist.run(body, world_size=4).values == [0, 100, 0, 100]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_killed_rank_gives_up_its_lock(lock: Callable[..., None], tmp_path: Path) -> None:
    opened = []

    def body() -> float:
        opened.append(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))
        number = opened[-1]
        time.sleep(rank_here())
        lock(number, fcntl.LOCK_EX)
        taken_s = time.monotonic()
        time.sleep(100)
        return round(taken_s)

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_ns=50_000_000_000)])
    for number in opened:
        os.close(number)

    assert (result.ranks[0].status, result.values[1]) == ("killed", 50)


def test_a_rank_waits_for_a_process_outside_of_the_run(tmp_path: Path) -> None:
    code = (
        f"import fcntl, sys; f = open({str(tmp_path / 'lock')!r}, 'a'); fcntl.flock(f, 2); print(flush=True); input()"
    )

    def body(held: Any) -> bool:
        with (tmp_path / "lock").open("a") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(held, b"\n")
            fcntl.flock(file, fcntl.LOCK_EX)
            return True

    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert simdist.run(body, args=(process.stdin.fileno(),), world_size=1).values == [True]


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_no_file_is_refused_as_by_the_system(lock: Callable[..., None]) -> None:
    def body() -> str:
        with pytest.raises(TypeError) as caught:
            lock("file", fcntl.LOCK_EX)
        return str(caught.value)

    assert simdist.run(body, world_size=1).values == [body()]
