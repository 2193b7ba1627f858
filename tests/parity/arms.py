"""The two arms of a parity test: one body, simulated and real, with outcomes that can be compared."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from tests.bits.run import digest
from tests.real_gloo import RealOutcome, RealWorld

__all__ = [
    "Case",
    "Entry",
    "Log",
    "differences_between",
    "digest",
    "simulated",
    "story_test",
    "template",
]


def simulated(
    body: Callable[..., Any], world_size: int, *, args: Sequence[Any] = (), faults: Sequence[Any] = ()
) -> list[RealOutcome]:
    """Run the body in a simulated world and return each rank's outcome in the same words as the real arm.

    Rank 0 hosts the store in both arms.
    """
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    result = simdist.run(body, world_size=world_size, args=tuple(args), faults=tuple(faults), env=environ)
    return [
        RealOutcome(
            rank.status,
            rank.value,
            None if rank.exception is None else type(rank.exception).__name__,
            "" if rank.exception is None else str(rank.exception),
            rank.exit_code,
            rank.ended_ns / 1e9,
        )
        for rank in result.ranks
    ]


@dataclass(frozen=True, slots=True)
class Case:
    """One body and its world."""

    name: str
    body: Callable[[], Any]
    world_size: int


class Realities:
    """The outcomes of many cases on real Gloo; runs some worlds at a time, since they mostly sleep."""

    def __init__(self, cases: Sequence[Case], at_once: int = 4) -> None:
        self._waiting = {case.name: case for case in cases}
        self._outcomes: dict[str, list[RealOutcome]] = {}
        self._at_once = at_once

    def of(self, case: Case) -> list[RealOutcome]:
        """Return the outcomes of a case; the first call for a case runs it together with the cases that follow it."""
        if case.name not in self._outcomes:
            names = list(self._waiting)
            first = names.index(case.name)
            self._run([self._waiting.pop(name) for name in names[first : first + self._at_once]])
        return self._outcomes[case.name]

    def again(self, case: Case) -> list[RealOutcome]:
        """Return the outcomes of another run, without any other world at the same time."""
        self._run([case])
        return self._outcomes[case.name]

    def _run(self, cases: Sequence[Case]) -> None:
        with ExitStack() as stack:
            worlds = [stack.enter_context(RealWorld(case.body, case.world_size, timeout_s=20)) for case in cases]
            for case, world in zip(cases, worlds, strict=True):
                self._outcomes[case.name] = world.finish()


def template(message: str) -> str:
    """Remove from a message what differs between builds and runs: source locations, addresses, times of a logger.

    Milliseconds are rounded to 50: on real processes the rest of a timeout is a little less than the timeout.
    """
    message = re.sub(r"\[(/|enforce fail at )[^\]]*\.cc:\d+\] ", "", message)
    message = re.sub(r"\[rank\d+\]:\[[A-Z]\d{4} [\d:. ]+ [\w.]+:\d+\] ", "", message)
    message = re.sub(r"\[[\w:.]+\]:\d+(\$\d+)?", "[host]:port", message)
    message = re.sub(r"0x[0-9a-f]+", "0x", message)
    message = re.sub(r"support[\x00-\x1f]?on complex", "support on complex", message)  # torch prints an enum as a char
    message = re.sub(r"\(127\.0\.0\.1, \d+\)", "(host, port)", message)
    return re.sub(r"(waiting|in) (\d+) ?ms", lambda found: f"{found[1]} {50 * round(int(found[2]) / 50)} ms", message)


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a body: its outcome ("ok" or the exception's type), its text, and when it ended."""

    name: str
    outcome: str
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} at {self.seconds:.3f} s: {self.outcome} {self.text}"


@dataclass(slots=True)
class Log:
    """The calls of a rank. `seconds` count from the barrier at the start of the world."""

    entries: list[Entry] = field(default_factory=list)
    zero: float = 0.0

    @classmethod
    def of_world(cls, timeout_s: float) -> Log:
        """Join the world and start the clock."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        dist.barrier()
        return cls(zero=time.monotonic())

    def call(self, name: str, call: Callable[[], object], show: Callable[[Any], str] = lambda value: "") -> Any:
        """Call a function and record the outcome; returns None after an exception."""
        try:
            value = call()
        except Exception as error:
            self._add(name, type(error).__name__, template(str(error)))
            return None
        self._add(name, "ok", show(value))
        return value

    def since_the_one_before(self, index: int) -> float:
        """Return the seconds from the end of the call before, or from the start, to the end of this one."""
        return self.entries[index].seconds - (self.entries[index - 1].seconds if index else 0.0)

    def sleep_until(self, seconds: float) -> None:
        """Sleep until `seconds` after the start."""
        time.sleep(max(0.0, self.zero + seconds - time.monotonic()))

    def _add(self, name: str, outcome: str, text: str) -> None:
        self.entries.append(Entry(name, outcome, text, time.monotonic() - self.zero))


# A rank that closed its connections after its own timeout, and one whose peer did so first, report the same event
# differently; which of the two a rank reports is a race between processes.
_BROKEN = (
    "Application timeout caused pair closure",
    "Connection closed by peer",
    "Read error",
    "Timed out waiting",
)


# The allowed distance of a call's moments: a tenth, or the time in which a busy machine gets to run a process.
_RELATIVE, _ABSOLUTE_S = 0.1, 0.05
_RUNS = 5


def assert_same_story(case: Case, realities: Realities) -> None:
    """Run a case in both arms and compare rank by rank: status, exit code, and each call's outcome, text and moment.

    An entry whose name ends in "~" need not have the same text as long as both say that the connection is broken or
    timed out. Real processes on a busy machine can fail: a rendezvous takes longer than the timeout, a connection is
    reset instead of closed, a process waits for the processor. So the simulation is compared with up to five runs. It
    must have the same outcomes as one of them. The moment of a call must match the earliest of the runs with these
    outcomes, because disturbances only make a process late.
    """
    simulation = simulated(case.body, case.world_size)
    runs = [realities.of(case)]
    while differences := differences_between(simulation, runs):
        assert len(runs) < _RUNS, "\n".join(["simulation and reality differ:", *differences])
        runs.append(realities.again(case))


def story_test(cases: Sequence[Case]) -> Callable[[Case], None]:
    """Return the test of a module that each of its cases ends alike in both arms."""
    realities = Realities(cases)

    @pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])
    def test(case: Case) -> None:
        assert_same_story(case, realities)

    return test


def differences_between(simulation: Sequence[RealOutcome], runs: Sequence[Sequence[RealOutcome]]) -> list[str]:
    """Return a text for each rank's outcome or call that differs between the simulation and the real runs."""
    different = [_different_stories(simulation, reality) for reality in runs]
    alike = [reality for reality, differences in zip(runs, different, strict=True) if not differences]
    return _different_moments(simulation, alike) if alike else different[-1]


def _different_stories(simulation: Sequence[RealOutcome], reality: Sequence[RealOutcome]) -> list[str]:
    differences = []
    for rank, (ours, theirs) in enumerate(zip(simulation, reality, strict=True)):
        if (ours.status, ours.exit_code, ours.exception_type) != (
            theirs.status,
            theirs.exit_code,
            theirs.exception_type,
        ):
            differences.append(
                f"rank {rank}: simulated {ours.status} {ours.exit_code} {ours.exception_type} {ours.message}, "
                f"real {theirs.status} {theirs.exit_code} {theirs.exception_type} {theirs.message}"
            )
        elif isinstance(ours.value, Log) and isinstance(theirs.value, Log):
            pairs = zip(ours.value.entries, theirs.value.entries, strict=True)
            differences += [
                f"rank {rank}\n    simulated {mine}\n    real      {other}"
                for mine, other in pairs
                if not _same_call(mine, other)
            ]
        elif template(ours.message) != template(theirs.message):
            differences.append(f"rank {rank}: simulated {ours.message!r}, real {theirs.message!r}")
    return differences


def _same_call(mine: Entry, other: Entry) -> bool:
    if mine.name.endswith("~"):
        both_broken = mine.text.startswith(_BROKEN) and other.text.startswith(_BROKEN)
        return mine.outcome == other.outcome and (both_broken or mine.text == other.text)
    return (mine.name, mine.outcome, mine.text) == (other.name, other.outcome, other.text)


def _different_moments(simulation: Sequence[RealOutcome], runs: Sequence[Sequence[RealOutcome]]) -> list[str]:
    differences = []
    for rank, ours in enumerate(simulation):
        if not isinstance(ours.value, Log):
            continue
        logs = [run[rank].value for run in runs]
        for index, mine in enumerate(ours.value.entries):
            # The machine's time for many calls in a row adds up, so the time since the call before may match instead.
            moments = [log.entries[index].seconds for log in logs]
            spans = [log.since_the_one_before(index) for log in logs]
            if not _close(mine.seconds, min(moments)) and not _close(
                ours.value.since_the_one_before(index), min(spans)
            ):
                real = ", ".join(f"{seconds:.3f}" for seconds in moments)
                differences.append(f"rank {rank}\n    simulated {mine}\n    real      at {real} s")
    return differences


def _close(simulated_s: float, real_s: float) -> bool:
    return math.isclose(simulated_s, real_s, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE_S)
