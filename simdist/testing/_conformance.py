"""Run existing multi-process test classes, simulated or real, and report on each test."""

from __future__ import annotations

import io
import re
import time
import unittest
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Literal

from simdist.result import RunResult

__all__ = ["Outcome", "Report", "run_tests"]

Verdict = Literal["pass", "fail", "skip"]

_real_seconds = time.perf_counter


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test: its verdict, the reason unless it passed, and the real seconds it took."""

    name: str
    verdict: Verdict
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcomes of one test class."""

    title: str
    outcomes: tuple[Outcome, ...]

    @property
    def seconds(self) -> float:
        """Real time of all tests in total."""
        return sum(outcome.seconds for outcome in self.outcomes)

    def names(self, verdict: Verdict) -> list[str]:
        """Return the tests with this verdict."""
        return [outcome.name for outcome in self.outcomes if outcome.verdict == verdict]


def run_tests(
    case: type[unittest.TestCase],
    title: str,
    *,
    patterns: Sequence[str] = (),
    only: Iterable[str] | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Report:
    """Run the tests of `case` one after the other.

    Args:
        case: a class derived from torch's `MultiProcessTestCase`, simulated or not.
        title: the name of the report.
        patterns: regular expressions; a test runs if one of them is found in its name. Empty: all.
        only: names of tests; None: all.
        on_outcome: called after each test.
    """
    names = unittest.TestLoader().getTestCaseNames(case)
    wanted = None if only is None else set(only)
    outcomes = []
    for name in names:
        if patterns and not any(re.search(pattern, name) for pattern in patterns):
            continue
        if wanted is not None and name not in wanted:
            continue
        outcome = _run_test(case, name)
        outcomes.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
    return Report(title, tuple(outcomes))


def _run_test(case: type[unittest.TestCase], name: str) -> Outcome:
    test = case(name)
    result = unittest.TestResult()
    start = _real_seconds()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        case.setUpClass()
        try:
            test.run(result)
        finally:
            case.tearDownClass()
    seconds = _real_seconds() - start
    if result.errors or result.failures:
        return Outcome(name, "fail", _reason((result.errors + result.failures)[0][1], test), seconds)
    if result.skipped:
        return Outcome(name, "skip", result.skipped[0][1], seconds)
    return Outcome(name, "pass", "", seconds)


def _reason(text: str, test: unittest.TestCase) -> str:
    # The last line that is neither empty nor advice on how to repeat the test.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    advice = ("To execute this test", "python ", "This message can be suppressed")
    reported = [line for line in lines if not line.startswith(advice)]
    reason = reported[-1] if reported else "no message"
    simulation: RunResult | None = getattr(test, "simulation", None)
    failed = simulation.first_failure() if simulation is not None else None
    if failed is not None and failed.exception is not None:
        reason += f"; rank {failed.rank}: {type(failed.exception).__name__}: {str(failed.exception)[:200]}"
    return reason
