"""Parts narrower than a column of pixels: a bar for each if they are few, else bars by their shares of the time."""

from __future__ import annotations

from simdist.trace._columns import FEW, WIDTH_PX, Bar, Columns


def _drawn(*bars: Bar) -> list[Bar]:
    drawn: list[Bar] = []
    columns = Columns(["transfer", "wait"], drawn.append)
    for bar in bars:
        columns.add("row", bar)
    columns.finish()
    return drawn


def test_a_wide_part_is_drawn_as_it_is() -> None:
    bar = Bar("wait", 1.5, 0, 1.5 + WIDTH_PX, 10)

    assert _drawn(bar) == [bar]


def test_a_few_narrow_parts_keep_a_bar_each_at_least_a_pixel_wide() -> None:
    drawn = _drawn(Bar("wait", 0, 0, 3, 10), Bar("transfer", 3, 0, 3.01, 10))

    assert drawn == [Bar("wait", 0, 0, 3, 10), Bar("transfer", 3, 0, 4, 10)]


def test_many_narrow_parts_are_divided_by_their_share_of_time() -> None:
    width = WIDTH_PX / (2 * FEW)
    kinds = ["wait", "wait", "wait", "transfer"] * (FEW // 2)

    drawn = _drawn(*(Bar(kind, n * width, 0, (n + 1) * width, 16) for n, kind in enumerate(kinds)))

    assert drawn == [Bar("transfer", 0, 0, WIDTH_PX, 4), Bar("wait", 0, 4, WIDTH_PX, 16)]


def test_a_kind_that_no_order_names_comes_last() -> None:
    width = WIDTH_PX / (2 * FEW)
    kinds = ["new", "wait"] * FEW

    drawn = _drawn(*(Bar(kind, n * width, 0, (n + 1) * width, 16) for n, kind in enumerate(kinds)))

    assert [bar.kind for bar in drawn] == ["wait", "new"]


def test_parts_without_length_are_one_bar_of_a_pixel() -> None:
    drawn = _drawn(*(Bar("wait", 2, 0, 2, 10) for _ in range(FEW + 1)))

    assert drawn == [Bar("wait", 2, 0, 3, 10)]


def test_a_wide_part_comes_after_the_narrow_ones_before_it() -> None:
    drawn = _drawn(Bar("wait", 0, 0, 1, 10), Bar("transfer", 1, 0, 9, 10))

    assert [bar.left for bar in drawn] == [0, 1]
