"""The notes above a picture: faults, restarts, failures, deadlocks; and the place of each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simdist.trace._axis import TimeAxis, short_duration
from simdist.trace._canvas import text_width
from simdist.trace._trace import Trace
from simdist.values import rank_text

__all__ = ["Note", "Placed", "notes_of", "placed", "short_message"]

NOTE_PX = 11.5
_MESSAGE = 76  # letters of an exception that are shown
_GAP_PX = 14
_NEAR_PX = 8  # moments so near to each other are drawn as one


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened at `time_ns` on `ranks` (none: to the world), and how bad it is."""

    time_ns: int
    text: str
    ranks: tuple[int, ...]
    tone: Literal["fault", "failure", "restart", "deadlock"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A note whose text begins at `left` in the given row; row 0 is nearest to the lanes."""

    note: Note
    x: float
    left: float
    row: int


def notes_of(trace: Trace) -> list[Note]:
    """Return the notes of a run, by time; what happens to several ranks alike gets one note."""
    notes = []
    for mark in trace.of_kind("fault"):
        ranks = (mark.rank,) if mark.rank >= 0 else ()
        notes.append(Note(mark.time_ns, str(mark.data.get("text") or mark.data.get("fault", "fault")), ranks, "fault"))
    for mark in trace.of_kind("deadlock"):
        data: Mapping[str, Any] = mark.data
        cycle = [str(name) for name in data.get("cycle", ())]
        notes.append(Note(mark.time_ns, "deadlock: " + " \N{RIGHTWARDS ARROW} ".join(cycle), (), "deadlock"))
    ends = sorted({mark.time_ns for mark in trace.of_kind("exit")})
    for mark in trace.of_kind("restart"):
        before = bisect_left(ends, mark.time_ns)
        after = f" after {short_duration(mark.time_ns - ends[before - 1])}" if before else ""
        notes.append(Note(mark.time_ns, f"every rank starts again{after}", (), "restart"))
    return sorted([*notes, *_failures(trace)], key=lambda note: (note.time_ns, note.tone, note.ranks))


def _failures(trace: Trace) -> Iterable[Note]:
    """Yield one note for all ranks that fail with the same words before the next restart."""
    restarts = [mark.time_ns for mark in trace.of_kind("restart")]
    reported: dict[tuple[int, str], Note] = {}
    for span in trace.spans:
        if span.end == "error":
            life = bisect_right(restarts, span.end_ns)
            text = short_message(span.message)
            known = reported.get((life, text))
            if known is None:
                reported[life, text] = Note(span.end_ns, text, (span.rank,), "failure")
            elif span.rank not in known.ranks:
                reported[life, text] = replace(
                    known, time_ns=max(known.time_ns, span.end_ns), ranks=tuple(sorted((*known.ranks, span.rank)))
                )
    for note in reported.values():
        yield replace(note, text=f"{rank_text(note.ranks)}: {note.text}")


def short_message(message: str) -> str:
    """Return an exception's text without details for maintainers of Gloo."""
    first = message.splitlines()[0] if message else "failed"
    first = re.sub(r"\[/\S+?\.(?:cc|cpp|h):\d+\]\s*", "", first)
    first = re.sub(r"\[[\d.:a-f]+\]:\d+", "", first).replace(" : ", ": ")
    first = re.sub(r"\b(\d+)000ms\b", lambda found: short_duration(int(found[1]) * 10**9), first)
    first = re.sub(r"\s+", " ", first.split(". This is typically caused")[0]).strip()
    return first if len(first) <= _MESSAGE else first[: _MESSAGE - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def placed(notes: Sequence[Note], axis: TimeAxis, left: float, right: float, rows: int) -> tuple[list[Placed], int]:
    """Place each note's text at its moment, so that no two touch; return them, and how many found no room.

    Notes are placed from the last to the first, so that the leader of a later one does not cross the text of an earlier
    one, and notes of nearly the same moment read from top to bottom, on one leader.
    """
    found: list[Placed] = []
    lost = 0
    moments: list[float] = []
    for note in notes:
        x = axis.x(note.time_ns)
        moments.append(moments[-1] if moments and x - moments[-1] < _NEAR_PX else x)
    for note, x in zip(reversed(notes), reversed(moments), strict=True):
        lowest = 1 + max((other.row for other in found if other.x == x), default=-1)
        width = text_width(note.text, NOTE_PX, bold=True)
        start = x + 6 if x + 6 + width <= right else max(left, min(x - 6 - width, right - width))
        end = start + width
        clear = [row for row in range(lowest, rows) if not any(_touch(start, end, row, other) for other in found)]
        best = [row for row in clear if not any(_cross(start, end, x, row, other) for other in found)]
        if clear:
            found.append(Placed(note, x, start, (best or clear)[0]))
        else:
            lost += 1
    return found, lost


def _touch(start: float, end: float, row: int, other: Placed) -> bool:
    """True if text from `start` to `end` in that row has no room next to the other's."""
    return row == other.row and start < _end(other) + _GAP_PX and other.left < end + _GAP_PX


def _cross(start: float, end: float, x: float, row: int, other: Placed) -> bool:
    """True if the leader of one note crosses the text of the other."""
    through_these = row < other.row and start - 3 <= other.x <= end + 3
    return through_these or (row > other.row and other.left - 3 <= x <= _end(other) + 3)


def _end(placed: Placed) -> float:
    return placed.left + text_width(placed.note.text, NOTE_PX, bold=True)
