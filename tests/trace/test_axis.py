from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.trace import short_duration
from simdist.trace._axis import TimeAxis

MS, S = 10**6, 10**9


def test_without_gaps_time_is_drawn_to_scale() -> None:
    axis = TimeAxis([0, 10, 20, 40], left=100, right=500)

    assert axis.breaks == []
    assert [axis.x(time) for time in (0, 10, 40, 99)] == [100, 200, 500, 500]


def test_a_gap_much_longer_than_all_else_is_cut() -> None:
    axis = TimeAxis([0, 2 * MS, 9 * MS, 1100 * MS, 1110 * MS], left=0, right=1000)

    assert [(gap.start_ns, gap.end_ns) for gap in axis.breaks] == [(9 * MS, 1100 * MS)]
    assert [segment.end_ns - segment.start_ns for segment in axis.segments] == [9 * MS, 10 * MS]


def test_several_gaps_are_cut_even_if_none_is_longer_than_the_others() -> None:
    axis = TimeAxis([0, 1 * S, 1801 * S, 1802 * S, 3602 * S, 3603 * S], left=0, right=1000)

    assert [(gap.start_ns // S, gap.end_ns // S) for gap in axis.breaks] == [(1, 1801), (1802, 3602)]


def test_something_is_always_left_to_scale() -> None:
    axis = TimeAxis([0, 200_000, 1800 * S], left=0, right=1000)

    assert [(segment.start_ns, segment.end_ns) for segment in axis.segments] == [(0, 200_000), (1800 * S, 1800 * S)]


def test_ticks_are_round_and_count_from_the_last_strong_one() -> None:
    axis = TimeAxis([0, 10 * MS, *range(1100 * MS, 1121 * MS, MS)], left=0, right=1000)

    labels = [(tick.label, tick.strong) for tick in axis.ticks()]

    assert labels[0] == ("0", True)
    assert ("1.1 s", True) in labels
    assert ("+10 ms", False) in labels


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0"),
        (999, "999 ns"),
        (1_500, "1.5 µs"),
        (9_579_515, "9.58 ms"),
        (1_116_530_083, "1.117 s"),
        (1800 * S, "30 min"),
        (1802_505_055_376, "30 min 2.51 s"),
        (7200 * S, "2 h"),
    ],
)
def test_a_duration_for_labels(duration_ns: int, text: str) -> None:
    assert short_duration(duration_ns) == text


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=30))
def test_time_goes_to_the_right_and_fills_the_page(times: list[int]) -> None:
    axis = TimeAxis(times, left=50, right=950)

    xs = [axis.x(time) for time in sorted(times)]

    assert all(one <= other + 1e-9 for one, other in pairwise(xs))
    assert xs[0] == 50
    assert axis.segments[-1].right == pytest.approx(950)
    assert all(50 <= tick.x <= 950.001 for tick in axis.ticks())
