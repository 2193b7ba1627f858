"""DataLoader with workers: the batches, seeds and texts are those of real workers."""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import simdist
from simdist.cluster import build
from simdist.faults import Crash
from tests.c10d.worlds import values
from tests.real_answers import real_answer

ONE_CORE = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawing(Dataset[Any]):
    """Items with the numbers that the worker draws, and its number of items so far."""

    def __init__(self) -> None:
        self.data = torch.arange(12.0)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.seen.append(index)
        info = get_worker_info()
        who = (-1, 0) if info is None else (info.id, info.seed)
        drawn = float(torch.rand(())), random.random(), float(np.random.rand())
        return self.data[index], *drawn, *who, len(self.seen)


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 7, info.num_workers))


class Failing(Dataset[int]):
    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2:
            self.action()
        return index


def raise_error() -> None:
    raise KeyError("missing 2")


def leave() -> None:
    time.sleep(0.2)  # the loader waits for the batch by then, and learns of the child's end by the signal
    os._exit(3)


def die() -> None:
    time.sleep(0.2)  # likewise
    os.kill(os.getpid(), 9)


def seed_again(worker: int) -> None:
    random.seed(worker)


def set_it(module: str, name: str, worker: int, answers: Any) -> None:
    setattr(importlib.import_module(module), name, worker > 0)  # as workers of torchdata's StatefulDataLoader begin
    time.sleep(1)  # other processes run meanwhile
    answers.put((worker, vars(sys.modules[module])[name]))


def set_by_children(module: str, name: str) -> tuple[list[Any], object]:
    before = vars(importlib.import_module(module))[name]
    context: Any = mp.get_context("fork")
    answers = context.Queue()
    workers = [context.Process(target=set_it, args=(module, name, worker, answers)) for worker in range(3)]
    for worker in workers:
        worker.start()
    found = sorted(answers.get() for _ in workers)
    for worker in workers:
        worker.join()
    return found, vars(sys.modules[module])[name] == before


def batches(method: str, options: dict[str, Any]) -> str:
    torch.manual_seed(3)
    data = Drawing()
    loader: Any = DataLoader(data, batch_size=3, num_workers=2, shuffle=True, multiprocessing_context=method, **options)
    found = [[part.tolist() for part in batch] for _ in range(2) for batch in loader]
    assert data.seen == []
    assert get_worker_info() is None
    return hashlib.sha256(repr(found).encode()).hexdigest()[:8]


def counted(method: str) -> list[Any]:
    loader: Any = DataLoader(Counting(), batch_size=2, num_workers=2, multiprocessing_context=method)
    return [batch.tolist() for batch in loader]


def failure(method: str, action: Callable[[], None]) -> tuple[str, str, str]:
    loader: Any = DataLoader(Failing(action), num_workers=2, multiprocessing_context=method)
    with pytest.raises((KeyError, RuntimeError)) as caught:
        list(loader)
    said = re.sub(r"pid(\(s\))? \d+(, \d+)*", "pid N", str(caught.value))
    return (
        type(caught.value).__name__,
        re.sub(r"Traceback.*\n  File .*", "...", said, flags=re.DOTALL),
        str(re.sub(r"pid \d+", "pid N", str(caught.value.__cause__))),
    )


BATCHES = {  # digests of real workers' batches
    "": "4115f57f",
    "persistent_workers": "a0df5378",
    "prefetch_factor": "4115f57f",
    "worker_init_fn": "5c2ffa82",
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"persistent_workers": True},
    {"prefetch_factor": 4},
    {"worker_init_fn": seed_again},
]
DETAILS = "Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace."
FAILURES = {
    raise_error: ("KeyError", "Caught KeyError in DataLoader worker process 0.\nOriginal ...", "None"),
    leave: (
        "RuntimeError",
        "DataLoader worker (pid N) exited unexpectedly",
        f"DataLoader worker (pid N) exited unexpectedly with exit code 3. {DETAILS}",
    ),
    die: (
        "RuntimeError",
        "DataLoader worker (pid N) exited unexpectedly",
        "DataLoader worker (pid N) is killed by signal: Killed. ",
    ),
}


@ONE_CORE
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "".join(options) or "plain")
def test_workers_give_the_batches_of_real_ones(method: str, options: dict[str, Any]) -> None:
    ranks = 1 if options else 2

    assert values(batches, ranks, args=(method, options)) == [BATCHES["".join(options)]] * ranks


@ONE_CORE
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_iterable_data_set_is_divided_among_workers(method: str) -> None:
    assert simdist.run(counted, world_size=1, args=(method,)).values == [[[0, 2], [1, 3], [4, 6], [5]]]


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.utils.data._utils.worker", "_worker_info"),
        ("torch.utils.data._utils.signal_handling", "_SIGCHLD_handler_set"),
        ("torch.distributed.checkpoint._async_process_executor", "_CHECKPOINT_PROCESS"),
    ],
)
def test_each_process_has_what_it_sets_of_workers(module: str, name: str, isolate: bool) -> None:
    result = simdist.run(set_by_children, world_size=1, args=(module, name), isolate=isolate)

    assert result.values == [([(0, False), (1, True), (2, True)], True)]


@ONE_CORE
@pytest.mark.parametrize("action", FAILURES, ids=lambda action: action.__name__)
def test_a_worker_that_fails_is_reported_in_torchs_words(action: Callable[[], None]) -> None:
    assert simdist.run(failure, world_size=1, args=("fork", action)).values == [FAILURES[action]]


@ONE_CORE
def test_workers_are_the_same_in_every_run() -> None:
    first, second = (simdist.run(batches, world_size=2, args=("fork", {}), policy="random") for _ in range(2))

    assert first.digest == second.digest


def failures(method: str) -> list[Any]:
    return [failure(method, action) for action in FAILURES]


PARTS: dict[str, Callable[[str], Any]] = {
    **{"".join(options) or "plain": functools.partial(batches, options=options) for options in OPTIONS},
    "iterable": counted,
    "failures": failures,
}
EXPECTED: dict[str, Any] = {
    **{"".join(options) or "plain": BATCHES["".join(options)] for options in OPTIONS},
    "iterable": [[0, 2], [1, 3], [4, 6], [5]],
    "failures": list(FAILURES.values()),
}


@pytest.mark.real
@ONE_CORE
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_real_workers_do_all_that(part: str, method: str) -> None:
    assert real_answer(PARTS[part], method, tuple(PARTS.values())) == EXPECTED[part]


@pytest.mark.usefixtures("small_heap")
def test_an_iterator_that_outlives_its_world_is_collected_without_a_word() -> None:
    kept: list[Any] = []

    def main() -> None:
        iterator = iter(DataLoader(Drawing(), batch_size=2, num_workers=1))
        next(iterator)
        kept.append(iterator)

    simdist.run(main, world_size=2).raise_for_failure()
    with pytest.MonkeyPatch.context() as patch:
        complaints: list[object] = []
        patch.setattr(sys, "unraisablehook", complaints.append)
        kept.clear()
        gc.collect()

    assert complaints == []


@pytest.mark.usefixtures("small_heap")
def test_a_rank_that_is_killed_collects_its_iterator_without_a_word() -> None:
    def main() -> None:
        for _ in DataLoader(Drawing(), batch_size=2, num_workers=1):
            simdist.point("read")

    with pytest.MonkeyPatch.context() as patch:
        complaints: list[object] = []
        patch.setattr(sys, "unraisablehook", complaints.append)
        result = simdist.run(main, world_size=1, faults=[Crash(rank=0, at_point="read")])
        gc.collect()

    assert (result.ranks[0].status, complaints) == ("killed", [])


def test_an_iterator_that_another_rank_collects_ends_on_no_awaited_thread() -> None:
    shared: list[Any] = []

    def main() -> None:
        if os.environ["RANK"] == "0":
            iterator = iter(
                DataLoader(Drawing(), batch_size=2, num_workers=1, pin_memory=True, persistent_workers=True)
            )
            next(iterator)
            shared.append(iterator)
            del iterator
            time.sleep(3)
        else:
            time.sleep(1)
            shared.clear()

    result = simdist.run(main, world_size=2, cluster=build(2, devices_per_host=2))

    assert [(rank.status, rank.stderr) for rank in result.ranks] == [("returned", "")] * 2


def test_a_rank_that_ends_leaves_the_persistent_workers_of_others() -> None:
    loaders = []

    def main() -> int:
        ranks_epochs = 1 + int(os.environ["RANK"])
        loader = DataLoader(Drawing(), batch_size=6, num_workers=1, pin_memory=True, persistent_workers=True)
        loaders.append(loader)  # torch's handler at exit ends its workers
        seen = 0
        for _ in range(ranks_epochs):
            seen += sum(len(batch) for batch, *_ in loader)
            time.sleep(ranks_epochs)
        return seen

    for _ in range(2):  # torch registers its handler once for a process
        assert values(main, 2, cluster=build(2, devices_per_host=2)) == [12, 24]
