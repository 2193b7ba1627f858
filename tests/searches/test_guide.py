"""Plans that reach something new lead to further plans, which do not depend on the number of workers."""

from __future__ import annotations

from typing import Any

import pytest

import simdist
from simdist.cluster import build
from simdist.faults import Crash, Hang, Surroundings, problems_of
from simdist.searches import Attempt, Facts, FuzzReport, _fuzz
from simdist.searches._guide import GENERATION, Guide, Reached, reached_by
from tests.searches.programs import all_together, begins_again

FAMILIES = ("crash", "exception", "slow", "network")


def guide() -> Guide:
    facts = Facts.of(simdist.run(all_together, world_size=4))
    world = Surroundings(4, max_restarts=2, has_disk=False, has_local_disks=False)
    return Guide(3, facts, world, budget=1, families=FAMILIES)


def reached(number: int) -> frozenset[Reached]:
    """Return what the run of a plan might reach: every third plan something new."""
    return frozenset({Reached("all_reduce", "crash", f"called afterwards {number // 3}")})


def generation(drawn: Guide, first: int) -> list[Attempt]:
    """Return the plans of a generation, all of them drawn before the first one runs."""
    plans = [drawn.plan(number) for number in range(first, first + GENERATION)]
    for number in range(first, first + GENERATION):
        drawn.learn(number, reached(number))
    drawn.end_generation()
    return plans


def test_a_plan_does_not_depend_on_who_runs_the_others_of_its_generation() -> None:
    ahead, one_by_one = guide(), guide()
    expected = generation(ahead, 0) + generation(ahead, GENERATION)

    found = []
    for number in range(2 * GENERATION):
        found.append(one_by_one.plan(number))
        one_by_one.learn(number, reached(number))
        if number % GENERATION == GENERATION - 1:
            one_by_one.end_generation()

    assert found == expected


def test_changed_plans_fit_the_world_and_strike_no_more_ranks() -> None:
    drawn = guide()
    plans = [plan for first in range(0, 6 * GENERATION, GENERATION) for plan in generation(drawn, first)]

    for plan in plans:
        assert not problems_of(plan.faults, 4, max_restarts=2, has_disk=False)
        assert len({fault.target for fault in plan.faults if fault.target is not None}) <= 1
        assert sum(fault.kind in ("crash", "raise") for fault in plan.faults) <= 2
        assert len(plan.faults) <= 4
    assert any(getattr(fault, "life", 0) for plan in plans[GENERATION:] for fault in plan.faults)
    assert not any(getattr(fault, "life", 0) for plan in plans[:GENERATION] for fault in plan.faults)


def test_no_plan_strikes_all_of_a_group_that_is_spared() -> None:
    facts = Facts.of(simdist.run(all_together, world_size=4, cluster=build(4, hosts=2)))
    world = Surroundings(4, max_restarts=2, has_disk=False, has_local_disks=False)
    drawn = Guide(3, facts, world, budget=4, families=("crash", "host"), spare=[(0, 1), (0, 2)])
    plans = [plan for first in range(0, 4 * GENERATION, GENERATION) for plan in generation(drawn, first)]
    struck = [frozenset().union(*(fault.struck_ranks(facts.hosts) for fault in plan.faults)) for plan in plans]

    assert facts.hosts == ("host0", "host0", "host1", "host1")
    assert not [ranks for ranks in struck if ranks >= {0, 1} or ranks >= {0, 2}]
    assert {frozenset({2, 3}), frozenset({1, 2, 3})} <= {*struck}


def test_a_run_reaches_operations_with_faults_and_phases() -> None:
    faults = [Hang(rank=1, op="all_reduce", nth=2, when="during", duration_ns=1_000_000), Crash(rank=0, nth=4)]
    result = simdist.run(begins_again, world_size=2, faults=faults, max_restarts=1)

    assert reached_by(result) == {
        Reached("all_reduce", "hang", "inside in life 0"),
        Reached("all_reduce", "hang", "called afterwards"),
        Reached("all_reduce", "crash", "after in life 0"),
        Reached("all_reduce", "crash", "ended with RuntimeError"),
        Reached("all_reduce", "crash", "called afterwards"),
        Reached("broadcast", "crash", "called afterwards"),
    }


def test_nothing_is_reached_without_a_fault() -> None:
    assert reached_by(simdist.run(all_together, world_size=4)) == frozenset()


def test_a_bug_of_a_recovery_is_found_by_plans_that_build_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> FuzzReport:
        about: dict[str, Any] = {"families": ["crash", "exception"], "seed_of_plans": 24, "shrink": False}
        return simdist.fuzz(begins_again, world_size=2, runs=24, max_restarts=2, **about)

    monkeypatch.setattr(_fuzz, "GENERATION", 16)
    guided = search()
    monkeypatch.setattr(_fuzz, "GENERATION", 1_000)
    alone = search()

    (bug,) = guided.bugs
    assert "a rank that begins again gets the state" in str(bug.cause)
    assert bug.first >= 16
    assert alone.ok
    assert alone.reached < guided.reached
