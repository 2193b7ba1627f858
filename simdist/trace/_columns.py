"""Compresses what pixels can't show: a column of a lane's row is divided among the kinds by share of time.

A part of a span that is as wide as a column is drawn as it is. Of narrower parts, up to `FEW` that begin in one column
keep a bar each, at least a pixel wide, so that a lone transfer stays visible. If there are more, the column is divided
from top to bottom, in a fixed order; each kind gets a height by its share of the parts' time. The number of bars then
depends on the width of the picture, not on the length of the run.

Doubt: a column does not show time in which nothing happened. Idle time is rare in virtual time; a lane that is a third
idle and one that is not look alike where they are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["FEW", "WIDTH_PX", "Bar", "Columns"]

WIDTH_PX = 4  # of a column
FEW = 8
_STEPS = 16  # shares are rounded to this, so that equal neighbouring columns are drawn as one


@dataclass(frozen=True, slots=True)
class Bar:
    """An area of one kind, in pixels."""

    kind: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(slots=True)
class _Column:
    """The narrow parts that begin in one column of one row."""

    number: int
    parts: list[Bar]  # the first `FEW` of them
    widths: dict[str, float]  # by kind, of all
    right: float = 0.0  # where the last of them ends
    count: int = 0


class Columns:
    """The rows of a picture. Each takes its parts in order of time, and passes on the bars to draw.

    Example:
        >>> drawn = []
        >>> columns = Columns(["transfer", "wait"], drawn.append)
        >>> for number in range(16):
        ...     kind = ["wait", "transfer"][number % 2]
        ...     columns.add("a lane", Bar(kind, number / 4, 0, (number + 1) / 4, 10))
        >>> columns.finish()
        >>> [(bar.kind, bar.left, bar.right, bar.top, bar.bottom) for bar in drawn]
        [('transfer', 0.0, 4.0, 0, 5.0), ('wait', 0.0, 4.0, 5.0, 10)]
    """

    def __init__(self, order: Sequence[str], draw: Callable[[Bar], None]) -> None:
        self._order = order  # from top to bottom; others come after these
        self._draw = draw
        self._open: dict[object, _Column] = {}
        self.divided = False  # a column was drawn divided

    def add(self, row: object, bar: Bar) -> None:
        """Add the next part of a row."""
        column = self._open.get(row)
        if bar.right - bar.left >= WIDTH_PX:
            self._close(row)
            self._draw(bar)
            return
        number = int(bar.left) // WIDTH_PX
        if column is None or column.number != number:
            self._close(row)
            column = self._open[row] = _Column(number, [], {})
        column.count += 1
        column.right = max(column.right, bar.right)
        column.widths[bar.kind] = column.widths.get(bar.kind, 0.0) + bar.right - bar.left
        if column.count <= FEW:
            column.parts.append(bar)

    def finish(self) -> None:
        """Pass on the bars that are still collected."""
        for row in list(self._open):
            self._close(row)

    def _close(self, row: object) -> None:
        column = self._open.pop(row, None)
        if column is None:
            return
        if column.count <= FEW:
            for bar in column.parts:
                self._draw(Bar(bar.kind, bar.left, bar.top, max(bar.right, bar.left + 1), bar.bottom))
        else:
            self.divided = True
            self._divide(column)

    def _divide(self, column: _Column) -> None:
        """Draw the kinds of a column below each other."""
        left, right = column.parts[0].left, max(column.right, column.parts[0].left + 1)
        top, bottom = min(bar.top for bar in column.parts), max(bar.bottom for bar in column.parts)
        total = sum(column.widths.values())
        ordered = [kind for kind in self._order if kind in column.widths]
        kinds = [*ordered, *sorted(kind for kind in column.widths if kind not in ordered)]
        so_far, upper = 0.0, top
        for kind in kinds:
            so_far += column.widths[kind]
            share = round(so_far / total * _STEPS) / _STEPS if total > 0 else 1.0
            lower = bottom if kind == kinds[-1] else top + share * (bottom - top)
            if lower > upper:
                self._draw(Bar(kind, left, upper, right, lower))
            upper = lower
