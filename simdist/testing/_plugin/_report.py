"""What stands below a failure: how each rank ended, what it did last, what it printed, and how to replay it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING

from simdist.result import Event, RankResult, RunResult
from simdist.testing._plugin._frames import is_internal
from simdist.testing._plugin._verdict import how_it_ended, primary_of

if TYPE_CHECKING:
    from simdist.testing._plugin._worlds import Record

__all__ = ["LINES", "world_lines"]

LINES = 34  # at most; the traceback above needs its room too
_WIDTH = 118
_LAST = 5
_OUTPUT = 12  # lines of all ranks together
_STANZAS = 8


def world_lines(record: Record) -> list[str]:
    """The story of a world in at most `LINES` lines, without the replay."""
    from simdist.scenario import format_duration

    result, spec = record.result, record.spec
    if result is None:
        return []  # it was given up: the exception tells why
    count = len(result.ranks)
    ranks = f"{count} {'rank' if count == 1 else 'ranks'}"
    lines = [
        f"{ranks}, backend {spec.backend}, seed {result.seed} ({spec.policy} order), "
        f"{format_duration(result.virtual_time_ns)} of virtual time"
        + (f", restarts: {result.restarts}" if result.restarts else "")
    ]
    first = primary_of(result)
    lines += [
        _cut(f"fault at {format_duration(event.time_ns)}: {event.data.get('text')}")
        for event in result.events
        if event.kind == "fault"
    ][:4]
    if result.deadlock is not None and (first is None or first.status != "hung"):
        lines += [_cut(line) for line in str(result.deadlock).splitlines()[:6]]
    lines += [_cut(line) for line in _disagreement(result, strict=spec.strict or spec.backend == "sim")]
    stanzas = _stanzas(result, record.tracebacks, first)
    shown = stanzas[:_STANZAS]
    room = LINES - len(lines) - len(shown) - (len(stanzas) > len(shown))
    printing = sum(1 for stanza in shown if _printed(stanza.rank))
    per_output = max(1, min(_OUTPUT, room // 2) // max(1, printing))
    outputs = [_output_lines(stanza.rank, per_output) for stanza in shown]
    room -= sum(len(output) for output in outputs)
    per_stanza = max(0, min(_LAST, room // max(1, len(shown))))
    for stanza, output in zip(shown, outputs, strict=True):
        lines.append(_cut(stanza.heading(is_first=stanza.rank is first)))
        lines += [_cut(f"    {line}") for line in _timed(stanza.entries[len(stanza.entries) - per_stanza :])]
        lines += [_cut(f"    {line}") for line in output]
    if len(stanzas) > len(shown):
        rest = sorted(number for stanza in stanzas[len(shown) :] for number in stanza.ranks)
        lines.append(_cut(f"and {len(rest)} more ranks: {_numbers(rest)}"))
    return lines[:LINES]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something that a rank did, when it began, and how long it took (None: it has no length, or never ended)."""

    time_ns: int
    text: str
    outcome: str = ""
    took_ns: int | None = None


@dataclass(slots=True)
class _Stanza:
    """Ranks that did the same, `rank` for all of them; they ended at times that may differ a little."""

    rank: RankResult
    where: str
    entries: list[_Entry]
    ranks: list[int] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)

    def heading(self, *, is_first: bool) -> str:
        from simdist.scenario import format_duration

        begin, end = format_duration(min(self.ended_ns)), format_duration(max(self.ended_ns))
        when = begin if begin == end else f"{begin} to {end}"
        who = f"{'rank' if len(self.ranks) == 1 else 'ranks'} {_numbers(sorted(self.ranks))}"
        words = [who, *(["first to fail"] if is_first else []), f"at {when}", *([self.where] if self.where else [])]
        return f"{', '.join(words)}: {how_it_ended(self.rank)}"


def _stanzas(result: RunResult, tracebacks: Mapping[int, TracebackType], first: RankResult | None) -> list[_Stanza]:
    """First the rank to blame, then other failures, then the rest; ranks that did the same together."""
    entries = _entries(result)
    stanzas: dict[tuple[object, ...], _Stanza] = {}
    for rank in sorted(result.ranks, key=lambda rank: (rank is not first, rank.ok, rank.rank)):
        last = entries.get(rank.rank, [])[-_LAST:]
        own = (rank is first, rank.status, rank.exit_code, type(rank.exception), _without_numbers(how_it_ended(rank)))
        did = tuple((entry.text, entry.outcome) for entry in last)
        where = _line_of(tracebacks.get(rank.rank) if rank.exception is None else rank.exception.__traceback__)
        key = (*own, where, rank.stdout, _own_errors(rank), did)
        stanza = stanzas.setdefault(key, _Stanza(rank, where, last))
        stanza.ranks.append(rank.rank)
        stanza.ended_ns.append(rank.ended_ns)
    return list(stanzas.values())


def _entries(result: RunResult) -> dict[int, list[_Entry]]:
    """What each rank did, in order."""
    from simdist.trace._spans import spans_of

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


_ALIKE = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier")  # the same on every rank


def _disagreement(result: RunResult, *, strict: bool) -> list[str]:
    """The first collective that ranks called with arguments that do not fit, as far as the events tell."""
    from simdist.scenario import rank_text

    calls: dict[tuple[str, int], dict[str, list[int]]] = {}
    for event in result.events:
        data = event.data
        if event.kind == "restart":
            calls.clear()
        if event.kind == "issue" and data["op"] not in ("send", "recv"):
            size = f" of {data['dtype']}{list(data['shape'])}" if data["nbytes"] else ""
            same = calls.setdefault((str(data["group"]), int(data["seq"])), {})
            same.setdefault(f"{data['op']}{size}", []).append(event.rank)
    for (group, sequence), by_call in calls.items():
        names = {what.partition(" ")[0] for what in by_call}
        if len(by_call) > 1 and (len(names) > 1 or names <= set(_ALIKE)):
            told = "; ".join(f"{rank_text(ranks)} {what}" for what, ranks in list(by_call.items())[:3])
            hint = (
                [] if strict else ["    (the backend does not check that; strict=True makes it an error at the call)"]
            )
            return [f"ranks disagree on collective #{sequence} of group {group!r}: {told}", *hint]
    return []


_OUTCOMES = {"complete": "done in", "error": "failed after", "cut off": "never done"}


def _span_text(issue: Event) -> str:
    from simdist.scenario import format_duration

    data = issue.data
    if issue.kind == "sleep":
        return f"sleep of {format_duration(int(data['duration_ns']))}"
    what = f" of {data.get('dtype')}{list(data.get('shape') or [])}" if data.get("nbytes") else ""
    peer = data.get("peer", -1)
    ends = {"send": f" to {peer}", "recv": f" from {peer if peer >= 0 else 'any'}"}.get(str(data.get("op")), "")
    group = "" if data.get("group") in ("0", 0) else f" in group {data.get('group')!r}"
    return f"{data.get('op')} #{data.get('seq')}{what}{ends}{group}"


def _timed(entries: Sequence[_Entry]) -> Iterator[str]:
    from simdist.scenario import format_duration

    times = [format_duration(entry.time_ns) for entry in entries]
    width = max(map(len, times), default=0)
    for time, entry in zip(times, entries, strict=True):
        outcome = ""
        if entry.took_ns is not None:
            outcome = f": {entry.outcome} {format_duration(entry.took_ns)}"
        elif entry.outcome == "never done":
            outcome = ": never done"
        yield f"{time:>{width}}  {entry.text}{outcome}"


def _line_of(trace: TracebackType | None) -> str:
    """The innermost line of the user's code: "test_x.py:12"."""
    line = ""
    while trace is not None:
        if not is_internal(trace.tb_frame) and not trace.tb_frame.f_locals.get("__tracebackhide__"):
            line = f"{PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def _printed(rank: RankResult) -> bool:
    return bool(rank.stdout or rank.stderr)


def _output_lines(rank: RankResult, limit: int) -> list[str]:
    """The last lines that a rank printed; on stderr without the traceback, which stands above."""
    lines = []
    for name, text in (("stdout", rank.stdout.splitlines()), ("stderr", _own_errors(rank))):
        lines += [f"{name} | {line}" for line in text]
    if len(lines) > limit:
        hidden = len(lines) - limit + 1
        lines = [f"({hidden} more {'line' if hidden == 1 else 'lines'} of output; -s shows all)", *lines[hidden:]]
    return lines


def _own_errors(rank: RankResult) -> tuple[str, ...]:
    return tuple(line for line in rank.stderr.splitlines() if not line.startswith(f"[rank{rank.rank}]: "))


def _numbers(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in parts)


def _cut(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
