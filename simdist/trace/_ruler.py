"""Draws the time axis of a picture: its stretches, the signs of breaks, and the times below."""

from __future__ import annotations

from simdist.trace._axis import TimeAxis, short_duration
from simdist.trace._canvas import Canvas, text_width

__all__ = ["draw_ruler"]

_INK, _SOFT = "#1f2933", "#64707d"
_SMALL_PX = 10.5


def draw_ruler(canvas: Canvas, axis: TimeAxis, y: float) -> None:
    """Draw the axis at height `y`; its words need 20 pixels below."""
    for segment in axis.segments:
        canvas.line([(segment.left, y), (segment.right, y)], _SOFT)
    for gap in axis.breaks:
        middle = (gap.left + gap.right) / 2
        canvas.line([(gap.left, y), (gap.right, y)], _SOFT, dash=":")
        canvas.text(
            middle, y + 14, f"{short_duration(gap.end_ns - gap.start_ns)}", color=_SOFT, size=_SMALL_PX,
            align="center",
        )  # fmt: skip
        for x in (gap.left, gap.right):  # the usual sign for a cut: two strokes
            for shift in (-2.0, 2.0):
                canvas.line([(x + shift - 3, y + 6), (x + shift + 3, y - 6)], _SOFT, width=1.3)
    taken = [_centred(gap.left / 2 + gap.right / 2, short_duration(gap.end_ns - gap.start_ns)) for gap in axis.breaks]
    ticks = axis.ticks()
    for tick in sorted(ticks, key=lambda tick: not tick.strong):
        label = _centred(tick.x, tick.label)
        canvas.line([(tick.x, y), (tick.x, y + (6 if tick.strong else 4))], _SOFT)
        if all(label[1] + 8 <= start or end + 8 <= label[0] for start, end in taken):
            taken.append(label)
            color = _INK if tick.strong else _SOFT
            canvas.text(tick.x, y + 14, tick.label, color=color, size=_SMALL_PX, align="center")
    canvas.text(16, y + 14, "time", color=_SOFT, size=_SMALL_PX)


def _centred(x: float, text: str) -> tuple[float, float]:
    half = text_width(text, _SMALL_PX) / 2
    return x - half, x + half
