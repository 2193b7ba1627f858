"""torchrun's messages at the end of a failed job, with its own wording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from simdist.launch._logs import error_file
from simdist.launch._plan import Launch
from simdist.result import Event, RankResult, RunResult
from simdist.settings import START_TIME
from simdist.values import format_duration

__all__ = ["failure_summary", "restart_lines"]


class _Failed(ChildFailedError):
    """torchrun's error, with the names of simulated hosts."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure], host: str) -> None:
        self._host = host
        super().__init__(name, failures)

    def _format_failure(self, idx: int, rank: int, failure: ProcessFailure) -> tuple[str, int]:
        text, _ = super()._format_failure(idx, rank, failure)
        text = re.sub(r"^(  host      : ).*$", lambda found: found[1] + self._host, text, count=1, flags=re.MULTILINE)
        return text, max(len(line) for line in text.split("\n"))


def failure_summary(plan: Launch, result: RunResult, folder: str) -> str:
    """Return the message of the `ChildFailedError` that each node's agent raises; "" if no worker failed."""
    begun: dict[int, Event] = {}
    for event in result.events:
        if event.kind == "start":
            begun[event.rank] = event
    life = result.ranks[0].lives - 1 if result.ranks else 0
    nodes: dict[str, list[RankResult]] = {}
    for rank in result.ranks:
        nodes.setdefault(str(begun[rank.rank].data["host"]), []).append(rank)
    said = []
    for number, (host, ranks) in enumerate(nodes.items()):
        inside = str(Path(folder) / f"node_{number}") if plan.nodes > 1 else folder
        failed = sorted((rank for rank in ranks if rank.exit_code), key=_when)
        failures = {
            rank.rank: failure
            for rank in failed
            for failure in _failure(
                rank, ranks.index(rank), begun[rank.rank], error_file(inside, life, ranks.index(rank))
            )
        }
        if failures:
            said.append(str(_Failed(plan.script, failures, host)))
    return "\n".join(said)


def restart_lines(result: RunResult) -> Iterator[str]:
    """Yield a sentence for each restart: which rank had failed first, if any, and when all ranks began again."""
    failed: Event | None = None  # the first in the current life
    for event in result.events:
        if event.kind == "exit" and event.data["exit_code"]:
            failed = failed or event
        elif event.kind == "restart":
            again = f"all ranks were restarted at {format_duration(event.time_ns)}"
            if failed is None:
                yield again
            else:
                end = f"ended with exit code {failed.data['exit_code']} at {format_duration(failed.time_ns)}"
                yield f"rank {failed.rank} {end}; {again}"
            failed = None


def _when(rank: RankResult) -> tuple[int, int]:
    return rank.ended_ns, rank.rank


def _failure(rank: RankResult, local_rank: int, begun: Event, file: str) -> Iterator[ProcessFailure]:
    pid: Any = begun.data["pid"]
    failure = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=rank.exit_code or 0, error_file=file)
    failure.timestamp = int(START_TIME.timestamp()) + rank.ended_ns // 10**9
    yield failure
