"""Programs that faults strike, and functions that read their runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist.faults import Fault
from simdist.result import Event, RunResult

__all__ = ["COMPUTE_NS", "ELEMENTS", "MS", "ends", "events_of", "run", "statuses", "steps"]

MS = 1_000_000
COMPUTE_NS = 1 * MS
ELEMENTS = 3_000  # enough for every part of the ring


def steps(count: int = 3, timeout_s: float = 10.0) -> list[int]:
    """Compute for a millisecond, then all-reduce, in each step; returns the virtual times at the ends of the steps."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    ends_ns = []
    for index in range(count):
        simdist.step(index)
        time.sleep(COMPUTE_NS / 1e9)
        dist.all_reduce(torch.ones(ELEMENTS))
        ends_ns.append(time.monotonic_ns())
    return ends_ns


def run(*faults: Fault, world_size: int = 3, count: int = 3, timeout_s: float = 10.0, **arguments: Any) -> RunResult:
    """Run `steps` with faults."""
    return simdist.run(steps, world_size=world_size, args=(count, timeout_s), faults=faults, **arguments)


def statuses(result: RunResult) -> list[str]:
    return [rank.status for rank in result.ranks]


def ends(result: RunResult) -> list[tuple[str, int | None, int]]:
    return [(rank.status, rank.exit_code, rank.ended_ns) for rank in result.ranks]


def events_of(result: RunResult, *kinds: str, ranks: Sequence[int] | None = None) -> list[Event]:
    return [event for event in result.events if event.kind in kinds and (ranks is None or event.rank in ranks)]
