"""The streams of each device: kernels next to the collectives that overlap with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from simdist.result import Span
from simdist.trace._axis import TimeAxis, short_duration
from simdist.trace._canvas import WIDTH, Canvas, Style, text_width
from simdist.trace._ruler import draw_ruler
from simdist.trace._trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["StreamRun", "stream_timeline"]

_INK, _SOFT, _FAINT = "#1f2933", "#64707d", "#d5dae0"
_KERNEL, _COPY, _COLLECTIVE = Style("#c8d7ea", "#2a62a6"), Style("#e9ebee", "#64707d"), Style("#2a62a6", "#1f2933")
_LANE = Style("#f6f7f9")
_LEFT, _RIGHT, _ROW, _GAP = 168.0, WIDTH - 16.0, 24.0, 12.0
_SMALL_PX, _TEXT_PX = 10.5, 11.5
_MOST = 8  # ranks


class StreamRun(Protocol):
    """A kernel's time on a stream, as `simdist.device.KernelRun` has it; times in virtual nanoseconds."""

    @property
    def rank(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def stream(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


class _Row:
    """One stream of a rank, or its collectives, from top to bottom by `places`."""

    def __init__(self, label: str, bars: Iterable[tuple[int, int, str, Style]]) -> None:
        self.label = label
        self.bars = sorted(bars, key=lambda bar: bar[:2])


def stream_timeline(trace: Trace, kernels: Iterable[StreamRun], *, title: str = "") -> Figure:
    """Draw the streams of each rank's device, 1200 pixels wide, as a matplotlib figure that pyplot does not manage.

    A rank has a row for each stream with kernels and one for its collectives, from when their data flows. If the
    program names its steps (`simdist.step`), the picture begins when the host begins the last step, else with the run.
    Of more than 8 ranks the first are shown.

    Args:
        trace: the run.
        kernels: the times of its kernels, in virtual nanoseconds.
        title: the text above it.

    Raises:
        SimdistError: matplotlib is not installed.
    """
    start_ns, end_ns, what = _window(trace)
    ranks = trace.ranks[:_MOST]
    kept = [each for each in kernels if each.rank in ranks and each.end_ns > start_ns and each.start_ns < end_ns]
    spans = [
        span
        for span in trace.spans
        if span.rank in ranks and span.is_operation and span.begin_ns is not None and span.end == "complete"
        if span.end_ns > start_ns and span.begin_ns < end_ns
    ]
    points = [time for each in kept for time in (each.start_ns, each.end_ns)]
    points += [time for span in spans for time in (span.begin_ns or 0, span.end_ns)]
    axis = TimeAxis(points or [start_ns, end_ns], left=_LEFT, right=_RIGHT)
    rows = {rank: list(_rows(rank, kept, spans)) for rank in ranks}
    height = 62 + sum(len(each) * _ROW + _GAP for each in rows.values()) + 66
    canvas = Canvas(height)
    canvas.text(16, 22, title or "streams", color=_INK, size=15.0, bold=True)
    facts = [what, f"{short_duration(max(points, default=0) - min(points, default=0))} of virtual time"]
    facts.append(f"{len(kept)} kernels, {len(spans)} collectives")
    if len(trace.ranks) > _MOST:
        facts.append(f"{len(trace.ranks) - _MOST} more ranks are not shown")
    canvas.text(16, 42, "  \N{MIDDLE DOT}  ".join(facts), color=_SOFT, size=_TEXT_PX)
    y = 62.0
    for rank, each in rows.items():
        canvas.text(16, y + _ROW / 2, f"rank {rank}", color=_INK, size=_TEXT_PX)
        for row in each:
            _draw(canvas, axis, row, y)
            y += _ROW
        y += _GAP
    draw_ruler(canvas, axis, y + 2)
    x = 16.0
    for style, text in ((_KERNEL, "kernel"), (_COPY, "copy"), (_COLLECTIVE, "collective: data on its way")):
        canvas.bar(style, x, height - 24, x + 22, height - 12)
        canvas.text(x + 28, height - 18, text, color=_SOFT, size=_TEXT_PX)
        x += 50 + text_width(text, _TEXT_PX)
    return canvas.finish()


def _window(trace: Trace) -> tuple[int, int, str]:
    """Return from when to when to draw, in virtual nanoseconds, and a description of it."""
    steps = [mark for mark in trace.of_kind("step") if mark.rank == min(trace.ranks, default=0)]
    if not steps:
        return trace.start_ns, trace.end_ns, "the whole run"
    return steps[-1].time_ns, trace.end_ns, f"since the host began step {steps[-1].data.get('step')}"


def _rows(rank: int, kernels: Sequence[StreamRun], spans: Sequence[Span]) -> Iterable[_Row]:
    own = [each for each in kernels if each.rank == rank]
    for device, stream in sorted({(each.device, each.stream) for each in own}):
        there = [each for each in own if (each.device, each.stream) == (device, stream)]
        yield _Row(
            f"cuda:{device}, {f'stream {stream}' if stream else 'default'}",
            ((each.start_ns, each.end_ns, each.name, _COPY if each.name == "copy" else _KERNEL) for each in there),
        )
    yield _Row(
        "collectives",
        ((span.begin_ns or 0, span.end_ns, span.name, _COLLECTIVE) for span in spans if span.rank == rank),
    )


def _draw(canvas: Canvas, axis: TimeAxis, row: _Row, y: float) -> None:
    canvas.text(_LEFT - 108, y + _ROW / 2, row.label, color=_SOFT, size=_SMALL_PX)
    canvas.bar(_LANE, _LEFT, y + 2, _RIGHT, y + _ROW - 2, layer=0)
    for start, end, name, style in row.bars:
        left, right = axis.x(start), axis.x(end)
        canvas.bar(style, left, y + 4, max(right, left + 0.6), y + _ROW - 4)
        if right - left >= text_width(name, _SMALL_PX) + 8:
            color = "white" if style is _COLLECTIVE else _INK
            canvas.text(left + 4, y + _ROW / 2, name, color=color, size=_SMALL_PX)
