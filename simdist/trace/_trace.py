"""A run as pictures and tables need it: spans, and marks for everything without a length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simdist.result import Event, RunResult, Span, spans_of
from simdist.trace._messages import Groups

__all__ = ["IN_SPANS", "Trace", "trace_of", "trace_of_events"]

# Kinds that spans show; every other kind, known or not, is a mark.
IN_SPANS = ("issue", "complete", "error", "sleep", "delay")


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans and marks from `start_ns` to `end_ns`; the same from a run, its event lines, or its Chrome trace."""

    spans: tuple[Span, ...]
    marks: tuple[Event, ...]
    start_ns: int
    end_ns: int
    seed: int | None = None  # None: the file does not say
    _by_kind: Mapping[str, list[Event]] = field(init=False, repr=False, compare=False)  # the marks
    _groups: Groups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_kind: dict[str, list[Event]] = {}
        for mark in self.marks:
            by_kind.setdefault(mark.kind, []).append(mark)
        object.__setattr__(self, "_by_kind", by_kind)
        object.__setattr__(self, "_groups", Groups(by_kind.get("group", ())))

    @property
    def ranks(self) -> list[int]:
        """Every rank that has a span or a mark."""
        return sorted({s.rank for s in self.spans} | {m.rank for m in self.marks if m.rank >= 0})

    @property
    def groups(self) -> Groups:
        """The groups of the run."""
        return self._groups

    def of_kind(self, kind: str) -> Sequence[Event]:
        """Return the marks of this kind, in order."""
        return self._by_kind.get(kind, ())

    def only(
        self,
        *,
        ranks: Sequence[int] = (),
        groups: Sequence[str] = (),
        from_ns: int | None = None,
        to_ns: int | None = None,
    ) -> Trace:
        """Return the part of these ranks, in these groups (by name or description), in this span of time.

        Spans and marks of no rank, and the marks that name the groups, stay. An operation that is only partly inside
        stays whole; spans without a group (a sleep, a fault) pass the filter by group.
        """
        start, end = self.start_ns if from_ns is None else from_ns, self.end_ns if to_ns is None else to_ns
        names = set(groups) | {name for name, desc in self.groups.descriptions.items() if desc in groups}
        spans = [
            span
            for span in self.spans
            if (not ranks or span.rank in ranks)
            and (not groups or not span.is_operation or str(span.issue.data.get("group")) in names)
            and span.start_ns <= end
            and span.end_ns >= start
        ]
        marks = [
            mark
            for mark in self.marks
            if mark.kind == "group"
            or ((not ranks or mark.rank < 0 or mark.rank in ranks) and start <= mark.time_ns <= end)
        ]
        return replace(self, spans=tuple(spans), marks=tuple(marks), start_ns=start, end_ns=min(end, self.end_ns))


def trace_of(result: RunResult) -> Trace:
    """Return the trace of a run."""
    return trace_of_events(result.events, result.virtual_time_ns, result.seed)


def trace_of_events(events: Sequence[Event], end_ns: int, seed: int | None = None) -> Trace:
    """Return the trace of these events, of a run that ended at `end_ns`."""
    marks = [event for event in events if event.kind not in IN_SPANS]
    return Trace(tuple(spans_of(events, end_ns)), tuple(marks), 0, end_ns, seed)
