"""Did a world do what its test wants: which rank failed first, and the exception that tells it."""

from __future__ import annotations

import signal
import unittest
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import pytest

from simdist.errors import RunFailedError
from simdist.faults import Fault, fault_call, kind_of, rank_of
from simdist.result import RankResult, RunResult
from simdist.values import text_of

__all__ = ["failure_of", "how_it_ended", "is_skip", "primary_of"]

_SKIPS = (pytest.skip.Exception, unittest.SkipTest)
_ENDS_ALL = (pytest.exit.Exception, KeyboardInterrupt)


def failure_of(
    result: RunResult, tracebacks: Mapping[int, TracebackType], faults: Sequence[Fault]
) -> BaseException | None:
    """What to raise for a world; None if it did well.

    A rank that an injected crash or hang has ended did what was asked of it. `faults` are those that must have struck;
    `tracebacks` tell where the ranks stand that did not end by themselves.
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
        return _never_struck(result, faults)
    if is_skip(first.exception):
        return _disagreement(skipped, left)
    if first.exception is not None:
        return first.exception
    if first.status == "hung" and result.deadlock is not None:
        error: BaseException = result.deadlock
    else:
        error = RunFailedError(f"rank {first.rank} {how_it_ended(first)}")
    return error.with_traceback(tracebacks.get(first.rank))


def primary_of(result: RunResult) -> RankResult | None:
    """The rank that failed first, apart from those that an injected fault has ended."""
    return replace(result, ranks=tuple(_left_alone(result))).first_failure()


def is_skip(error: BaseException | None) -> bool:
    """True if it is pytest's or unittest's way to skip."""
    return isinstance(error, _SKIPS)


def how_it_ended(rank: RankResult) -> str:
    """What became of a rank, as the rest of a sentence."""
    code = rank.exit_code or 0
    if rank.status == "killed":
        return f"was killed by {signal.Signals(-code).name}"
    if rank.status == "exited":
        return f"left with exit code {code}"
    if rank.status == "hung":
        return f"hangs for good in {rank.waiting or 'its own code'}"
    if is_skip(rank.exception):
        return f"skipped: {rank.exception}"
    return "returned" if rank.exception is None else f"raised {_first_line(rank.exception)}"


def _first_line(error: BaseException) -> str:
    from simdist.scenario import without_source

    text = without_source(text_of(error).strip())
    name = type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name


def _left_alone(result: RunResult) -> list[RankResult]:
    struck = {
        (str(event.data.get("fault")), event.rank, event.data.get("life"))
        for event in result.events
        if event.kind == "fault"
    }
    ends = {"killed": "crash", "exited": "crash", "hung": "hang"}
    return [rank for rank in result.ranks if (ends.get(rank.status), rank.rank, rank.lives - 1) not in struck]


def _disagreement(skipped: Sequence[RankResult], all_ranks: Sequence[RankResult]) -> BaseException:
    first = skipped[0]
    ranks = ", ".join(str(rank.rank) for rank in skipped)
    return pytest.fail.Exception(
        f"{'rank' if len(skipped) == 1 else 'ranks'} {ranks} of {len(all_ranks)} skipped ({first.exception}), "
        "the others went on; either every rank skips a test, or none: a rank that has nothing to check returns"
    )


def _never_struck(result: RunResult, faults: Sequence[Fault]) -> BaseException | None:
    events = [event for event in result.events if event.kind == "fault"]
    struck = Counter((str(event.data.get("fault")), event.rank) for event in events)
    anywhere = Counter(str(event.data.get("fault")) for event in events)
    missing = []
    for fault in faults:
        kind = kind_of(fault)
        rank = rank_of(fault)
        if rank is not None:
            found = struck[kind, rank]
            struck[kind, rank] -= 1
        else:
            found = anywhere[kind]
            anywhere[kind] -= 1
        if found < 1:
            missing.append(fault)
    if not missing:
        return None
    return pytest.fail.Exception(
        f"every rank did well, but {fault_call(missing[0])} never struck: what it waits for did not happen"
    )
