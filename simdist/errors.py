"""All errors that simdist raises.

A *simulated* failure has torch's own exception type, so user code catches it as in production. The classes here are for
misuse (`SimdistError` and its children) and for facts known only to a simulator: a deadlock, a stall, a run that
failed. `InternalError` means that an invariant of simdist broke. `InterruptedRunsError` is a KeyboardInterrupt with the
report of the interrupted runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

__all__ = ["ArgumentError", "DeadlockError", "FaultError", "InternalError", "InterruptedRunsError"]
__all__ += ["LivelockError", "MismatchError", "RunFailedError", "ScenarioError", "SimdistError", "StallError"]
__all__ += ["StrictError", "ThreadLimitError", "TopologyError", "TraceError", "UnsupportedError"]

Report = TypeVar("Report")


class SimdistError(Exception):
    """Base of all errors about the use of simdist."""


class InternalError(SimdistError):
    """A broken invariant of simdist."""

    def __str__(self) -> str:
        return f"{super().__str__()} (this is a bug in simdist, please report it)"


class UnsupportedError(SimdistError, NotImplementedError):
    """The real backend supports a feature and the simulation does not yet; the text names it and an alternative."""

    _made: ClassVar[dict[str, None]] = {}  # the texts of all

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._made[str(self)] = None

    @classmethod
    def take_texts(cls) -> tuple[str, ...]:
        """Return the texts of those that were made since the last call: a program may have caught some."""
        texts = tuple(cls._made)
        cls._made.clear()
        return texts


class ArgumentError(SimdistError, ValueError, TypeError):
    """Invalid arguments of a call. `call` is the called function, `problems` has one line for each problem."""

    def __init__(self, call: str, problems: Sequence[str]) -> None:
        super().__init__(call, tuple(problems))
        self.call = call
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.call}: {self.problems[0]}"
        return _problem_text(self.call, self.problems)


class TopologyError(SimdistError, ValueError):
    """An inconsistent cluster description, or a rank or host that it lacks."""


class FaultError(SimdistError, ValueError):
    """A fault that does not fit its world. `problems` holds one line for each fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return self.problems[0] if len(self.problems) == 1 else _problem_text("faults", self.problems)


class ScenarioError(SimdistError, ValueError):
    """Bad scenario input. `source` is the file, `problems` has one line for each problem."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        super().__init__(source, tuple(problems))
        self.source = source
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return _problem_text(self.source, self.problems)


class TraceError(SimdistError, ValueError):
    """A file that is not a trace of simdist. `source` is the file, `problem` describes why."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(source, problem)
        self.source = source
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"


class DeadlockError(SimdistError):
    """Ranks wait for each other in a cycle. `report` is the full description, `cycle` the ranks in waiting order."""

    def __init__(self, report: str, cycle: Sequence[str], time_ns: int) -> None:
        super().__init__(report, tuple(cycle), time_ns)
        self.report = report
        self.cycle = tuple(cycle)
        self.time_ns = time_ns

    def __str__(self) -> str:
        return self.report


class LivelockError(SimdistError):
    """Ranks poll or sleep for ever, and nothing else happens. The text names each rank and its line of code."""


class StallError(SimdistError):
    """A rank kept the baton for too long in real time: it blocks on an event outside the simulation.

    Or it `computes`, for several times as long as `stall_s`. `left_behind` names the ranks whose threads could not be
    ended: each still blocks, and ends when its call returns.
    """

    def __init__(
        self,
        task: str,
        seconds: float,
        stack: str,
        stall_s: float = 30.0,
        computes: bool = False,
        left_behind: Sequence[str] = (),
    ) -> None:
        super().__init__(task, seconds, stack, stall_s, computes, tuple(left_behind))
        self.task = task
        self.seconds = seconds
        self.stack = stack
        self.stall_s = stall_s
        self.computes = computes
        self.left_behind = tuple(left_behind)

    def __str__(self) -> str:
        why = (
            "it computes all the time, or loops for ever"
            if self.computes
            else "it blocks on something outside the simulation"
        )
        lines = [
            f"{self.task} has run for {self.seconds:g} s of real time without giving the baton back; {why}, here:",
            self.stack.removesuffix("\n"),
            "a rank that needs longer gets it with a larger stall_s (of simdist launch --stall-s), in real seconds; it "
            f"was {self.stall_s:g}",
        ]
        if self.left_behind:
            names = ", ".join(self.left_behind)
            lines.append(f"the thread of {names} could not be ended and is left behind; it ends when it comes back")
        return "\n".join(lines)


class ThreadLimitError(SimdistError):
    """The system refuses a thread for a rank: its limit of threads, or of memory, is reached."""


class MismatchError(SimdistError, RuntimeError):
    """Ranks called one collective with arguments that do not fit; the text names every rank's call and call site."""


class StrictError(SimdistError, RuntimeError):
    """A call that the backend accepts in silence and a strict run does not; the text names its line."""


class RunFailedError(SimdistError):
    """A run failed; raised by `RunResult.raise_for_failure`, with the first failure as its cause."""


def _problem_text(source: str, problems: Sequence[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{source}: {count}", *(f"  {problem}" for problem in problems)])


class InterruptedRunsError(KeyboardInterrupt, Generic[Report]):
    """Ctrl-C ended a search, a sweep or many runs. `report` has their results up to then, in their usual form."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
