"""The timeline of a run: a lane for each rank, which shows a failure and its origin at a glance.

From top to bottom: title, notes (`_notes.py`), the steps, the lanes, the axis (`_axis.py`), the legend. In a lane a
rank's operations are drawn side by side, overlapping ones below each other; the light part of an operation is waiting
for peers, the dark part is data on its way. Parts narrower than a pixel are merged (`_columns.py`).
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simdist.result import Event, Span
from simdist.trace._axis import TimeAxis, short_duration
from simdist.trace._canvas import WIDTH, Canvas, Style, save, text_width
from simdist.trace._columns import Bar, Columns
from simdist.trace._messages import Groups, messages
from simdist.trace._notes import NOTE_PX, Note, Placed, notes_of, placed
from simdist.trace._ruler import draw_ruler
from simdist.trace._trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save", "timeline"]

# A palette that colour-blind readers can distinguish (blue against vermilion), and so can grey print (by lightness).
_INK, _SOFT, _FAINT = "#1f2933", "#64707d", "#d5dae0"
_BLUE, _SAND, _GREY, _RED, _SLATE = "#2a62a6", "#f2ddb0", "#c3cad2", "#c5401b", "#4a5a74"
_STYLES = {
    "transfer": Style(_BLUE),
    "wait": Style(_SAND),
    "sleep": Style(_GREY),
    "delay": Style("#fbe6dd", _RED, "/////"),
    "stopped": Style("#e9ebee", _SLATE, "....."),
}
_FAILED = Style("none", _RED, "", 1.6)
_LANE = Style("#f6f7f9")
_BAND = Style("#e6ebf3")
_TONES = {"fault": _RED, "deadlock": _RED, "failure": _RED, "restart": _SLATE}
_LEGEND = {
    "transfer": "data on its way",
    "wait": "waiting for peers",
    "sleep": "computing (sleep)",
    "delay": "held up by a fault",
    "stopped": "stopped by a fault",
}

_LEFT, _RIGHT = 78, WIDTH - 168  # of the lanes
_TITLE_PX, _TEXT_PX, _SMALL_PX = 15.0, 11.5, 10.5
_ROW_PX, _ROWS = 19, 7  # of notes
_GAP_PX = 9  # between lanes
_ROOMY = 16  # lanes; with more than this they are narrower, and without words
_MOST_LANES = 64
_MOST_ARROWS = 600
_STEP_PX = 2.5  # steps nearer to each other share a line


def timeline(trace: Trace, *, title: str = "") -> Figure:
    """Return the picture of a run, 1200 pixels wide, as a matplotlib figure that pyplot does not manage.

    Of more than 64 ranks it shows those that are named in notes, and the first others.

    Raises:
        SimdistError: matplotlib is not installed.
    """
    return _Timeline(trace, title).draw()


@dataclass(frozen=True, slots=True)
class _Lane:
    rank: int
    top: float
    bottom: float
    rows: int

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def row(self, index: int) -> tuple[float, float]:
        """Return the upper and lower edge of one of the rows for overlapping operations."""
        height = (self.bottom - self.top - 4) / self.rows
        inset = 0.0 if self.rows == 1 else 0.6
        return self.top + 2 + index * height + inset, self.top + 2 + (index + 1) * height - inset


class _Timeline:
    """One picture, laid out and drawn."""

    def __init__(self, trace: Trace, title: str) -> None:
        self._trace = trace
        self._title = title
        notes = notes_of(trace)
        ranks = trace.ranks
        if len(ranks) > _MOST_LANES:
            struck, failed = ({r for n in notes if n.tone == tone for r in n.ranks} for tone in ("fault", "failure"))
            by_weight = sorted(ranks, key=lambda rank: (rank not in struck, rank not in failed, rank))
            ranks = sorted(by_weight[:_MOST_LANES])
        self._left_out = len(trace.ranks) - len(ranks)
        shown = set(ranks)
        self._spans = [span for span in trace.spans if span.rank in shown]
        self._rows, depth = _rows_of(self._spans)
        self._axis = TimeAxis(self._points(), left=_LEFT, right=_RIGHT)
        self._notes, self._lost = placed(notes, self._axis, _LEFT, WIDTH - 12, _ROWS)
        first = min((mark.rank for mark in trace.of_kind("step")), default=-1)
        self._steps = [mark for mark in trace.of_kind("step") if mark.rank == first]
        self._columns = Columns(list(_LEGEND), self._bar)
        self._labels: set[tuple[int, int, str]] = set()  # the places of texts that are drawn: rank, place, text
        self._failed: set[tuple[int, int, int]] = set()  # the outlined operations: rank, row and pixel of each
        y = 62 + _ROW_PX * (1 + max((note.row for note in self._notes), default=-1))
        self._notes_bottom = y - 4
        self._lanes: dict[int, _Lane] = {}
        y += 16 if self._steps else 0
        self._lanes_top = y
        many = len(ranks) > _ROOMY
        gap = 3 if many else 20 if trace.of_kind("deadlock") else _GAP_PX  # room for words between lanes
        for rank in ranks:
            rows = depth.get(rank, 1)
            height = (15 if rows == 1 else 5 + 6 * rows) if many else (28 if rows == 1 else 6 + 13 * rows)
            self._lanes[rank] = _Lane(rank, y, y + height, rows)
            y += height + gap
        self._lanes_bottom = y - gap + 4
        self._height = self._lanes_bottom + 72
        self._canvas = Canvas(self._height)

    def draw(self) -> Figure:
        """Draw everything on the page."""
        self._draw_title()
        self._draw_lives()
        self._draw_restarts()
        draw_ruler(self._canvas, self._axis, self._lanes_bottom + 6)
        self._draw_steps()
        self._draw_spans()
        self._draw_messages()
        self._draw_waits_for()
        self._draw_notes()
        self._draw_legend()
        return self._canvas.finish()

    def _points(self) -> Iterator[int]:
        trace = self._trace
        yield trace.start_ns
        yield trace.end_ns
        for span in self._spans:
            yield from (max(span.start_ns, trace.start_ns), min(span.end_ns, trace.end_ns))
            if span.begin_ns is not None and trace.start_ns <= span.begin_ns <= trace.end_ns:
                yield span.begin_ns
        for mark in trace.marks:
            if mark.kind not in ("output", "store") and trace.start_ns <= mark.time_ns <= trace.end_ns:
                yield mark.time_ns

    # -- around the lanes ----------------------------------------------------------------------------------------

    def _draw_title(self) -> None:
        trace = self._trace
        self._canvas.text(16, 22, self._title or "timeline", color=_INK, size=_TITLE_PX, bold=True)
        count = len(trace.ranks)
        facts = [f"{count} rank{'' if count == 1 else 's'}", f"virtual time {short_duration(trace.end_ns)}"]
        if trace.start_ns:
            facts[1] = f"virtual time {short_duration(trace.start_ns)} to {short_duration(trace.end_ns)}"
        if trace.seed is not None:
            facts.append(f"seed {trace.seed}")
        if self._left_out:
            facts.append(f"{self._left_out} more ranks are not shown")
        if self._lost:
            facts.append(f"{self._lost} more notes are not shown")
        self._canvas.text(16, 42, "  \N{MIDDLE DOT}  ".join(facts), color=_SOFT, size=_TEXT_PX)

    def _draw_steps(self) -> None:
        if not self._steps:
            return
        y = self._lanes_top - 9
        self._canvas.text(16, y, "step", color=_SOFT, size=_SMALL_PX)
        free_from = line_from = 0.0
        for mark in self._steps:
            x = self._axis.x(mark.time_ns)
            text = str(mark.data.get("step", ""))
            if x >= line_from:
                self._canvas.line([(x, y + 4), (x, y + 8)], _SOFT, width=0.8)
                line_from = x + _STEP_PX
            if x >= free_from:
                self._canvas.text(x, y - 1, text, color=_SOFT, size=9.5, align="center", halo=True)
                free_from = x + text_width(text, 9.5) + 9

    def _draw_lives(self) -> None:
        """Draw each lane: its rank, its lives, how it ended."""
        ends = {mark.rank: mark for mark in self._trace.of_kind("exit")}
        starts = self._trace.of_kind("start")
        for lane in self._lanes.values():
            self._canvas.text(16, lane.middle, f"rank {lane.rank}", color=_INK, size=_TEXT_PX)
            for begin, end in self._lives(lane.rank, starts):
                left, right = self._axis.x(begin), self._axis.x(end)
                self._canvas.bar(_LANE, left, lane.top, max(right, left + 1), lane.bottom, layer=0)
                self._canvas.line([(left, lane.bottom), (right, lane.bottom)], _FAINT, layer=1)
            text, good = _outcome(ends.get(lane.rank), starts, lane.rank)
            self._canvas.text(_RIGHT + 14, lane.middle, text, color=_SOFT if good else _RED, size=_TEXT_PX)

    def _lives(self, rank: int, starts: Sequence[Event]) -> Iterator[tuple[int, int]]:
        begins = [mark.time_ns for mark in starts if mark.rank == rank] or [self._trace.start_ns]
        ends = [mark.time_ns for mark in self._trace.of_kind("exit") if mark.rank == rank]
        for index, begin in enumerate(begins):
            until = begins[index + 1] if index + 1 < len(begins) else self._trace.end_ns
            yield begin, min((end for end in ends if begin <= end <= until), default=until)

    def _draw_restarts(self) -> None:
        exits = [mark.time_ns for mark in self._trace.of_kind("exit")]
        for mark in self._trace.of_kind("restart"):
            before = [time for time in exits if time < mark.time_ns]
            left, right = self._axis.x(max(before, default=mark.time_ns)), self._axis.x(mark.time_ns)
            self._canvas.bar(_BAND, left, self._lanes_top, right, self._lanes_bottom - 4, layer=1)
            middle = (self._lanes_top + self._lanes_bottom - 4) / 2
            text = ("restart", f"life {mark.data.get('life', '?')}")
            if right - left > 58:
                for line, shift in zip(text, (-8, 8), strict=True):
                    self._canvas.text(
                        (left + right) / 2, middle + shift, line, color=_SLATE, size=_TEXT_PX, align="center",
                        bold=not shift > 0,
                    )  # fmt: skip

    def _draw_legend(self) -> None:
        y, x = self._height - 18, 16.0
        used = {kind for _, kinds, _ in self._parts() for kind in kinds} | ({"stopped"} if self._stopped else set())
        for kind, text in _LEGEND.items():
            if kind in used:
                self._canvas.bar(_STYLES[kind], x, y - 6, x + 22, y + 6)
                x = self._legend_text(x + 28, y, text)
        if any(span.end == "error" for span in self._spans):
            self._canvas.bar(_FAILED, x, y - 6, x + 22, y + 6, layer=4)
            x = self._legend_text(x + 28, y, "failed")
        if any(note.note.tone == "fault" and note.note.ranks for note in self._notes):
            self._canvas.cross(x + 8, y, _RED)
            x = self._legend_text(x + 20, y, "fault strikes")
        if self._arrows:
            self._canvas.arrow((x, y), (x + 24, y), _INK)
            x = self._legend_text(x + 30, y, "message")
        if self._axis.breaks:
            for shift in (0.0, 4.0):
                self._canvas.line([(x + shift, y + 6), (x + 6 + shift, y - 6)], _SOFT, width=1.3)
            x = self._legend_text(x + 16, y, "time cut out")
        if self._columns.divided:
            text = "many at once: by share of time"
            if x + text_width(text, _TEXT_PX) <= WIDTH:
                self._legend_text(x, y, text)

    def _legend_text(self, x: float, y: float, text: str) -> float:
        self._canvas.text(x, y, text, color=_SOFT, size=_TEXT_PX)
        return x + text_width(text, _TEXT_PX) + 22

    # -- inside the lanes ----------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[tuple[int, dict[str, tuple[int, int]], Span]]:
        """Yield each span's index, its parts with their times, and the span."""
        for index, span in enumerate(self._spans):
            if not span.is_operation:
                yield index, {span.name: (span.start_ns, span.end_ns)}, span
                continue
            # An operation that failed, or was cut off, waited to its end.
            begin = span.end_ns if span.begin_ns is None else span.begin_ns
            parts = {"wait": (span.start_ns, begin)} if begin > span.start_ns else {}
            yield index, parts | ({"transfer": (begin, span.end_ns)} if span.end_ns > begin else {}), span

    def _draw_spans(self) -> None:
        canvas, x = self._canvas, self._axis.x
        for index, parts, span in self._parts():
            lane, number = self._lanes[span.rank], self._rows[index]
            top, bottom = lane.row(number)
            for kind, (begin, end) in parts.items():
                left, right = x(begin), x(end)
                inset = (bottom - top) * 0.16 if kind in ("wait", "sleep") else 0.0
                if kind == "transfer" and right - left > 4:
                    right -= 1  # a gap to the next one
                self._columns.add((span.rank, number), Bar(kind, left, top + inset, right, bottom - inset))
            left, right = x(span.start_ns), x(span.end_ns)
            place = span.rank, number, int(left)
            if span.end == "error" and (right - left >= 1 or place not in self._failed):
                self._failed.add(place)
                inset = (bottom - top) * 0.16
                canvas.bar(_FAILED, left, top + inset, max(right, left + 3), bottom - inset, layer=4)
            if bottom - top >= 12 and right - left >= 10:
                self._label(span, parts, left, right, (top + bottom) / 2)
        self._columns.finish()
        for lane, begin, end in self._stopped:
            canvas.bar(_STYLES["stopped"], x(begin), lane.top + 4, x(end), lane.bottom - 4, layer=1)

    def _bar(self, bar: Bar) -> None:
        self._canvas.bar(_STYLES.get(bar.kind, _STYLES["sleep"]), bar.left, bar.top, bar.right, bar.bottom)

    def _label(self, span: Span, parts: dict[str, tuple[int, int]], left: float, right: float, y: float) -> None:
        """Write the operation's name into its widest part, left of a break if it crosses one, if there is room."""
        text = _name_of(span, self._trace.groups)
        place = span.rank, round(left / 90), text
        if right - left < text_width(text, _SMALL_PX) + 10 or (right - left <= 160 and place in self._labels):
            return
        self._labels.add(place)
        dark = max(parts, key=lambda kind: parts[kind][1] - parts[kind][0], default="wait") == "transfer"
        begin, end = max(parts.values(), key=lambda part: self._axis.x(part[1]) - self._axis.x(part[0]))
        left, right = self._axis.x(begin), self._axis.x(end)
        if right - left >= text_width(text, _SMALL_PX) + 8:
            self._canvas.text(left + 5, y, text, color="white" if dark else _INK, size=_SMALL_PX)

    @functools.cached_property
    def _stopped(self) -> list[tuple[_Lane, int, int]]:
        """The times for which a hang stopped ranks: until a rank's next event."""
        hangs = [m for m in self._trace.of_kind("fault") if m.data.get("fault") == "hang" and m.rank in self._lanes]
        times: dict[int, list[int]] = {mark.rank: [] for mark in hangs}
        for rank, time_ns in (
            *((mark.rank, mark.time_ns) for mark in self._trace.marks),
            *((span.rank, span.start_ns) for span in self._spans),
        ):
            if rank in times:
                times[rank].append(time_ns)
        for each in times.values():
            each.sort()
        found = []
        for mark in hangs:
            later = bisect_right(times[mark.rank], mark.time_ns)
            until = times[mark.rank][later] if later < len(times[mark.rank]) else self._trace.end_ns
            found.append((self._lanes[mark.rank], mark.time_ns, until))
        return found

    @functools.cached_property
    def _arrows(self) -> list[tuple[int, int]]:
        pairs = messages(self._spans, self._trace.groups)
        return pairs if len(pairs) <= _MOST_ARROWS else []

    def _draw_messages(self) -> None:
        for one, other in self._arrows:
            send, recv = self._spans[one], self._spans[other]
            upper, lower = self._lanes[send.rank].row(self._rows[one]), self._lanes[recv.rank].row(self._rows[other])
            down = upper[0] < lower[0]
            begin = send.start_ns if send.begin_ns is None else send.begin_ns
            start = self._axis.x(begin), upper[1] if down else upper[0]
            end = self._axis.x(recv.end_ns) - 1, lower[0] if down else lower[1]
            self._canvas.arrow(start, end, _INK, head=6)

    def _draw_waits_for(self) -> None:
        """In a deadlock, draw arrows from each rank of the cycle to the one that it waits for."""
        for mark in self._trace.of_kind("deadlock"):
            data: Mapping[str, Any] = mark.data
            ranks = [_rank_in(name) for name in data.get("cycle", ())]
            lanes = [self._lanes[rank] for rank in ranks if rank in self._lanes]
            if len(lanes) < 2 or len(lanes) != len(ranks):
                continue
            begin = self._axis.x(mark.time_ns)
            until = min((s.end_ns for s in self._spans if s.rank in ranks and s.end_ns > mark.time_ns), default=0)
            end = self._axis.x(until or self._trace.end_ns)
            width = end - begin
            for index in range(len(lanes) - 1):
                one, other = lanes[index], lanes[index + 1]
                x = begin + width * (0.42 + 0.34 * index / max(1, len(lanes) - 2))
                down = one.top < other.top
                start = x, one.middle + (4 if down else -4)
                target = x, other.middle + (-4 if down else 4)
                self._canvas.arrow(start, target, _RED, width=2.0, head=11)
                text = f"{one.rank} waits for {other.rank}"
                self._canvas.text(
                    x + 9, (one.bottom + one.top) / 2 + (other.middle - one.middle) / 2, text, color=_RED,
                    size=_SMALL_PX, bold=True, halo=True,
                )  # fmt: skip

    # -- notes ---------------------------------------------------------------------------------------------------

    def _draw_notes(self) -> None:
        for note in self._notes:
            color = _TONES[note.note.tone]
            y = self._notes_bottom - 8 - note.row * _ROW_PX
            bold = note.note.tone != "restart"
            self._canvas.text(note.left, y, note.note.text, color=color, size=NOTE_PX, bold=bold, halo=True)
            self._leader(note, note.note, y, color)

    def _leader(self, at: Placed, note: Note, y: float, color: str) -> None:
        lanes = [self._lanes[rank] for rank in note.ranks if rank in self._lanes]
        if note.ranks and not lanes:
            return
        bottom = max(lane.middle for lane in lanes) if lanes else self._lanes_bottom - 4
        dash = "-" if lanes else (0, (4, 3))
        self._canvas.line([(at.x, y - 6), (at.x, bottom)], color, width=1.1, dash=dash, layer=4)
        for lane in lanes:
            if note.tone == "fault":
                self._canvas.cross(at.x, lane.middle, color)


def _rows_of(spans: Sequence[Span]) -> tuple[list[int], dict[int, int]]:
    """Return for each span the first free row of its lane, and how many rows each rank needs."""
    busy_until: dict[int, list[int]] = {}
    rows = []
    for span in spans:
        ends = busy_until.setdefault(span.rank, [])
        row = next((index for index, end in enumerate(ends) if end <= span.start_ns), len(ends))
        ends[row:] = [span.end_ns, *ends[row + 1 :]]
        rows.append(row)
    return rows, {rank: max(1, len(ends)) for rank, ends in busy_until.items()}


def _name_of(span: Span, groups: Groups) -> str:
    peer = groups.peer(span)
    if span.name == "send" and peer is not None:
        return f"send to {peer}"
    if span.name == "recv":
        return "recv from any" if peer is None else f"recv from {peer}"
    return span.name if span.is_operation else ""


def _outcome(end: Event | None, starts: Sequence[Event], rank: int) -> tuple[str, bool]:
    """Return how the last life of a rank ended, in few words, and whether it ended well."""
    last = max((mark.time_ns for mark in starts if mark.rank == rank), default=0)
    if end is None or end.time_ns < last:
        return ("hangs", False) if any(mark.rank == rank for mark in starts) else ("", True)
    status, code = str(end.data.get("status", "")), end.data.get("exit_code")
    if status == "killed" and isinstance(code, int):
        return f"killed by signal {-code}", False
    if status == "exited":
        return f"exited with code {code}", code == 0
    return status, status == "returned"


def _rank_in(name: object) -> int:
    word = str(name).removeprefix("rank ").split(" ")[0]
    return int(word) if word.isdecimal() else -1
