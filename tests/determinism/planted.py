"""Nondeterministic programs, one for each cause; the line with the cause ends with `# <- here`."""

from __future__ import annotations

import os
import resource
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from tests.determinism import helper


def begin() -> int:
    """Join the group, as every program does first."""
    dist.init_process_group("gloo")
    return dist.get_rank()


def report(number: float) -> None:
    """Make a number visible in the events: sleep for this many microseconds."""
    time.sleep(int(number) % 1_000_003 / 1e6)


class Plain:
    """An object whose text contains its address."""


def memory_of_the_process() -> None:
    begin()
    usage = resource.getrusage(resource.RUSAGE_SELF)  # <- here
    report(usage.ru_minflt + usage.ru_maxrss)


def time_of_a_file() -> None:
    begin()
    began = Path("/proc/self").stat().st_mtime_ns  # <- here
    report(began // 1000)


def address_of_an_object() -> None:
    begin()
    thing = Plain()
    key = id(thing)  # <- here
    report(key >> 4)


def address_in_a_text() -> None:
    rank = begin()
    thing = Plain()
    text = f"{thing}"  # <- here
    if rank == 0:
        print(text)


def hash_of_a_text() -> None:
    begin()
    place = hash("embedding.weight") % 1_000_003  # <- here
    report(place)


def order_of_a_set() -> None:
    begin()
    names = {"w", "lr", "eps", "bias", "scale", "weight", "momentum", "zero_point", "running_mean"}
    order = list(names)  # <- here
    for name in order:
        dist.all_reduce(torch.ones(len(name)))


def loop_over_a_set() -> None:
    begin()
    for name in {"w", "lr", "eps", "bias", "scale", "weight", "momentum", "zero_point", "running_mean"}:  # <- here
        dist.all_reduce(torch.ones(len(name)))


def comprehension_over_a_set() -> None:
    begin()
    names = {"w", "lr", "eps", "bias", "scale", "weight", "momentum", "zero_point", "running_mean"}
    sizes = [len(name) for name in names]  # <- here
    dist.all_reduce(torch.tensor(sizes))


class Sampler:
    """Keeps an order that it took from a set."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.order = [*self.names]  # <- order_kept_in_an_object

    def __iter__(self) -> Iterator[str]:
        yield from self.order


def order_kept_in_an_object() -> None:
    begin()
    sampler = Sampler({"w", "lr", "eps", "bias", "scale", "weight", "momentum", "zero_point", "running_mean"})
    run_name = uuid.uuid4().hex  # different in each run, but harmless
    for epoch in range(2):
        for name in sampler:
            dist.all_reduce(torch.full((3,), float(len(name) + epoch * len(run_name))))


def branch_on_a_popped_element() -> None:
    begin()
    left = {f"shard {number}" for number in range(5000)}
    first = left.pop()  # <- here
    if int(first[6:]) < 8:
        dist.barrier()
    else:
        dist.broadcast(torch.ones(int(first[6:])), 0)


def environment() -> None:
    begin()
    number = os.getppid() + int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "77"))  # <- here
    report(number)


def order_of_a_folder() -> None:
    rank = begin()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "bb", "ccc", "dddd"):
            (Path(folder) / name).touch()
        shards = os.listdir(folder)  # noqa: PTH208  # <- here
    for shard in shards:
        report(len(shard) * (rank + 1))


def order_of_a_glob() -> None:
    begin()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.pt", "bb.pt", "ccc.pt"):
            (Path(folder) / name).touch()
        found = [len(path.stem) for path in Path(folder).glob("*.pt")]  # <- here
    dist.all_reduce(torch.tensor(found))


def garbage_collection() -> None:
    begin()
    references = []
    for _ in range(1000):
        thing = Plain()
        thing.itself = thing  # type: ignore[attr-defined]
        references.append(weakref.ref(thing))
    alive = sum(reference() is not None for reference in references)  # <- here
    report(alive)


def finalizer_in_a_cycle() -> None:
    begin()
    for _ in range(1000):
        helper.Parting()
        dist.barrier()


def memory_that_nobody_wrote() -> None:
    begin()
    scratch = [os.urandom(8192) for _ in range(8)]
    del scratch
    tensor = torch.empty(2000, dtype=torch.uint8)  # <- here
    dist.all_reduce(tensor)


def thread_outside() -> None:
    begin()
    ticks = helper.ticks_of_a_thread()
    report(ticks)


def queue_that_a_thread_fills() -> None:
    begin()
    waiting = helper.BOX.qsize()  # <- here
    report(waiting)


CALLS: list[int] = []


def state_of_the_module() -> None:
    begin()
    CALLS.append(1)
    number = len(CALLS)  # <- here
    report(number)


def file_left_over() -> None:
    rank = begin()
    mark = Path(tempfile.gettempdir()) / f"{os.environ['SIMDIST_TEST_MARK']}-{rank}"
    if mark.exists():  # <- here
        report(1000)
    mark.touch()
    dist.barrier()


def generator_made_when_imported() -> None:
    begin()
    report(helper.GENERATOR.randrange(10**6))


def made_when_imported() -> None:
    begin()
    report(helper.RUN_NUMBER)
