"""A drawing surface in pixels over matplotlib: bars, lines, arrows, text; and files that are the same for equal runs.

matplotlib is the extra `plot`. Figures are made without pyplot, so nothing global is touched. Text becomes outlines of
the font that matplotlib ships, so a picture looks the same in every viewer.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from simdist.errors import SimdistError
from simdist.values import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WIDTH", "Canvas", "Style", "save", "text_width"]

WIDTH = 1200
_DPI = 100
_PT = 72 / _DPI  # points per pixel
_SETTINGS: Any = {
    "svg.hashsalt": "simdist",
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "hatch.linewidth": 0.8,
    "path.simplify": False,
}


@dataclass(frozen=True, slots=True)
class Style:
    """The appearance of an area."""

    fill: str = "none"
    edge: str = "none"
    hatch: str = ""
    line_px: float = 0.8


def save(figure: Figure, out: Path | IO[bytes], suffix: str | None = None) -> None:
    """Write the picture as SVG or PNG, by the file's ending or by `suffix`; equal pictures give equal bytes.

    Raises:
        SimdistError: the ending is neither.
    """
    ending = suffix if suffix is not None or not isinstance(out, Path) else out.suffix
    kind = (ending or "").lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise SimdistError(f"{out}: a timeline is written as .svg or .png")
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with _settings(), _without_letters_that_are_missing():
        figure.savefig(out, format=kind, dpi=_DPI if kind == "svg" else 2 * _DPI, metadata=metadata)


def _settings() -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(_SETTINGS)


@contextmanager
def _without_letters_that_are_missing() -> Iterator[None]:
    """Suppress warnings about letters that the font lacks; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        yield


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size_px: float, bold: bool = False) -> float:
    """Return the width of a text, in pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    weight = "bold" if bold else "normal"
    font = FontProperties(family="DejaVu Sans", weight=weight)
    text = plain(text).replace("$", r"\$")  # else it may be taken for a formula
    if not text.strip():
        return 0.0
    with _without_letters_that_are_missing():
        return float(TextPath((0, 0), text, size=size_px, prop=font).get_extents().width)


class Canvas:
    """A white page, `WIDTH` pixels wide; (0, 0) is its upper left corner.

    Bars of one style become one path: a long run has tens of thousands of them.
    """

    def __init__(self, height: float) -> None:
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise SimdistError(
                "a timeline needs matplotlib, which is not installed: pip install 'simdist[plot]'"
            ) from None
        with _settings():
            self.figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
            self._axes = self.figure.add_axes((0, 0, 1, 1), frameon=False)
        self._axes.set_xlim(0, WIDTH)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        self._bars: dict[tuple[Style, int], list[tuple[float, float, float, float]]] = {}

    def bar(self, style: Style, left: float, top: float, right: float, bottom: float, *, layer: int = 2) -> None:
        """Draw an area; one that touches its neighbour is joined with it."""
        bars = self._bars.setdefault((style, layer), [])
        if bars and not style.hatch and style.edge == "none":
            before = bars[-1]
            if before[1] == top and before[3] == bottom and before[0] <= left <= before[2] + 0.25:
                bars[-1] = (before[0], top, max(right, before[2]), bottom)
                return
        bars.append((left, top, right, bottom))

    def line(
        self, points: Sequence[tuple[float, float]], color: str, *, width: float = 1.0, dash: Any = "-", layer: int = 3
    ) -> None:
        """Draw a line through the points."""
        from matplotlib.lines import Line2D

        xs, ys = [point[0] for point in points], [point[1] for point in points]
        line = Line2D(xs, ys, color=color, linewidth=width * _PT, linestyle=dash, zorder=layer, solid_capstyle="butt")
        self._axes.add_artist(line)  # `plot` and `add_patch` would compute limits, which are set

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        color: str,
        *,
        width: float = 1.2,
        bend: float = 0.0,
        head: float = 8.0,
        layer: int = 5,
    ) -> None:
        """Draw an arrow from `start` to `end`; `bend` makes it an arc."""
        from matplotlib.patches import FancyArrowPatch

        self._axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                connectionstyle=f"arc3,rad={bend}",
                mutation_scale=head * _PT * 1.4,
                color=color,
                linewidth=width * _PT,
                shrinkA=0,
                shrinkB=0,
                zorder=layer,
            )
        )

    def cross(self, x: float, y: float, color: str, *, size: float = 5.0, layer: int = 6) -> None:
        """Draw a cross on a white halo."""
        for width, ink in ((4.6, "white"), (2.2, color)):
            self.line([(x - size, y - size), (x + size, y + size)], ink, width=width, layer=layer)
            self.line([(x - size, y + size), (x + size, y - size)], ink, width=width, layer=layer)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str,
        size: float,
        align: str = "left",
        bold: bool = False,
        halo: bool = False,
        layer: int = 7,
    ) -> None:
        """Draw a text whose middle is at height `y`; a `halo` hides things under it. Control characters are escaped."""
        text = plain(text)
        if halo:
            left = x - text_width(text, size, bold) / 2 if align == "center" else x
            half = size * 0.55
            self.bar(
                Style("white"), left - 2, y - half, left + text_width(text, size, bold) + 2, y + half, layer=layer - 1
            )
        self._axes.text(
            x,
            y,
            text,
            color=color,
            fontsize=size * _PT,
            ha=align,
            va="center_baseline",
            fontweight="bold" if bold else "normal",
            zorder=layer,
            parse_math=False,
        )

    def finish(self) -> Figure:
        """Put the bars on the page, and return the picture."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        for (style, layer), bars in self._bars.items():
            corners: list[tuple[float, float]] = []
            for left, top, right, bottom in bars:
                corners += [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
            codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(bars)
            self._axes.add_artist(
                PathPatch(
                    Outline([(round(x, 2), round(y, 2)) for x, y in corners], codes),
                    facecolor=style.fill,
                    edgecolor=style.edge,
                    hatch=style.hatch or None,
                    linewidth=style.line_px * _PT if style.edge != "none" and not style.hatch else 0.0,
                    zorder=layer,
                )
            )
        return self.figure
