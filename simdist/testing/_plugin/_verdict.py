"""Decides whether a world passed: which rank failed first, and the exception that says so."""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import pytest

from simdist.errors import RunFailedError
from simdist.result import RankResult, RunResult, how_it_ended

__all__ = ["ended", "failure_of", "is_skip", "primary_of"]

_SKIPS = (pytest.skip.Exception, unittest.SkipTest)
_ENDS_ALL = (pytest.exit.Exception, KeyboardInterrupt)


def failure_of(result: RunResult, tracebacks: Mapping[int, TracebackType]) -> BaseException | None:
    """Return the exception to raise for a world; None if it passed.

    A rank that an injected fault killed or stopped did not fail. A fault that never struck is a failure, unless it is
    optional; a judge's finding is one too. `tracebacks` show where those ranks are that did not end themselves.
    """
    for rank in result.ranks:
        if isinstance(rank.exception, _ENDS_ALL):
            return rank.exception
    left = _left_alone(result)
    skipped = [rank for rank in left if is_skip(rank.exception)]
    if skipped and len(skipped) == len(left):
        return skipped[0].exception
    first = primary_of(result)
    if first is None:
        return _never_struck(result) or _found(result)
    if is_skip(first.exception):
        return _disagreement(skipped, left)
    if first.exception is not None:
        return first.exception
    if first.status == "hung" and result.deadlock is not None:
        error: BaseException = result.deadlock
    else:
        error = RunFailedError(f"rank {first.rank} {ended(first)}")
    return error.with_traceback(tracebacks.get(first.rank))


def primary_of(result: RunResult) -> RankResult | None:
    """Return the rank that failed first, apart from those that an injected fault has ended."""
    return replace(result, ranks=tuple(_left_alone(result))).first_failure()


def is_skip(error: BaseException | None) -> bool:
    """True if it is pytest's or unittest's exception for a skip."""
    return isinstance(error, _SKIPS)


def ended(rank: RankResult) -> str:
    """Return how a rank ended, as the rest of a sentence."""
    return f"skipped: {rank.exception}" if is_skip(rank.exception) else how_it_ended(rank)


def _left_alone(result: RunResult) -> list[RankResult]:
    asked = {each for fault in result.faults for each in fault.ended}
    return [rank for rank in result.ranks if (rank.rank, rank.lives - 1, rank.status) not in asked]


def _disagreement(skipped: Sequence[RankResult], all_ranks: Sequence[RankResult]) -> BaseException:
    first = skipped[0]
    ranks = ", ".join(str(rank.rank) for rank in skipped)
    return pytest.fail.Exception(
        f"{'rank' if len(skipped) == 1 else 'ranks'} {ranks} of {len(all_ranks)} skipped ({first.exception}), "
        "the others went on; either every rank skips a test, or none: a rank that has nothing to check returns"
    )


def _found(result: RunResult) -> BaseException | None:
    """Return the first finding of the judges as the test's failure; the report below it has the rest."""
    if not result.findings:
        return None
    finding = result.findings[0]
    who = f"rank {finding.rank}" if finding.rank >= 0 else "the ranks"
    where = f" at {finding.where}" if finding.where else ""
    return pytest.fail.Exception(f"judge {finding.judge} found, on {who}{where}: {finding.problem}")


def _never_struck(result: RunResult) -> BaseException | None:
    idle = [fault.call for fault in result.faults if not fault.ok]
    if not idle:
        return None
    return pytest.fail.Exception(
        f"every rank did well, but {' and '.join(idle)} never struck: what "
        f"{'it waits' if len(idle) == 1 else 'they wait'} for did not happen; a fault that need not strike is given "
        "optional=True"
    )
