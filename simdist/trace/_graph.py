"""A picture of which ranks wait for which: the ranks on a circle, and an arrow from each to those that it waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import networkx as nx

from simdist.trace._axis import short_duration
from simdist.trace._canvas import WIDTH, Canvas, Style, text_width
from simdist.trace._trace import Trace
from simdist.trace._waits import Waiting, moment_of, waiting_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["wait_graph"]

_INK, _SOFT, _RED = "#1f2933", "#64707d", "#c5401b"
_BOX, _CYCLE, _GONE = Style("#e6ebf3", "#2a62a6"), Style("#fbe6dd", _RED, "", 1.6), Style("#f6f7f9", "#c3cad2")
_MOST = 24  # ranks
_HIGH, _TOP, _BOTTOM = 38.0, 74.0, 34.0  # of a box; of the page
_WORDS_PX, _ROW_PX = 11.5, 15.0


def wait_graph(trace: Trace, *, at_ns: int | None = None, title: str = "") -> Figure:
    """Draw which ranks wait for which at one moment, 1200 pixels wide, as a figure that pyplot does not manage.

    Ranks that wait for each other in a ring are red. Of more than 24 ranks it shows those in such a ring, then those
    that others wait for, then the first others.

    Args:
        trace: the run.
        at_ns: the moment, in virtual nanoseconds; None: when the first deadlock formed, else just before the first
            failure, else the end of the run.
        title: the text above it.

    Raises:
        SimdistError: matplotlib is not installed.
    """
    time_ns = moment_of(trace) if at_ns is None else at_ns
    waiting = waiting_at(trace, time_ns)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(each.rank for each in waiting)
    graph.add_edges_from((each.rank, other) for each in waiting for other in each.ranks)
    ring = {rank for part in nx.strongly_connected_components(graph) if len(part) > 1 for rank in part}
    shown = _shown(waiting, graph, ring)
    places = _places(shown)
    canvas = Canvas(max((y for _, y in places.values()), default=_TOP) + _HIGH / 2 + _BOTTOM)
    facts = [f"at {short_duration(time_ns)} of virtual time", f"{len(waiting)} rank{'' if len(waiting) == 1 else 's'}"]
    if len(shown) < len(waiting):
        facts.append(f"{len(waiting) - len(shown)} more are not shown")
    canvas.text(16, 22, title or "who waits for whom", color=_INK, size=15.0, bold=True)
    canvas.text(16, 42, "  \N{MIDDLE DOT}  ".join(facts), color=_SOFT, size=_WORDS_PX)
    _draw(canvas, shown, graph, ring, places)
    return canvas.finish()


def _shown(waiting: Sequence[Waiting], graph: nx.DiGraph[int], ring: set[int]) -> list[Waiting]:
    order = sorted(waiting, key=lambda each: (each.rank not in ring, not graph.in_degree(each.rank), each.rank))
    return sorted(order[:_MOST], key=lambda each: each.rank)


def _places(shown: Sequence[Waiting]) -> dict[int, tuple[float, float]]:
    """Return the middle of each rank's box, clockwise from the top."""
    high = min(300.0, max(90.0, 26.0 * len(shown))) if len(shown) > 1 else 0.0
    across = min(WIDTH / 2 - _wide(shown) / 2 - 20, max(220.0, high * 1.7))
    found = {}
    for number, each in enumerate(shown):
        angle = 2 * math.pi * number / len(shown) - math.pi / 2
        y = _TOP + _HIGH / 2 + high * (1 + math.sin(angle))
        found[each.rank] = WIDTH / 2 + across * math.cos(angle), y
    return found


def _wide(shown: Sequence[Waiting]) -> float:
    return max((text_width(line, _WORDS_PX) for each in shown for line in _lines(each)), default=0.0) + 24


def _draw(
    canvas: Canvas,
    shown: Sequence[Waiting],
    graph: nx.DiGraph[int],
    ring: set[int],
    places: dict[int, tuple[float, float]],
) -> None:
    box = _wide(shown) / 2, _HIGH / 2
    for one, other in graph.edges:
        if one in places and other in places:
            back = graph.has_edge(other, one)
            color = _RED if one in ring and other in ring else _SOFT
            start, end = _edge(places[one], places[other], box), _edge(places[other], places[one], box)
            canvas.arrow(start, end, color, width=2.0 if color == _RED else 1.2, bend=0.16 if back else 0.0, head=11)
    for each in shown:
        x, y = places[each.rank]
        style = _CYCLE if each.rank in ring else _GONE if each.has_ended else _BOX
        canvas.bar(style, x - box[0], y - box[1], x + box[0], y + box[1], layer=6)
        for line, shift, color in zip(_lines(each), (-_ROW_PX / 2, _ROW_PX / 2), (_INK, _SOFT), strict=True):
            canvas.text(x, y + shift, line, color=color, size=_WORDS_PX, align="center", bold=color == _INK)


def _lines(each: Waiting) -> tuple[str, str]:
    return f"rank {each.rank}", f"{each.doing} {'at' if each.has_ended else 'since'} {short_duration(each.since_ns)}"


def _edge(place: tuple[float, float], towards: tuple[float, float], box: tuple[float, float]) -> tuple[float, float]:
    """Return where the line from the middle of a box leaves it."""
    dx, dy = towards[0] - place[0], towards[1] - place[1]
    share = min(box[side] / abs(delta) for side, delta in enumerate((dx, dy)) if delta)
    return place[0] + dx * share * 1.04, place[1] + dy * share * 1.04
