"""Random plans for random programs: how large the world is, how it is scheduled, and what goes wrong in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from simdist.cluster import build
from simdist.faults import (
    BitFlip,
    Crash,
    Fault,
    Hang,
    Hold,
    LinkDelay,
    Partition,
    Raise,
    SlowRank,
    StoreDelay,
    StoreLost,
)

__all__ = ["Plan", "draw_plan"]

MS = 1_000_000
OPERATIONS = (
    None,
    None,
    "all_reduce",
    "broadcast",
    "all_gather",
    "barrier",
    "reduce",
    "send",
    "recv",
    "reduce_scatter",
)


@dataclass(frozen=True)
class Plan:
    """Everything about a run except the program."""

    world_size: int
    seed: int = 0
    backend: str = "gloo"
    policy: str = "fifo"
    strict: bool | None = None
    max_restarts: int = 0
    faults: tuple[Fault, ...] = ()
    hosts: int = 1
    debug: str = ""  # TORCH_DISTRIBUTED_DEBUG

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `simdist.run`."""
        given: dict[str, Any] = {
            "world_size": self.world_size,
            "seed": self.seed,
            "backend": self.backend,
            "policy": self.policy,
            "strict": self.strict,
            "max_restarts": self.max_restarts,
            "faults": list(self.faults),
        }
        if self.hosts > 1:
            given["cluster"] = build(self.world_size, hosts=self.hosts)
        if self.debug:
            given["env"] = {"TORCH_DISTRIBUTED_DEBUG": self.debug}
        return given

    def simpler(self) -> list[Plan]:
        """Return plans with one thing less, for shrinking; the simplest first."""
        found = [replace(self, faults=self.faults[:i] + self.faults[i + 1 :]) for i in range(len(self.faults))]
        plain = Plan(self.world_size)
        names = ("policy", "strict", "max_restarts", "hosts", "debug", "seed", "backend")
        special = [name for name in names if getattr(self, name) != getattr(plain, name)]
        found += [replace(self, **{name: getattr(plain, name)}) for name in special]
        if self.world_size > 1:
            smaller = self.world_size - 1
            if all(_fits(fault, smaller) for fault in self.faults):
                found.append(replace(self, world_size=smaller, hosts=1))
        return found


def _fits(fault: Fault, world_size: int) -> bool:
    return all(rank < world_size for ranks in fault.named_ranks().values() for rank in ranks)


def draw_plan(seed: int) -> Plan:
    """Return the plan with this number."""
    source = random.Random(f"plan {seed}")
    world_size = source.choice((1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 8, 8, 17))
    plan = Plan(
        world_size,
        seed=source.randrange(1000),
        backend=source.choice(("gloo",) * 5 + ("sim",)),
        policy=source.choice(("fifo", "random")),
        strict=source.choice((None,) * 5 + (True, False)),
        max_restarts=source.choice((0, 0, 0, 1, 1, 2)),
        hosts=source.choice((1, 1, 2)) if world_size % 2 == 0 else 1,
        debug=source.choice(("",) * 9 + ("DETAIL", "INFO")),
    )
    count = source.choice((0, 0, 1, 1, 1, 2, 3))
    return replace(plan, faults=tuple(_draw_fault(source, plan) for _ in range(count)))


def _draw_fault(source: random.Random, plan: Plan) -> Fault:
    # Half of the faults disturb without killing, so that programs go on and reach their later statements.
    kinds: list[Callable[[random.Random, Plan], Fault]] = [
        _slow,
        _crash,
        _hang,
        _raise,
        _store_delay,
        _store_lost,
        _flip,
    ]
    weights = [4, 3, 2, 1, 2, 1, 2]
    if plan.world_size > 1:
        kinds += [_delay, _hold, _partition]
        weights += [4, 2, 2]
    # The event that a random fault waits for may never happen in a random program.
    return replace(source.choices(kinds, weights)[0](source, plan), optional=True)


def _moment(source: random.Random) -> int:
    return source.choice((0, 1, source.randrange(3 * MS), source.randrange(300 * MS), source.randrange(20_000 * MS)))


def _window(source: random.Random) -> dict[str, Any]:
    start = _moment(source)
    return {"start_ns": start, "until_ns": start + source.choice((1, MS, 50 * MS, 3_000 * MS))}


def _trigger(source: random.Random, plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": source.randrange(plan.world_size)}
    way = source.randrange(3)
    if way == 0:
        found["at_ns"] = _moment(source)
    elif way == 1:
        found["at_step"] = source.randrange(8)
    else:
        found["op"] = source.choice(OPERATIONS)
        found["nth"] = source.choice((1, 1, 2, 3, 7))
        found["when"] = source.choice(("before", "during", "after"))
    found["life"] = source.choice((0, 0, 1, None)) if plan.max_restarts else 0
    return found


def _crash(source: random.Random, plan: Plan) -> Fault:
    end = source.choice(({}, {"signal": "SIGABRT"}, {"signal": "SIGTERM"}, {"exit_code": 3}, {"exit_code": 0}))
    return Crash(**_trigger(source, plan), **end)


def _hang(source: random.Random, plan: Plan) -> Fault:
    return Hang(**_trigger(source, plan), duration_ns=source.choice((MS, 100 * MS, 10_000 * MS, None)))


def _raise(source: random.Random, plan: Plan) -> Fault:
    trigger = _trigger(source, plan)
    if trigger.pop("at_ns", None) is not None:
        trigger["at_step"] = 1
    trigger["when"] = "before"
    return Raise(**trigger, error=source.choice(("RuntimeError", "ValueError", "OSError", "DistBackendError")))


def _slow(source: random.Random, plan: Plan) -> Fault:
    delay = source.choice((1, MS, 20 * MS, 700 * MS))
    return SlowRank(rank=source.randrange(plan.world_size), delay_ns=delay, **_window(source))


def _two(source: random.Random, plan: Plan) -> dict[str, Any]:
    src, dst = source.sample(range(plan.world_size), 2)
    return {"src": src, "dst": dst, "both_ways": source.random() < 0.5}


def _delay(source: random.Random, plan: Plan) -> Fault:
    return LinkDelay(delay_ns=source.choice((1, MS, 30 * MS)), **_two(source, plan), **_window(source))


def _hold(source: random.Random, plan: Plan) -> Fault:
    return Hold(**_two(source, plan), **_window(source))


def _partition(source: random.Random, plan: Plan) -> Fault:
    ranks = list(range(plan.world_size))
    source.shuffle(ranks)
    cut = source.randrange(1, plan.world_size)
    return Partition(groups=(tuple(sorted(ranks[:cut])), tuple(sorted(ranks[cut:]))), **_window(source))


def _store_delay(source: random.Random, plan: Plan) -> Fault:
    rank = source.choice((None, source.randrange(plan.world_size)))
    return StoreDelay(delay_ns=source.choice((1, MS, 200 * MS)), rank=rank, **_window(source))


def _store_lost(source: random.Random, plan: Plan) -> Fault:
    return StoreLost(at_ns=_moment(source))


def _flip(source: random.Random, plan: Plan) -> Fault:
    # Bits of numbers only: with a flipped length or pickle a rank would ask for any amount of memory.
    return BitFlip(
        rank=source.randrange(plan.world_size),
        op=source.choice(("all_reduce", "reduce", "reduce_scatter")),
        nth=source.choice((1, 1, 2, 3)),
        every=source.choice((None, 1)),
        bit=source.randrange(8),
    )
