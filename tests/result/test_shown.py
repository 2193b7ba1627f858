"""The display of a result in a notebook."""

from __future__ import annotations

from typing import Any

import pytest

import simdist


class Printer:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    "made",
    [
        lambda: simdist.run(int, world_size=2),
        lambda: simdist.explore(int, world_size=2, runs=2),
        lambda: simdist.run_many(int, world_size=2, seeds=2),
    ],
    ids=["run", "explore", "run_many"],
)
def test_a_notebook_shows_the_report_and_not_all_fields(made: Any) -> None:
    printer, result = Printer(), made()

    # IPython takes the first class that shows itself in one of the two ways.
    first = next(each for each in type(result).mro() if {"_repr_pretty_", "__repr__"} & vars(each).keys())
    vars(first)["_repr_pretty_"](result, printer, False)

    assert printer.texts == [str(result)]
    assert str(result) != repr(result)
