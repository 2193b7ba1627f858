"""Finds which ranks wait for which at one moment, from a trace of a simulated run or of real processes.

A rank waits in an operation that has begun and whose data does not flow yet. In a collective it waits for the members
of the group that have not called it, then for those that called it and died; in a broadcast or a scatter for the root
alone while the root is missing. In a message it waits for the other end.

In doubt: a rank that has only asynchronous operations open may compute meanwhile. It counts as waiting, unless it
sleeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simdist.c10d.calls import FROM_ROOT, MESSAGES
from simdist.result import Event, Span
from simdist.trace._messages import Groups
from simdist.trace._trace import Trace

__all__ = ["Waiting", "moment_of", "waiting_at"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The state of one rank at a moment, and the ranks that it waits for.

    Attributes:
        rank: the rank.
        doing: in words: "all_reduce #3", "recv #0 from 1", "sleeps", "returned", "runs",
            "stopped by a fault", "killed by signal 9".
        since_ns: since when, in virtual nanoseconds.
        ranks: the ranks that it waits for, in ascending order; none if it does not wait.
        has_ended: True if the rank ended before.
    """

    rank: int
    doing: str
    since_ns: int
    ranks: tuple[int, ...] = ()
    has_ended: bool = False


def moment_of(trace: Trace) -> int:
    """Return the moment to look at: when the first deadlock formed, else just before the first failure, else the end.

    A failure is an operation that raised; if none did, one that the end of its rank cut off. In virtual nanoseconds.
    """
    deadlocks = trace.of_kind("deadlock")
    if deadlocks:
        return deadlocks[0].time_ns
    failed = [span.end_ns for span in trace.spans if span.end == "error"]
    failed = failed or [span.end_ns for span in trace.spans if span.end == "cut off" and span.is_operation]
    return max(trace.start_ns, min(failed) - 1) if failed else trace.end_ns


def waiting_at(trace: Trace, time_ns: int) -> list[Waiting]:
    """Return the state of each rank at `time_ns`, in virtual nanoseconds; by rank."""
    last_start = max((mark.time_ns for mark in trace.of_kind("restart") if mark.time_ns <= time_ns), default=-1)
    spans: dict[int, list[Span]] = {rank: [] for rank in trace.ranks}
    for span in trace.spans:
        if last_start <= span.start_ns <= time_ns:
            spans[span.rank].append(span)
    ends = {
        mark.rank: mark for mark in trace.of_kind("exit") if last_start < mark.time_ns <= time_ns and mark.rank >= 0
    }
    called = {_call(span, trace.groups): span for each in spans.values() for span in each if span.is_operation}
    return [_of(rank, spans[rank], ends.get(rank), called, trace, time_ns) for rank in trace.ranks]


_Call = tuple[int, str, str, object]  # rank, group, operation, number


def _call(span: Span, groups: Groups) -> _Call:
    data = span.issue.data
    return span.rank, str(data.get("group")), span.name, data.get("seq")


def _of(
    rank: int, spans: Sequence[Span], end: Event | None, called: dict[_Call, Span], trace: Trace, time_ns: int
) -> Waiting:
    if end is not None:
        return Waiting(rank, _ended(end), end.time_ns, has_ended=True)
    open_now = [span for span in spans if span.end_ns > time_ns or (span.end == "cut off" and time_ns == trace.end_ns)]
    resting = [span for span in open_now if not span.is_operation]
    operations = [span for span in open_now if span.is_operation and not span.is_async]
    if not operations and not resting:
        operations = [span for span in open_now if span.is_operation]
    if not operations:
        if resting:
            return Waiting(rank, "sleeps", resting[0].start_ns)
        last = max((span.end_ns for span in spans if span.end_ns <= time_ns), default=trace.start_ns)
        stop = max((m.time_ns for m in trace.of_kind("fault") if _stops(m, rank) and m.time_ns <= time_ns), default=-1)
        return Waiting(rank, "stopped by a fault", stop) if stop >= last else Waiting(rank, "runs", last)
    waits = [tuple(_awaited(span, called, trace.groups, time_ns)) for span in operations]
    first = next((number for number, ranks in enumerate(waits) if ranks), 0)
    ranks = sorted({other for each in waits for other in each})
    return Waiting(rank, _doing(operations[first], trace.groups), operations[first].start_ns, tuple(ranks))


def _awaited(span: Span, called: dict[_Call, Span], groups: Groups, time_ns: int) -> Iterator[int]:
    if span.begin_ns is not None and span.begin_ns <= time_ns:
        return
    members = groups.members(str(span.issue.data.get("group")), span.start_ns)
    peer = groups.peer(span)
    if span.name in MESSAGES:
        yield from (other for other in ([peer] if peer is not None else members) if other != span.rank)
        return
    _, group, name, number = _call(span, groups)
    missing = [other for other in members if (other, group, name, number) not in called]
    if not missing:
        missing = [other for other in members if _is_dead(called[other, group, name, number], time_ns)]
    if span.name in FROM_ROOT and peer in missing:
        missing = [peer]
    yield from missing


def _stops(fault: Event, rank: int) -> bool:
    return fault.rank == rank and fault.data.get("fault") == "hang"


def _is_dead(span: Span, time_ns: int) -> bool:
    return span.end == "cut off" and span.end_ns <= time_ns


def _doing(span: Span, groups: Groups) -> str:
    peer = groups.peer(span)
    what = f"{span.name} #{span.issue.data.get('seq')}"
    if span.name == "recv":
        return f"{what} from {'any' if peer is None else peer}"
    return f"{what} to {peer}" if span.name == "send" else what


def _ended(end: Event) -> str:
    status, code = str(end.data.get("status", "ended")), end.data.get("exit_code")
    if status == "killed" and isinstance(code, int):
        return f"killed by signal {-code}"
    return f"exited with code {code}" if status == "exited" else status
