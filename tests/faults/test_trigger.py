"""The trigger machine alone: compared with a model that counts the whole history each time, and step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.faults import Trigger, Watch, Watches

Happening = tuple[str, Any]

counts = st.integers(1, 4)
triggers = st.one_of(
    st.builds(Trigger, step=st.integers(0, 3), every=st.none() | counts, waits=st.booleans()),
    st.builds(
        Trigger,
        step=st.none() | st.integers(0, 3),
        point=st.sampled_from(["saved", "loaded"]),
        nth=counts,
        every=st.none() | counts,
        waits=st.booleans(),
        probability=st.none() | st.sampled_from([0.25, 0.5, 1.0]),
    ),
    st.builds(
        Trigger,
        step=st.none() | st.integers(0, 3),
        on_operation=st.just(True),
        operations=st.none() | st.sampled_from([("barrier",), ("all_reduce", "barrier")]),
        nth=counts,
        every=st.none() | counts,
        waits=st.booleans(),
        probability=st.none() | st.sampled_from([0.25, 0.5, 1.0]),
    ),
)
happenings: st.SearchStrategy[list[Happening]] = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 5)),
        st.tuples(st.just("point"), st.sampled_from(["saved", "loaded"])),
        st.tuples(st.just("operation"), st.sampled_from(["all_reduce", "barrier", "broadcast"])),
        st.tuples(st.just("release"), st.none()),
    ),
    max_size=30,
)


def never() -> float:
    raise AssertionError("a number was drawn for a trigger without a probability")


def numbers(values: Sequence[float]) -> Callable[[], float]:
    return iter(values).__next__


def driven(watches: Watches[str], happened: Sequence[Happening]) -> list[tuple[int, str]]:
    """Return which watches strike, each with the index of the happening."""
    found = []
    for index, (kind, value) in enumerate(happened):
        if kind == "release":
            for _, watch in watches:
                watch.released(0, 0)
        else:
            found += [(index, key) for key in getattr(watches, kind)(value)]
    return found


def watched(trigger: Trigger, draw: Callable[[], float] = never) -> Watches[str]:
    watches: Watches[str] = Watches()
    watches.add("it", Watch(trigger, draw))
    return watches


def source_of(trigger: Trigger) -> str:
    return "operation" if trigger.on_operation else "step" if trigger.point is None else "point"


def is_moment(trigger: Trigger, happened: Sequence[Happening], index: int) -> bool:
    """True if the trigger could strike at `happened[index]`: checks all of its conditions on the whole history."""
    kind, value = happened[index]
    released = ("release", None) in happened[:index] or not trigger.waits
    if kind != source_of(trigger) or not released:
        return False
    every = trigger.every
    if kind == "step":
        distance = value - (trigger.step or 0)
        return distance == 0 or (every is not None and distance > 0 and distance % every == 0)
    begun = [i for i in range(index) if happened[i][0] == "step"]
    if trigger.step is not None and (not begun or happened[begun[-1]][1] != trigger.step):
        return False
    first = begun[-1] if trigger.step is not None else 0
    if trigger.waits:
        first = max(first, happened.index(("release", None)))
    wanted = trigger.operations if trigger.on_operation else (trigger.point,)
    matching = [
        i for i in range(first, index + 1) if happened[i][0] == kind and (not wanted or happened[i][1] in wanted)
    ]
    if not matching or matching[-1] != index:
        return False
    beyond = len(matching) - trigger.nth
    return beyond >= 0 and (every is None or beyond % every == 0)


@given(triggers, happenings, st.lists(st.sampled_from([0.0, 0.3, 0.7, 0.99]), min_size=30, max_size=30))
def test_a_trigger_strikes_where_a_count_of_the_whole_history_says(
    trigger: Trigger, happened: list[Happening], draws: list[float]
) -> None:
    struck = driven(watched(trigger, never if trigger.probability is None else numbers(draws)), happened)

    left = iter(draws)
    expected: list[tuple[int, str]] = []
    for index in range(len(happened)):
        done = expected and trigger.every is None
        if done or not is_moment(trigger, happened, index):
            continue
        if trigger.probability is None or next(left) < trigger.probability:
            expected.append((index, "it"))
    assert struck == expected


@given(st.lists(triggers, max_size=4), happenings)
def test_triggers_of_one_rank_do_not_disturb_each_other(several: list[Trigger], happened: list[Happening]) -> None:
    watches: Watches[str] = Watches()
    for index, trigger in enumerate(several):
        watches.add(str(index), Watch(trigger, lambda: 0.0))

    alone = [
        (place, str(index))
        for index, trigger in enumerate(several)
        for place, _ in driven(watched(trigger, lambda: 0.0), happened)
    ]
    assert driven(watches, happened) == sorted(alone)


@given(
    at_ns=st.integers(0, 100),
    period_ns=st.none() | st.integers(1, 30),
    origin_ns=st.none() | st.integers(0, 100),
    late_ns=st.integers(0, 200),
)
def test_alarms_stand_on_the_grid_of_the_period(
    at_ns: int, period_ns: int | None, origin_ns: int | None, late_ns: int
) -> None:
    now_ns = (origin_ns or 0) + late_ns
    watch = Watch(Trigger(at_ns=at_ns, period_ns=period_ns, waits=origin_ns is not None), never, now_ns)
    if origin_ns is not None:
        assert watch.alarm_ns is None
        watch.released(origin_ns, now_ns)
    first_ns = (origin_ns or 0) + at_ns

    seen: list[int] = []
    while watch.alarm_ns is not None and len(seen) < 4:
        seen.append(watch.alarm_ns)
        assert watch.alarm()

    if period_ns is None:
        assert seen == [max(first_ns, now_ns)]
        assert watch.spent
    else:
        grid = [first_ns + k * period_ns for k in range(500)]
        assert seen == [moment for moment in grid if moment >= now_ns][:4]


def test_an_alarm_with_a_probability_has_one_chance_for_each_time() -> None:
    watch = Watch(Trigger(at_ns=5, period_ns=10, probability=0.5), numbers([0.9, 0.1, 0.6]))

    struck = []
    for _ in range(3):
        at_ns = watch.alarm_ns
        struck.append((at_ns, watch.alarm()))

    assert struck == [(5, False), (15, True), (25, False)]
    assert not watch.spent


def test_after_another_fault_alone_is_an_alarm_at_its_strike() -> None:
    watch = Watch(Trigger(waits=True), never)

    watch.released(7, 9)
    watch.released(20, 20)

    assert watch.alarm_ns == 9
    assert watch.alarm()
    assert not watch.alarm()


def pair(first: Trigger, second: Trigger) -> Watches[str]:
    watches: Watches[str] = Watches()
    watches.add("first", Watch(first, numbers([0.0])))
    watches.add("second", Watch(second, numbers([0.0])))
    return watches


@pytest.mark.parametrize(
    "first",
    [Trigger(on_operation=True, when="after"), Trigger(on_operation=True, raises=True)],
    ids=["another side", "an exception"],
)
def test_what_could_not_strike_strikes_at_the_next_match_without_a_draw(first: Trigger) -> None:
    watches = pair(first, Trigger(on_operation=True, operations=("barrier",), probability=0.5))

    struck = [watches.operation(name) for name in ("barrier", "all_reduce", "barrier", "barrier")]

    assert struck == [["first"], [], ["second"], []]


def test_those_of_one_side_strike_together() -> None:
    assert pair(Trigger(on_operation=True), Trigger(on_operation=True)).operation("barrier") == ["first", "second"]


def test_an_operation_in_a_step_counts_if_the_other_fault_struck_within_it() -> None:
    trigger = Trigger(step=2, on_operation=True, waits=True)

    struck = driven(watched(trigger), [("step", 2), ("operation", "x"), ("release", None), ("operation", "x")])

    assert struck == [(3, "it")]
