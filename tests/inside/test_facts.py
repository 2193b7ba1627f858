"""Every internal of Python, the system and torch on which simdist relies is as expected here."""

from __future__ import annotations

import pytest

from simdist.inside import Fact, facts


@pytest.mark.parametrize("each", facts(), ids=lambda each: each.name)
def test_it_holds_with_this_python_and_this_torch(each: Fact) -> None:
    assert each.difference() == ""


def test_each_says_where_it_comes_from_and_what_depends_on_it() -> None:
    found = facts()

    assert len(found) >= 4
    assert [each.name for each in found if not (each.what and each.source and each.seen and each.feature)] == []
    assert [each.name for each in found] == sorted(each.name for each in found)


def test_a_probe_that_raises_has_found_a_difference() -> None:
    def probe() -> str:
        raise AttributeError("there is no such thing")

    unknown = Fact("a.fact", "a thing is there", "nowhere", "never", "nothing", probe)

    assert unknown.difference() == "AttributeError: there is no such thing"
