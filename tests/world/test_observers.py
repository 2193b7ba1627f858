"""An observer of worlds gets the bus of each world, and the events that it listens to."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import profiler

import simdist
from simdist.kernel import Bus
from simdist.process import RankBegan, current_process
from simdist.records import Ended, Record, Started
from simdist.world import WorldEnded, observed_by

HOST = threading.get_ident()


class Watching:
    """An observer that records what it hears."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds
        self.heard: list[list[Any]] = []  # by world
        self.ranks: list[tuple[int, bool]] = []
        self.buses: list[Bus] = []

    def world_begins(self, bus: Bus) -> None:
        """Listen."""
        self.buses.append(bus)
        self.heard.append([])
        for kind in self.kinds:
            bus.listen(kind, self.heard[-1].append)
        bus.listen(RankBegan, self._on_rank)

    def _on_rank(self, event: RankBegan) -> None:
        here = current_process() is event.process and threading.get_ident() != HOST
        self.ranks.append((event.process.rank, here))


def test_an_observer_hears_of_each_world_from_first_record_to_result() -> None:
    with observed_by(Watching(Started, Ended, WorldEnded)) as watching:
        results = [simdist.run(lambda: 7, world_size=2) for _ in range(2)]

    kinds = [Started, Started, Ended, Ended, WorldEnded]
    assert [[type(event) for event in heard] for heard in watching.heard] == [kinds, kinds]
    assert [heard[-1].result for heard in watching.heard] == results
    assert watching.ranks == [(0, True), (1, True)] * 2


def test_nobody_listens_to_a_world_that_is_made_after_the_watch() -> None:
    with observed_by(Watching(Record)) as watching:
        pass
    simdist.run(lambda: None, world_size=1)

    assert watching.heard == []


def test_a_watched_world_has_the_digest_of_one_that_is_not() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(3))

    plain = simdist.run(body, world_size=2)
    with observed_by(Watching(Record)) as watching:
        watched = simdist.run(body, world_size=2)

    assert watched.digest == plain.digest
    assert [record.packed for record in watching.heard[0]] == [
        (event.time_ns, event.kind, event.rank, *(tuple(v) if isinstance(v, list) else v for v in event.data.values()))
        for event in plain.events
    ]


def test_a_profiler_hears_its_own_rank_alone_and_only_while_it_runs() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo")
        alone = dist.new_group([1])
        dist.barrier()
        with profiler.profile() as profile:
            dist.all_reduce(torch.ones(3))
            if dist.get_rank() == 1:
                dist.all_reduce(torch.ones(3), group=alone)
        dist.barrier()
        return [event.name for event in profile.function_events if event.name.startswith("gloo:")]

    result = simdist.run(body, world_size=2)

    assert result.values == [["gloo:all_reduce"], ["gloo:all_reduce"] * 2]
