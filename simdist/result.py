"""What a run leaves behind: plain frozen data, without torch, so that reports and workers can carry it around."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from simdist.errors import DeadlockError, RunFailedError
from simdist.values import repr_of, text_of

__all__ = ["Event", "RankResult", "RunResult", "Status"]

Status = Literal["returned", "raised", "exited", "killed", "hung"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, at one virtual instant.

    `rank` is -1 for what belongs to no rank (a restart, a link fault). `data` depends on `kind`; see `simdist.trace`.
    """

    time_ns: int
    kind: str
    rank: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended, in its last life.

    `value` is what the function returned; `exception` what it raised, the same object; `exit_code` is what a process
    would have shown: 0, 1 after an exception, the argument of `sys.exit`, minus the signal number after a kill, None
    if it still hangs. `ended_ns` is the virtual time of its end, `operations` the number of c10d calls it issued,
    `lives` how often it was started, `waiting` what a hung rank waits for, `where` the line of user code in which a
    hung or killed rank stands ("train.py:12 in step").
    """

    rank: int
    status: Status
    value: Any = None
    exception: BaseException | None = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    ended_ns: int = 0
    operations: int = 0
    lives: int = 1
    waiting: str = ""
    last_operation: str = ""
    where: str = ""

    @property
    def ok(self) -> bool:
        """True if the rank returned, or left with exit code 0."""
        return self.status in ("returned", "exited") and self.exit_code == 0

    def summary(self) -> dict[str, Any]:
        """The result as JSON-ready data; a value that JSON does not know appears as its `repr`."""
        error = self.exception
        return {
            "rank": self.rank,
            "status": self.status,
            "value": _jsonable(self.value),
            "exception": None if error is None else {"type": type(error).__name__, "message": text_of(error)},
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "ended_ns": self.ended_ns,
            "operations": self.operations,
            "lives": self.lives,
            "waiting": self.waiting,
            "where": self.where,
            "last_operation": self.last_operation,
        }


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one world.

    `digest` is a hash over every event; equal digests mean equal runs. `deadlock` is the report of the first cycle of
    ranks that waited for each other, if there was one; with a backend that has timeouts the ranks then went on to
    time out. `replay` is the call or command that repeats the run.
    """

    digest: str
    virtual_time_ns: int
    restarts: int
    ranks: tuple[RankResult, ...]
    events: Sequence[Event] = field(repr=False)
    seed: int = 0
    replay: str = ""
    deadlock: DeadlockError | None = None

    @property
    def ok(self) -> bool:
        """True if every rank returned or exited with code 0."""
        return all(rank.ok for rank in self.ranks)

    @property
    def values(self) -> list[Any]:
        """What each rank's function returned, by rank."""
        return [rank.value for rank in self.ranks]

    def first_failure(self) -> RankResult | None:
        """The rank that failed first in virtual time; ties go to causes rather than effects, then by rank."""
        order = {"killed": 0, "exited": 1, "raised": 2, "hung": 3}
        failed = [rank for rank in self.ranks if not rank.ok]
        return min(failed, key=lambda r: (r.status == "hung", r.ended_ns, order[r.status], r.rank), default=None)

    def raise_for_failure(self) -> None:
        """Do nothing if the run is `ok`.

        Raises:
            RunFailedError: names each failed rank, the virtual time, the operation, the seed and how to replay it; its
                `__cause__` is the first failed rank's exception, or the deadlock.
        """
        first = self.first_failure()
        if first is None:
            return
        failed = [rank for rank in self.ranks if not rank.ok]
        lines = [f"{len(failed)} of {len(self.ranks)} ranks failed (seed {self.seed}); first: {_failure_line(first)}"]
        others = [rank for rank in failed if rank is not first]
        lines += [f"  {_failure_line(rank)}" for rank in others[:8]]
        if len(others) > 8:
            lines.append(f"  and {len(others) - 8} more")
        if self.deadlock is not None:
            lines += ["  " + line for line in str(self.deadlock).splitlines()]
        if first.stderr:
            tail = first.stderr.rstrip().splitlines()[-12:]
            lines += [f"  last stderr of rank {first.rank}:", *(f"    {line}" for line in tail)]
        if self.replay:
            lines.append(f"  replay: {self.replay}")
        raise RunFailedError("\n".join(lines)) from (first.exception or self.deadlock)

    def summary(self) -> dict[str, Any]:
        """The result as JSON-ready data, without the events."""
        return {
            "ok": self.ok,
            "digest": self.digest,
            "virtual_time_ns": self.virtual_time_ns,
            "restarts": self.restarts,
            "seed": self.seed,
            "deadlock": None if self.deadlock is None else str(self.deadlock),
            "ranks": [rank.summary() for rank in self.ranks],
        }


def _failure_line(rank: RankResult) -> str:
    what = {
        "raised": lambda: f"raised {type(rank.exception).__name__}: {_first_line(text_of(rank.exception))}",
        "exited": lambda: f"exited with code {rank.exit_code}",
        "killed": lambda: f"was killed by signal {-(rank.exit_code or 0)}",
        "hung": lambda: f"hangs in {rank.waiting or 'user code'}",
    }[rank.status]()
    where = f", last operation {rank.last_operation}" if rank.last_operation else ""
    return f"rank {rank.rank} {what} at {rank.ended_ns / 1e9:.9f} s{where}"


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _jsonable(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr_of(value)
    return value
