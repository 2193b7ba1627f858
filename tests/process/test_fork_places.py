"""A dictionary that a parent and its forked children read has the contents of the one that has the baton."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.inside.python import count_of_changes, namespace_of
from simdist.process.modules import _fork_copies
from simdist.process.modules._fork_copies import _Own, _Place

PARENT, NAMES = 2, "abcd"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("switch"), st.integers(0, PARENT), st.none()),
        st.tuples(st.just("set"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES), st.none()),
    ),
    max_size=24,
)
CONTENTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3))


class _Uncounted:
    """A count of an interpreter that has none: each reading is a new number."""

    _last = 0

    @property
    def value(self) -> int:
        self._last += 1
        return self._last


@pytest.mark.parametrize("count", [count_of_changes, lambda _: _Uncounted()], ids=["counted", "uncounted"])
@given(start=CONTENTS, own=st.tuples(CONTENTS, CONTENTS), steps=STEPS)
def test_each_process_reads_what_it_has_written_and_nothing_else(
    count: Callable[[dict[str, Any]], Any], start: dict[str, int], own: tuple[dict[str, int], ...], steps: list[Any]
) -> None:
    class Owner:
        pass

    space = namespace_of(Owner)
    rest = dict(space)
    space.update(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fork_copies, "count_of_changes", count)
        place = _Place(space, Owner)
    children = [_Own(place, rest | each) for each in own]
    wanted: list[dict[str, Any]] = [*map(dict, own), dict(start)]
    present = PARENT
    for kind, which, value in [*steps, *(("switch", each, None) for each in (0, 1, PARENT))]:
        if kind == "switch" and which != present:
            if present != PARENT:
                children[present].leave()
            if which != PARENT:
                children[which].enter()
            present = which
        elif kind == "set":
            setattr(Owner, which, value)
            wanted[present][which] = value
        elif kind == "delete" and which in space:
            delattr(Owner, which)
            del wanted[present][which]
        assert {name: value for name, value in space.items() if name not in rest} == wanted[present]
        assert all(getattr(Owner, name, None) == wanted[present].get(name) for name in NAMES)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="dictionaries do not count their changes there")
def test_a_hand_over_compares_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces: list[dict[str, Any]] = [{"a": index, "table": []} for index in range(3)]
    places = [_Place(each, None) for each in spaces]
    children = [[_Own(place, dict(place.space) | {"table": [child]}) for place in places] for child in range(2)]
    compared: list[dict[str, Any]] = []
    differing = _fork_copies._differing

    def noted(wanted: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
        compared.append(present)
        return differing(wanted, present)

    monkeypatch.setattr(_fork_copies, "_differing", noted)

    def turn(child: list[_Own], change: Callable[[], None] = lambda: None) -> int:
        compared.clear()
        for each in child:
            each.enter()
        change()
        for each in child:
            each.leave()
        return len(compared)

    first, second = children
    assert turn(first) == turn(second) == 3
    assert turn(first) == turn(second) == 0
    assert turn(first, lambda: spaces[1].update(a=7)) == 1
    assert spaces[1]["a"] == 1
    assert turn(second) == 0
    spaces[2]["a"] = 5
    assert turn(first) == turn(second) == 1
    assert turn(first) == turn(second) == 0
