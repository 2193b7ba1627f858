"""What each rank did: how it ended, its last operations, and what it printed; ranks that did the same together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from simdist.frames import raising_line
from simdist.result._outcome import Event, Outcome, RankResult
from simdist.result._spans import spans_of
from simdist.values import format_duration, number_text, rank_text

__all__ = ["Ended", "Stanza", "stanza_lines", "stanzas_of"]

Ended = Callable[[RankResult], str]
_LAST = 5  # operations and other entries of one rank
_OUTPUT = 12  # lines of all ranks together
_STANZAS = 8
_SHOWS_ALL = {"pytest ": "; -s shows all", "simdist run ": "; --show-output shows all"}  # by the start of the replay
_OUTCOMES = {"complete": "done in", "error": "failed after", "cut off": "never done"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something that a rank did, when it began, and how long it took (None: it has no duration, or never ended)."""

    time_ns: int
    text: str
    outcome: str = ""
    took_ns: int | None = None


@dataclass(slots=True)
class Stanza:
    """Ranks that did the same; `rank` stands for all of them. The times at which they ended may differ a little."""

    rank: RankResult
    where: str  # the line of the user's code in which it ended
    ended: str
    entries: list[_Entry]
    ranks: list[int] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)

    def heading(self, *, is_first: bool) -> str:
        """Who, when, where and how."""
        begin, end = format_duration(min(self.ended_ns)), format_duration(max(self.ended_ns))
        when = begin if begin == end else f"{begin} to {end}"
        first = ["first to fail"] if is_first else []
        words = [rank_text(self.ranks), *first, f"at {when}", *([self.where] if self.where else [])]
        return f"{', '.join(words)}: {self.ended}"


def stanzas_of(
    result: Outcome, first: RankResult | None, tracebacks: Mapping[int, TracebackType], ended: Ended
) -> list[Stanza]:
    """The stanzas: first the rank to blame, then other failures, then the rest."""
    entries = _entries(result)
    stanzas: dict[tuple[object, ...], Stanza] = {}
    for rank in sorted(result.ranks, key=lambda rank: (rank is not first, rank.ok, rank.rank)):
        last = entries.get(rank.rank, [])[-_LAST:]
        how = ended(rank)
        own = (rank is first, rank.status, rank.exit_code, type(rank.exception), re.sub(r"\d+", "0", how))
        did = tuple((entry.text, entry.outcome) for entry in last)
        where = _where(rank, tracebacks.get(rank.rank))
        key = (*own, where, rank.stdout, _own_errors(rank), did)
        stanza = stanzas.setdefault(key, Stanza(rank, where, how, last))
        stanza.ranks.append(rank.rank)
        stanza.ended_ns.append(rank.ended_ns)
    return list(stanzas.values())


def stanza_lines(stanzas: Sequence[Stanza], first: RankResult | None, room: int, replay: str) -> list[str]:
    """The stanzas in about `room` lines; a last line names the ranks that do not fit."""
    hint = next((words for start, words in _SHOWS_ALL.items() if replay.startswith(start)), "")
    shown = stanzas[:_STANZAS]
    room -= len(shown) + (len(stanzas) > len(shown))
    printing = sum(1 for stanza in shown if stanza.rank.stdout or stanza.rank.stderr)
    per_output = max(1, min(_OUTPUT, room // 2) // max(1, printing))
    outputs = [_output_lines(stanza.rank, per_output, hint) for stanza in shown]
    room -= sum(len(output) for output in outputs)
    per_stanza = max(0, min(_LAST, room // max(1, len(shown))))
    lines = []
    for stanza, output in zip(shown, outputs, strict=True):
        lines.append(stanza.heading(is_first=stanza.rank is first))
        lines += [f"    {line}" for line in _timed(stanza.entries[len(stanza.entries) - per_stanza :])]
        lines += [f"    {line}" for line in output]
    if len(stanzas) > len(shown):
        rest = [number for stanza in stanzas[len(shown) :] for number in stanza.ranks]
        lines.append(f"and {len(rest)} more ranks: {number_text(rest)}")
    return lines


def _entries(result: Outcome) -> dict[int, list[_Entry]]:
    """What each rank did, in order."""
    found: dict[int, list[_Entry]] = {}
    for span in spans_of(result.events, result.virtual_time_ns):
        text, outcome = _span_text(span.issue), _OUTCOMES[span.end]
        took_ns = None if span.end == "cut off" or not span.is_operation else span.end_ns - span.start_ns
        found.setdefault(span.rank, []).append(_Entry(span.start_ns, text, outcome, took_ns))
    for event in result.events:
        if event.kind in ("step", "fault") and event.rank >= 0:
            text = f"step {event.data['step']}" if event.kind == "step" else str(event.data.get("text"))
            found.setdefault(event.rank, []).append(_Entry(event.time_ns, text))
    # A step begins before what is done in it, at the same instant.
    return {rank: sorted(each, key=lambda entry: (entry.time_ns, entry.outcome != "")) for rank, each in found.items()}


def _span_text(issue: Event) -> str:
    data: Mapping[str, Any] = issue.data
    if issue.kind != "issue":  # a sleep, or a delay
        return f"{issue.kind} of {format_duration(int(data['duration_ns']))}"
    what = f" of {data.get('dtype')}{list(data.get('shape') or [])}" if data.get("nbytes") else ""
    peer = data.get("peer", -1)
    ends = {"send": f" to {peer}", "recv": f" from {peer if peer >= 0 else 'any'}"}.get(str(data.get("op")), "")
    group = "" if data.get("group") in ("0", 0) else f" in group {data.get('group')!r}"
    return f"{data.get('op')} #{data.get('seq')}{what}{ends}{group}"


def _timed(entries: Sequence[_Entry]) -> Iterator[str]:
    times = [format_duration(entry.time_ns) for entry in entries]
    width = max(map(len, times), default=0)
    for time, entry in zip(times, entries, strict=True):
        outcome = ""
        if entry.took_ns is not None:
            outcome = f": {entry.outcome} {format_duration(entry.took_ns)}"
        elif entry.outcome == "never done":
            outcome = ": never done"
        yield f"{time:>{width}}  {entry.text}{outcome}"


def _where(rank: RankResult, trace: TracebackType | None) -> str:
    """The innermost line of the user's code in which the rank ended: "test_x.py:12"."""
    return (rank.where or raising_line(trace)).partition(" in ")[0]


def _output_lines(rank: RankResult, limit: int, hint: str) -> list[str]:
    """The last lines that a rank printed; of stderr without the traceback, whose last line is in the report."""
    lines = []
    for name, text in (("stdout", rank.stdout.splitlines()), ("stderr", _own_errors(rank))):
        lines += [f"{name} | {line}" for line in text]
    if len(lines) > limit:
        hidden = len(lines) - limit + 1
        lines = [f"({hidden} more {'line' if hidden == 1 else 'lines'} of output{hint})", *lines[hidden:]]
    return lines


def _own_errors(rank: RankResult) -> tuple[str, ...]:
    return tuple(line for line in rank.stderr.splitlines() if not line.startswith(f"[rank{rank.rank}]: "))
