"""A search over schedules finds those under which a program fails, and replays them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist.errors import ArgumentError, RunFailedError
from simdist.faults import Hang
from simdist.searches import ExploreReport, Facts, schedule
from tests.searches.programs import all_together, check_then_act, first_come, lost_update, wrong_sum


def test_a_program_that_never_depends_on_its_schedule_has_one_outcome() -> None:
    report = simdist.explore(all_together, world_size=3, runs=25, one_outcome=True)

    assert report.ok
    assert (report.runs, len(report.outcomes), report.outcomes[0].count) == (25, 1, 25)
    assert report.outcomes[0].text == "ranks 0-2 returned 27.0"
    report.raise_for_failure()


@pytest.fixture(scope="module")
def lost() -> ExploreReport:
    """The report of a search that lost an update."""
    return simdist.explore(lost_update, world_size=3, runs=40, until_found=True)


def test_a_lost_update_is_found_with_the_moment_at_which_it_was_lost(lost: ExploreReport) -> None:
    (failure,) = lost.failures
    assert failure.first > 0
    assert (failure.cause.kind, failure.cause.where[:11]) == ("raised", "programs.py")
    assert "2 of 3 updates" in failure.cause.text
    assert isinstance(failure.attempt.faults[0], Hang)
    with pytest.raises(RunFailedError, match=r"found: rank \d raised ValueError: 2 of 3 updates"):
        lost.raise_for_failure()


def test_the_schedule_of_a_failure_fails_again(lost: ExploreReport) -> None:
    attempt = lost.failures[0].attempt

    again = simdist.run(lost_update, world_size=3, policy=attempt.policy, faults=attempt.faults)

    assert "2 of 3 updates" in str(again.first_failure())
    assert f"policy={attempt.policy!r}" in lost.failures[0].replay


def test_receives_from_anyone_meet_in_every_order() -> None:
    report = simdist.explore(first_come, world_size=4, runs=30)

    assert report.ok
    assert len(report.outcomes) == 6
    assert sum(outcome.count for outcome in report.outcomes) == 30


def test_an_outcome_that_depends_on_the_schedule_may_be_a_failure() -> None:
    report = simdist.explore(first_come, world_size=3, runs=20, one_outcome=True)

    assert not report.ok
    assert "found: the outcome depends on the schedule" in str(report)


def test_a_race_between_threads_is_found_and_became_inevitable_somewhere() -> None:
    report = simdist.explore(check_then_act, world_size=1, runs=10)

    (failure,) = report.failures
    assert failure.cause.text == "rank 0 raised Empty"
    assert failure.turning_point is not None
    assert failure.turning_point.decision > 1
    assert "new draws before that still passed" in str(report)


def test_what_judges_find_and_what_is_never_reached_is_reported() -> None:
    report = simdist.explore(wrong_sum, world_size=2, runs=3)

    assert [failure.cause.kind for failure in report.failures] == ["finding"]
    assert report.failures[0].count == 3
    assert report.sometimes == {"large": False}
    assert "never reached: large" in str(report)


def test_the_same_search_finds_the_same() -> None:
    once, again = (simdist.explore(first_come, world_size=3, runs=12) for _ in range(2))

    assert once == again
    assert once.summary() == again.summary()


def test_a_schedule_depends_on_its_number_alone() -> None:
    facts = Facts.of(simdist.run(all_together, world_size=3))
    drawn = [schedule(number, 0, facts) for number in range(40)]

    assert drawn == [schedule(number, 0, facts) for number in range(40)]
    assert len({attempt.policy for attempt in drawn}) == 40
    assert {attempt.policy.partition("@")[0] for attempt in drawn} == {"random", "pct:2", "pct:3", "pct:4", "pct:5"}
    assert 10 < sum(bool(attempt.faults) for attempt in drawn) < 30


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runs": 0}, "runs: 0 is no count; 1 is the least"),
        ({"policy": "fifo"}, "policy: a search has its own"),
        ({"world_sise": 2}, "world_sise: unknown argument; did you mean 'world_size'?"),
        ({"world_size": 0}, "world_size: "),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said.replace("?", r"\?")):
        simdist.explore(all_together, **{"world_size": 2, **given})


def test_threads_under_priorities_do_the_same_each_time() -> None:
    digests = [
        [simdist.run(check_then_act, world_size=1, policy=f"pct:3@{seed}").digest for seed in range(20)]
        for _ in range(2)
    ]

    assert digests[0] == digests[1]


def asks_again_and_again() -> int:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    store.add("done", 1)
    while (count := int(store.add("done", 0))) < 2:
        pass
    dist.barrier()
    return count


def test_a_run_that_asks_for_a_starved_rank_has_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.programs._attempt._EVENTS", 300)  # else it would take a minute

    report = simdist.explore(asks_again_and_again, world_size=2, runs=8, one_outcome=True)

    assert report
    assert [outcome.text for outcome in report.outcomes] == ["ranks 0, 1 returned 2"]
    assert report.cut == 8 - report.outcomes[0].count > 0
    assert str(report).endswith(" cut short: ranks asked again and again for one that was starved")
