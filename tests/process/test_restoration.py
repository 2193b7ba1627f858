from __future__ import annotations

import _thread
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from time import sleep, time_ns  # taken early, as user code does it
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

import simdist
from simdist.errors import LivelockError, SimdistError, StallError
from simdist.faults import Crash, Hang
from tests.c10d.worlds import values
from tests.host_state import host_state


def disturbs() -> None:
    """Change everything that a rank may change, and take a little time."""
    rank = int(os.environ["RANK"])
    os.environ["DISTURBED"] = "1"
    sys.argv.append("disturbed")
    sys.argv = [*sys.argv, "more"]
    sys.excepthook = lambda *_: None
    sys.unraisablehook = lambda *_: None
    sys.stdin = sys.__stdin__
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    dist.init_process_group("gloo")
    _c.set_debug_level(_c.DebugLevel.INFO)
    sleep(0.001)
    dist.all_reduce(torch.ones(1))


def raises() -> None:
    disturbs()
    raise ValueError("x")


def deadlocks() -> None:
    disturbs()
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def exits() -> None:
    disturbs()
    os._exit(3)


def spins() -> None:
    disturbs()
    while os.environ["RANK"] == "0":
        pass


def blocks() -> None:
    disturbs()
    os.read(PIPE[0], 1)


def waits_for_a_lock_of_the_host() -> None:
    disturbs()
    with LOCK:
        pass


LOCK = _thread.allocate_lock()
PIPE: list[int] = []


@pytest.fixture
def taken_lock() -> Iterator[None]:
    LOCK.acquire()
    PIPE[:] = os.pipe()
    yield
    os.write(PIPE[1], b"xxxx")  # wakes a thread that still reads
    time.sleep(0.05)
    for number in PIPE:
        os.close(number)
    if LOCK.locked():
        LOCK.release()


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (disturbs, {}),
        (raises, {}),
        (exits, {}),
        (disturbs, {"faults": [Crash(rank=1, nth=1, when="during")]}),
        (disturbs, {"faults": [Crash(rank=0, at_ns=700_000)], "max_restarts": 1}),
        (disturbs, {"faults": [Hang(rank=0, at_ns=700_000)]}),
        (deadlocks, {}),
        (deadlocks, {"backend": "sim"}),
    ],
    ids=["returns", "raises", "exits", "crashes", "restarts", "hangs", "times out", "deadlocks"],
)
def test_a_world_leaves_no_trace_however_it_ends(body: Callable[[], None], arguments: dict[str, Any]) -> None:
    before, ours = host_state(), (sleep, time_ns)

    simdist.run(body, world_size=2, **arguments)

    assert host_state() == before
    assert (sleep, time_ns) == ours


@pytest.mark.real
@pytest.mark.parametrize("body", [spins, blocks, waits_for_a_lock_of_the_host])
def test_a_world_that_stalls_leaves_no_trace(body: Callable[[], None], taken_lock: None) -> None:
    before, ours = host_state(), (sleep, time_ns)

    with pytest.raises(StallError) as caught:
        simdist.run(body, world_size=2, stall_s=0.3)
    after = host_state()

    assert after == before
    assert (sleep, time_ns) == ours
    either = body is waits_for_a_lock_of_the_host  # either of the two ranks that wait for the lock
    assert caught.value.task.startswith(("rank 0 (virtual time 0.00", "rank 1 (virtual time 0.00")[: 1 + either])


def test_an_interrupted_world_leaves_no_trace() -> None:
    before = host_state()

    def forever() -> None:
        disturbs()
        while True:
            sleep(1)

    def progress(now_ns: int, events: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simdist.run(forever, world_size=2, progress=progress)

    assert host_state() == before


def test_a_world_that_never_starts_leaves_no_trace() -> None:
    before = host_state()

    with pytest.raises(SimdistError):
        simdist.run(disturbs, world_size=0)

    assert host_state() == before


def test_a_nested_world_is_refused_and_leaves_the_outer_one_alone() -> None:
    before = host_state()

    def body() -> int:
        with pytest.raises(SimdistError) as caught:
            simdist.run(disturbs, world_size=2)
        assert str(caught.value) == (
            "another simulated world is running in this process; run one after the other, or in separate processes; a "
            "rank has started it: if the rank imports the file that starts worlds, put that under "
            '`if __name__ == "__main__":`'
        )
        time.sleep(0.001)
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        return int(total.item())

    assert values(body, 2) == [2, 2]
    assert host_state() == before


@pytest.mark.real
def test_a_stall_reports_whose_thread_is_left_behind(taken_lock: None) -> None:
    with pytest.raises(StallError) as caught:
        simdist.run(blocks, world_size=2, stall_s=0.3)

    assert caught.value.left_behind == ("rank 0",)
    assert str(caught.value).endswith(
        "the thread of rank 0 could not be ended and is left behind; it ends when it comes back"
    )
    assert pickle.loads(pickle.dumps(caught.value)).left_behind == ("rank 0",)


@pytest.mark.usefixtures("impatient", "insistent")
def test_ranks_that_swallow_every_exception_end_with_their_world() -> None:
    def swallows() -> None:
        while True:
            try:
                sleep(0.001)
            except BaseException:
                continue

    before, threads = host_state(), _thread._count()

    with pytest.raises(LivelockError, match="nothing has happened for long but sleeping and asking"):
        simdist.run(swallows, world_size=3)

    assert _thread._count() == threads
    assert host_state() == before
    assert simdist.run(lambda: os.environ["RANK"], world_size=2).values == ["0", "1"]


@pytest.mark.real
def test_a_world_after_a_stall_works(taken_lock: None) -> None:
    with pytest.raises(StallError):
        simdist.run(blocks, world_size=2, stall_s=0.3)

    assert simdist.run(lambda: os.environ["RANK"], world_size=2).values == ["0", "1"]


def test_ranks_begin_with_the_hosts_default_dtype_which_stays_the_hosts() -> None:
    def body() -> tuple[torch.dtype, torch.dtype]:
        begun = torch.get_default_dtype()
        if os.environ["RANK"] == "0":
            torch.set_default_dtype(torch.float16)
        time.sleep(1)
        return begun, torch.get_default_dtype()

    torch.set_default_dtype(torch.float64)
    try:
        inside = simdist.run(body, world_size=2).values
        after = torch.get_default_dtype()
    finally:
        torch.set_default_dtype(torch.float32)

    assert inside == [(torch.float64, torch.float16), (torch.float64, torch.float64)]
    assert after is torch.float64
