"""`simdist show`: a saved trace on a terminal, with filters, or as a picture."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simdist.cli._console import page
from simdist.cli._outputs import output_problems, shown_path
from simdist.cli._run import picture_problems, write_graph, write_timeline
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.result import Event
from simdist.trace import Span, Trace, notes_of, read_trace
from simdist.values import format_duration, number_text, parse_duration, plain, rank_text, shortened

__all__ = ["show_file"]

_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_UNTOLD = (
    "group",
    "start",
    "output",
    "store",
    "exit",
    "step",
    "result",
)  # marks that are shown otherwise, or are too many
_COLORS = {"fault": "red", "deadlock": "red", "failure": "red", "restart": "blue"}


def show_file(
    file: str,
    ranks: Sequence[str],
    groups: Sequence[str],
    times: tuple[str | None, str | None],
    pictures: tuple[str | None, str | None, str | None],
    lines: int,
) -> int:
    """Print the trace, or draw it; return the exit code.

    `pictures` holds the paths of the timeline and the graph, and the time that the graph shows.

    Raises:
        TraceError: the file is no trace.
        ScenarioError: an option does not fit the trace; all problems at once.
    """
    trace = read_trace(Path(file))
    problems: list[str] = []
    wanted = _ranks(ranks, trace, problems)
    _check_groups(groups, trace, problems)
    from_ns, to_ns = (_time(option, text, problems) for option, text in zip(("--from", "--to"), times, strict=True))
    if from_ns is not None and to_ns is not None and from_ns > to_ns:
        problems.append(f"--from {times[0]} is after --to {times[1]}")
    drawn, graph, at_text = pictures
    at_ns = _time("--at", at_text, problems)
    if at_text is not None and graph is None:
        problems.append("--at: it is about --graph; add that")
    problems += picture_problems({"--timeline": drawn, "--graph": graph})
    problems += output_problems({"--timeline": drawn, "--graph": graph}, inputs=[file])
    if problems:
        raise ScenarioError(shown_path(file), problems)

    trace = trace.only(ranks=wanted, groups=groups, from_ns=from_ns, to_ns=to_ns)
    if drawn is not None:
        write_timeline(trace, drawn, Path(file).stem)
    if graph is not None:
        write_graph(trace, graph, Path(file).stem, at_ns)
    if drawn is not None or graph is not None:
        return 0
    with page() as out:
        _print(out, trace, lines)
    return 0


def _ranks(words: Sequence[str], trace: Trace, problems: list[str]) -> list[int]:
    known, wanted = trace.ranks, []
    for word in words:
        match = _RANKS.fullmatch(word)
        if match is None:
            problems.append(f"--rank {shortened(plain(word), 60)}: expected a rank such as 3, or a range such as 0-2")
            continue
        chosen = [rank for rank in known if int(match[1]) <= rank <= int(match[2] or match[1])]
        if not chosen:
            problems.append(f"--rank {word}: the trace has {rank_text(known) if known else 'no ranks'}")
        wanted += chosen
    return wanted


def _check_groups(words: Sequence[str], trace: Trace, problems: list[str]) -> None:
    descriptions = trace.groups.descriptions
    known = {str(span.issue.data.get("group")) for span in trace.spans if span.is_operation}
    known |= set(descriptions) | set(descriptions.values())
    has = ", ".join(map(repr, sorted(known))) or "none"
    problems += [
        f"--group {shortened(plain(word), 60)}: no such group; the trace has {has}"
        for word in words
        if word not in known
    ]


def _time(option: str, text: str | None, problems: list[str]) -> int | None:
    if text is None:
        return None
    try:
        return parse_duration(int(text) if text.isdecimal() and len(text) < 40 else text)
    except ValueError as error:
        problems.append(f"{option}: {error}")
        return None


def _print(out: Console, trace: Trace, lines: int) -> None:
    notes = notes_of(trace)
    head = f"{rank_text(trace.ranks) if trace.ranks else 'no ranks'}, "
    head += f"{format_duration(trace.start_ns)} to {format_duration(trace.end_ns)}, {len(trace.spans)} operations"
    out.print(Text(head, style="bold"))
    if notes:
        out.print()
        grid = plain_table("", "")
        for note in notes:
            grid.add_row(Text(format_duration(note.time_ns)), Text(note.text, style=_COLORS[note.tone]))
        out.print(Padding(grid, (0, 0, 0, 2)))
    rows = sorted([*_operations(trace), *_marks(trace)], key=lambda row: row[:2])
    if not rows:
        return
    out.print()
    table = plain_table("at", "rank", "what", "with", "waits", "takes", "end", right=("rank", "waits", "takes"))
    for _, _, row in rows[: lines or None]:
        cells, style = row()
        table.add_row(*(Text(cell, style=style) for cell in cells))
    out.print(table)
    if lines and len(rows) > lines:
        out.print(Text(f"and {len(rows) - lines} more; --lines 0 shows all"))


# A row's time, its order (marks before operations), and a function for its cells and style, called only for rows shown.
_Row = tuple[int, int, Callable[[], tuple[tuple[str, ...], str]]]


def _operations(trace: Trace) -> list[_Row]:
    """Return a row per operation, of any number of ranks: its beginning, the rank that waited longest, its end."""
    restarts = [mark.time_ns for mark in trace.of_kind("restart")]
    together: dict[tuple[object, ...], list[Span]] = {}
    for number, span in enumerate(trace.spans):
        data = span.issue.data
        if span.name in ("send", "recv"):
            key: tuple[object, ...] = (number,)
        elif span.is_operation:
            life = bisect_right(restarts, span.start_ns)
            key = (span.name, data.get("group"), data.get("seq"), span.end, _error(span), life)
        else:
            key = (span.name, span.start_ns, span.end_ns, data.get("op"))
        together.setdefault(key, []).append(span)
    several_groups = len({span.issue.data.get("group") for span in trace.spans if span.is_operation}) > 1
    return [
        (
            min(span.start_ns for span in spans),
            1,
            functools.partial(_operation_row, spans, trace, named=several_groups),
        )
        for spans in together.values()
    ]


def _operation_row(spans: list[Span], trace: Trace, *, named: bool) -> tuple[tuple[str, ...], str]:
    first = spans[0]
    begin = min(span.start_ns for span in spans)
    waits = max((span.end_ns if span.begin_ns is None else span.begin_ns) - span.start_ns for span in spans)
    cells = (
        format_duration(begin),
        _short_ranks([span.rank for span in spans]),
        f"{first.name} #{first.issue.data.get('seq')}" if first.is_operation else first.name,
        ", ".join(_particulars(first, trace, named=named)),
        format_duration(waits) if first.is_operation and waits else "",
        format_duration(max(span.end_ns for span in spans) - begin),
        {"complete": "", "error": _error(first), "cut off": "cut off"}[first.end],
    )
    return cells, "red" if first.end == "error" else ""


def _particulars(span: Span, trace: Trace, *, named: bool) -> Iterator[str]:
    data: Mapping[str, Any] = span.issue.data
    peer = trace.groups.peer(span)
    if span.name == "delay":
        yield f"before {data.get('op')}"
    if not span.is_operation:
        return
    if peer is not None:
        yield {"send": f"to {peer}", "recv": f"from {peer}"}.get(span.name, f"root {peer}")
    elif span.name == "recv":
        yield "from any"
    if data.get("dtype"):
        yield f"{data.get('dtype')}{list(data.get('shape', ()))}"
    if named:
        yield f"group {data.get('group')}"


def _error(span: Span) -> str:
    return span.message.split(":")[0]


def _marks(trace: Trace) -> list[_Row]:
    return [(mark.time_ns, 0, functools.partial(_mark_row, mark)) for mark in trace.marks if mark.kind not in _UNTOLD]


def _mark_row(mark: Event) -> tuple[tuple[str, ...], str]:
    return (format_duration(mark.time_ns), _who(mark), mark.kind, _about(mark), "", "", ""), "blue"


def _about(mark: Event) -> str:
    data: Mapping[str, Any] = mark.data
    if mark.kind == "restart":
        return f"life {data.get('life', '?')}"
    if mark.kind == "deadlock":
        return " -> ".join(map(str, data.get("cycle", ())))
    return str(data.get("fault", ""))


def _who(mark: Event) -> str:
    return "" if mark.rank < 0 else str(mark.rank)


def _short_ranks(ranks: Sequence[int]) -> str:
    return number_text(ranks).replace(" ", "")
