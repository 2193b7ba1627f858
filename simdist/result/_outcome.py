"""The parts of a run's result: plain frozen data, without torch, so that reports and workers can pass it around."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal

from simdist.errors import DeadlockError
from simdist.values import Json, repr_of, text_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
else:  # `typing.TypeVar` has no defaults before Python 3.13
    from typing import TypeVar

    Value = TypeVar("Value")

__all__ = ["Event", "FaultResult", "JudgeFinding", "Outcome", "RankResult", "Status", "Value", "first_to_fail"]

Status = Literal["returned", "raised", "exited", "killed", "hung"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, at one virtual instant.

    `rank` is -1 for what belongs to no rank (a restart, a link fault). `data` depends on `kind`; see `simdist.trace`.
    """

    time_ns: int
    kind: str
    rank: int
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class RankResult(Generic[Value]):
    """How one rank ended, in its last life.

    `value` is what the function returned; `exception` what it raised, the same object; `exit_code` is that of a real
    process: 0, 1 after an exception, the argument of `sys.exit`, minus the signal number after a kill, None if it still
    hangs. `ended_ns` is the virtual time of its end, `operations` the number of c10d calls it issued, `lives` how often
    it was started, `waiting` what a hung rank waits for, `where` the line of user code in which a rank raised, hangs or
    was killed ("train.py:12 in step").
    """

    rank: int
    status: Status
    value: Value
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

    def summary(self) -> dict[str, Json]:
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
class FaultResult:
    """What became of one fault.

    `call` is the fault as a Python call, `called` its name in reports, `rank` the rank that it strikes (-1: no
    particular one). `required` is False if it need not strike: it is `optional`, or was lifted. `struck_ns` has each
    time at which it struck, or began; `ended` has what it did to processes, for good or for a while, as (rank, life,
    "killed", "exited" or "hung").
    """

    call: str
    called: str
    kind: str
    rank: int
    required: bool = True
    struck_ns: tuple[int, ...] = ()
    ended: tuple[tuple[int, int, str], ...] = ()

    @property
    def struck(self) -> bool:
        """True if it struck at all."""
        return bool(self.struck_ns)

    @property
    def ok(self) -> bool:
        """True if it struck, or need not."""
        return self.struck or not self.required

    def summary(self) -> dict[str, Json]:
        """The result as JSON-ready data."""
        return {
            "fault": self.call,
            "kind": self.kind,
            "rank": self.rank,
            "required": self.required,
            "struck_ns": list(self.struck_ns),
        }


@dataclass(frozen=True, slots=True)
class JudgeFinding:
    """A problem that a judge found, at the first moment at which its condition did not hold.

    `problem` says what is wrong; `rank` is the rank to blame (-1: no particular one), in its life `life`. `step` is the
    step as the program counts them (`simdist.step`), else that of the optimizer, from 0; None before the first.
    `subject` is the tensor, key or file. `where` is the line of the program on that rank ("train.py:12 in step"),
    `against` the line on the ranks that did it right. `notes` are explanations.
    """

    judge: str
    problem: str
    rank: int = -1
    life: int = 0
    time_ns: int = 0
    step: int | None = None
    subject: str = ""
    where: str = ""
    against: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The finding as lines of a report."""
        words = [
            *([f"rank {self.rank}"] if self.rank >= 0 else []),
            *([f"life {self.life}"] if self.life else []),
            *([f"step {self.step}"] if self.step is not None else []),
            *([self.where] if self.where else []),
        ]
        head = f"judge {self.judge}{': ' if words else ''}{', '.join(words)}"
        other = [f"against: {self.against}"] if self.against else []
        return [head, f"    {self.problem}", *(f"    {line}" for line in (*other, *self.notes))]

    def summary(self) -> dict[str, Json]:
        """The finding as JSON-ready data."""
        return {
            "judge": self.judge,
            "problem": self.problem,
            "rank": self.rank,
            "life": self.life,
            "time_ns": self.time_ns,
            "step": self.step,
            "subject": self.subject,
            "where": self.where,
            "against": self.against,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """The outcome of one world, from which its report is made; the fields are those of `RunResult`."""

    digest: str
    virtual_time_ns: int
    restarts: int
    ranks: tuple[RankResult[Value], ...]
    events: Sequence[Event] = field(repr=False)
    seed: int = 0
    replay: str = ""
    deadlock: DeadlockError | None = None
    backend: str = ""
    policy: str = ""
    strict: bool = False
    faults: tuple[FaultResult, ...] = ()
    shared_state: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    findings: tuple[JudgeFinding, ...] = ()
    sometimes: tuple[tuple[str, bool], ...] = ()
    backends: tuple[str, ...] = ()


def first_to_fail(ranks: Sequence[RankResult[Value]]) -> RankResult[Value] | None:
    """The rank that failed first in virtual time; ties go to causes rather than effects, then by rank."""
    order = {"killed": 0, "exited": 1, "raised": 2, "hung": 3}
    failed = [rank for rank in ranks if not rank.ok]
    return min(failed, key=lambda r: (r.status == "hung", r.ended_ns, order[r.status], r.rank), default=None)


def _jsonable(value: object) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr_of(value)
    return value
