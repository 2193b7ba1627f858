"""Hundreds of worlds in one process, good and bad, leave nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.utils.data

import simdist
from simdist.faults import Crash, Hang, LinkDelay, Signal
from tests.host_state import host_state

WORLDS = 34  # each case twice
ROOM_MIB = 8


def open_files() -> list[str]:
    """Return the targets of all open file descriptors."""
    return sorted(str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())


def resident_mib() -> float:
    """Return the resident memory of the process after a collection."""
    gc.collect()
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def meet(timeout_s: float = 5) -> int:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    return dist.get_rank()


def good() -> float:
    rank = meet()
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    os.environ["LEFT"] = "behind"
    torch.set_default_dtype(torch.float64)
    weights = torch.rand(10_000)
    dist.all_reduce(weights)
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.broadcast(weights, 0, group=group)
    dist.destroy_process_group()
    return float(weights.sum())


def untidy() -> None:
    """Leave the group, pending works and a future behind."""
    rank = meet()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    work.get_future().then(lambda future: future.value())
    if rank:
        dist.irecv(torch.ones(1), 0)


def raises() -> None:
    if meet() == 1:
        raise ValueError("x")
    dist.barrier()


def exits() -> None:
    rank = meet()
    sys.stdout.write("half a line")
    if rank == 2:
        sys.exit(3)
    if rank == 1:
        os._exit(4)
    dist.barrier()


def times_out() -> None:
    if meet() != 1:
        dist.all_reduce(torch.ones(1000))
    else:
        time.sleep(60)


def deadlocks() -> None:
    rank = meet()
    dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())


def trains() -> None:
    rank = meet()
    for step in range(3):
        simdist.step(step)
        time.sleep(0.001)
        dist.all_reduce(torch.full((100,), float(rank)))


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((10,), float(index))


def loads() -> None:
    meet()
    loader: Any = torch.utils.data.DataLoader(Numbers(), num_workers=1, persistent_workers=True)
    for batch in (*loader, *loader):
        dist.all_reduce(batch)


def leaves_children() -> None:
    """Leave children, pipes, a pool's threads and a half-read queue when the ranks end."""
    rank = meet()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    context.Process(target=time.sleep, args=(3,), daemon=rank == 0).start()
    queue.put(b"x" * 100_000)
    context.Process(target=queue.get).start()
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    os.chdir("/")
    if rank == 1:
        os._exit(1)


CASES: list[tuple[Callable[[], Any], dict[str, Any], set[str]]] = [
    (good, {}, {"returned"}),
    (good, {"policy": "random"}, {"returned"}),
    (untidy, {}, {"returned"}),
    (raises, {}, {"raised"}),
    (exits, {}, {"raised", "exited"}),
    (times_out, {}, {"returned", "raised"}),
    (deadlocks, {}, {"raised"}),
    (deadlocks, {"backend": "sim"}, {"hung"}),
    (trains, {"faults": [Crash(rank=1, at_step=1)]}, {"killed", "raised"}),
    (trains, {"faults": [Crash(rank=2, nth=2, when="during")]}, {"killed", "raised"}),
    (trains, {"faults": [Crash(rank=0, nth=3)], "max_restarts": 1}, {"returned"}),
    (trains, {"faults": [Hang(rank=0, at_step=1)]}, {"hung", "raised"}),
    (trains, {"faults": [LinkDelay(src=0, dst=1, delay_ns=1000)]}, {"returned"}),
    (trains, {"isolate": True}, {"returned"}),
    (trains, {"faults": [Signal(rank=1, at_step=1)]}, {"killed", "raised"}),
    (loads, {}, {"returned"}),
    (leaves_children, {}, {"returned", "exited"}),
]


def run_world(index: int) -> set[str]:
    body, arguments, _ = CASES[index % len(CASES)]
    result = simdist.run(body, world_size=3 + index % 2, seed=index, **arguments)
    return {rank.status for rank in result.ranks}


# Python 3.13 reports that a BytesIO whose buffer a rank still had when it was killed can't be closed.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.BytesIO")
@pytest.mark.usefixtures("small_heap")
def test_many_worlds_leave_no_trace() -> None:
    wrong: Counter[tuple[str, ...]] = Counter()
    for index in range(2 * len(CASES)):  # makes everything that is made once and kept
        run_world(index)
    memory_mib = resident_mib()  # also collects their garbage
    before, threads, files = host_state(), threading.enumerate(), open_files()

    for index in range(WORLDS):
        found = run_world(index)
        if found != CASES[index % len(CASES)][2]:
            wrong[CASES[index % len(CASES)][0].__name__, *sorted(found)] += 1

    assert wrong == {}
    assert threading.enumerate() == threads
    assert resident_mib() - memory_mib < ROOM_MIB
    assert host_state() == before
    assert open_files() == files
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("small_heap")
def test_a_finished_world_is_freed_without_the_collector() -> None:
    def body() -> Any:
        meet()
        block = torch.zeros(1 << 20)
        dist.all_reduce(block)
        return None

    simdist.run(body, world_size=3)
    gc.collect()
    gc.disable()
    try:
        memory_mib = resident_mib_now()
        for _ in range(12):
            simdist.run(body, world_size=3)
        grown_mib = resident_mib_now() - memory_mib
    finally:
        gc.enable()

    assert grown_mib < 36  # the 12 worlds had 12 MiB of tensors each


def resident_mib_now() -> float:
    """Return the resident memory without a collection before."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_worlds_groups_are_freed_without_the_garbage_collector() -> None:
    groups: list[weakref.ref[Any]] = []

    def main() -> None:
        meet()
        groups.append(weakref.ref(dist.group.WORLD))

    gc.disable()
    try:
        simdist.run(main, world_size=2).raise_for_failure()

        assert [group() for group in groups] == [None, None]
    finally:
        gc.enable()


def _joins_a_thread() -> None:
    meet()
    thread = threading.Thread(target=time.sleep, args=(1,))
    thread.start()
    thread.join()


def _joins_a_child() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1,))
    child.start()
    child.join()


def _leaves_store_requests() -> None:
    meet()
    store: Any = dist
    store.TCPStore("localhost", 1234, 2, dist.get_rank() == 0).set("key", "value")


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("body", [meet, _joins_a_thread, _joins_a_child, _leaves_store_requests])
def test_a_world_leaves_the_garbage_collector_nothing_to_free(body: Callable[[], None]) -> None:
    """A session of many worlds would fill the collector's generations: a full collection looks at all of torch."""
    simdist.run(body, world_size=2).raise_for_failure()  # what torch makes once may be in cycles
    gc.freeze()

    found = _garbage_of(lambda: simdist.run(body, world_size=2).raise_for_failure())

    assert found - _garbage_of(lambda: None) == Counter()  # tensors that another test left make some at each collection


def _garbage_of(action: Callable[[], object]) -> Counter[str]:
    """The types of the objects that only the collector can free after `action`."""
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        action()
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
