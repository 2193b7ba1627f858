"""Workers of a loader that draw the same random numbers, for samples that are different.

Torch seeds each worker differently: its own generator, and those of `random` and numpy. `worker_init_fn` may seed them
alike again. A generator that the data set holds is copied into each worker with its state. Then the first samples of
all workers get the same augmentation, and so on.

The states of generators are read between the batches of a worker. Workers draw the same numbers if each state is the
same on all of them, again and again, and changes. A data set that seeds its generator for each sample has another state
on each worker, and one that draws only once, for an order that all workers need, has a state that stays.

An `IterableDataset` is left out: its workers may need the same order, of which each takes a share.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pickle import dumps
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from simdist.judges._events import WorkerReady
from simdist.judges._judge import Hearing, Moment

__all__ = ["WorkerDraws"]

_STATES = 3  # different states, one after another, that have to be the same on all workers
_LOOKS = 8  # times that a worker is looked at
_PASSES = 2  # passes of each rank over loaders of a data set's class
_MOST_OBJECTS = 64  # of a data set that are searched
_DEEP = 4
_GLOBAL = ("torch", "numpy.random", "random")
_HELD = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_PLAIN = (str, bytes, int, float, type, torch.Tensor, np.ndarray)
_Pass = tuple[int, int, int]  # the life, the rank, and the seed of the loader's workers


@dataclass(slots=True)
class _Worker:
    looks: int = 0
    states: dict[str, list[int]] = field(default_factory=dict)  # by the generator's name, without repetitions


class WorkerDraws:
    """The state of the judge of samples for workers in one world.

    `alike` has the passes whose workers draw the same: a generator, how many workers, and the class of the data set.
    """

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self.alike: dict[_Pass, tuple[str, int, str]] = {}
        self._workers: dict[_Pass, dict[int, _Worker]] = {}
        self._passes: dict[tuple[int, int, type], set[_Pass]] = {}  # by life, rank, and class of the data set
        self._found = False
        hearing.listen(WorkerReady, self._on_ready)

    def _on_ready(self, event: WorkerReady) -> None:
        process, kind = event.process, type(event.dataset)
        if self._found or event.workers < 2 or isinstance(event.dataset, IterableDataset):
            return
        key = process.life, process.rank, event.seed - event.worker
        passes = self._passes.setdefault((process.life, process.rank, kind), set())
        if key not in passes:
            if len(passes) >= _PASSES:
                return
            passes.add(key)
            self._workers[key] = {}
        workers = self._workers.get(key)
        if workers is None:
            return
        worker = workers.setdefault(event.worker, _Worker())
        worker.looks += 1
        if worker.looks > _LOOKS:
            return
        full = []
        for name, state in _states(event.dataset):
            states = worker.states.setdefault(name, [])
            if len(states) < _STATES and (not states or states[-1] != state):
                states.append(state)
                full += [name] if len(states) == _STATES else []
        for name in full:
            if len(workers) == event.workers and all(
                each.states.get(name) == worker.states[name] for each in workers.values()
            ):
                self.alike[key] = name, event.workers, kind.__name__
                del self._workers[key]
                return

    def look(self, key: _Pass, moment: Moment) -> None:
        """Report the workers of a pass of training, if they draw the same."""
        found = self.alike.pop(key, None)
        if found is None or self._found:
            return
        self._found = True
        name, workers, dataset = found
        if name in _GLOBAL:
            why = "torch seeds them differently: `worker_init_fn`, or the data set, has seeded them alike after that"
        else:
            why = "each has a copy of it: seed it in `worker_init_fn`, from `torch.initial_seed()`"
        self._hearing.find(
            f"all {workers} workers of a loader draw the same random numbers from {name}",
            moment,
            subject=dataset,
            notes=[why],
        )


def _states(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the state of each generator that a worker may draw from."""
    yield "torch", _sum(torch.get_rng_state())
    yield "numpy.random", _sum(np.random.get_state())
    yield "random", _sum(random.getstate())
    for name, generator in _held(dataset):
        if isinstance(generator, np.random.Generator):
            yield name, _sum(generator.bit_generator.state)
        elif isinstance(generator, np.random.RandomState | torch.Generator):
            yield name, _sum(generator.get_state())
        elif type(generator) is not random.SystemRandom:
            yield name, _sum(generator.getstate())


def _sum(state: object) -> int:
    return zlib.crc32(state.numpy().tobytes() if isinstance(state, torch.Tensor) else dumps(state))


def _held(dataset: object) -> Iterator[tuple[str, Any]]:
    """Yield the generators that a data set, or an object in it, holds, by their path."""
    pending: list[tuple[str, object, int]] = [(type(dataset).__name__, dataset, 0)]
    seen = {id(dataset)}
    while pending:
        name, value, depth = pending.pop(0)
        if isinstance(value, _HELD):
            yield name, value
            continue
        if depth == _DEEP or len(seen) > _MOST_OBJECTS:
            continue
        parts: Sequence[tuple[str, object]] = [
            (f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()
        ]
        if type(value) is dict:
            parts = [(f"{name}[{key!r}]", part) for key, part in [*value.items()][:_MOST_OBJECTS]]
        elif type(value) in (list, tuple):
            parts = [(f"{name}[{place}]", part) for place, part in enumerate(value[:_MOST_OBJECTS])]  # type: ignore[index]
        for path, part in parts:
            if id(part) not in seen and not isinstance(part, _PLAIN):
                seen.add(id(part))
                pending.append((path, part, depth + 1))
