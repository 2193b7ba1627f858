"""The fixture `sim`: worlds driven from outside."""

from __future__ import annotations

import pytest

from tests.testing.runs import PytestRun, Run, run_samples, section
from tests.warm import Interpreters


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory, interpreters: Interpreters) -> PytestRun:
    return run_samples(tmp_path_factory.mktemp("driven"), "driven", "under_way", start=interpreters.run)


def test_every_sample_ends_as_its_name_says(driven: PytestRun) -> None:
    words = {"passes": {"passed"}, "fails": {"failed"}, "error": {"error", "passed"}}
    outcomes = driven.outcomes

    assert len(outcomes) > 50, driven.text
    wrong = {name: outcome for name, outcome in outcomes.items() if outcome not in words[name.split("_")[1]]}
    assert wrong == {}, driven.text


def test_a_fault_that_no_world_came_after_is_reported(driven: PytestRun) -> None:
    assert "ERROR at teardown of test_error_because_no_world_came_after_the_fault" in driven.text
    assert "was given to 'sim', and no world was started after it" in driven.text


def test_a_fault_whose_world_was_refused_is_one_failure_and_no_error(driven: PytestRun) -> None:
    name = "test_fails_because_a_fault_does_not_fit_its_world"

    assert "rank 7 is outside the world of 2 ranks" in section(driven, name)
    assert f"ERROR at teardown of {name}" not in driven.text


def test_a_failure_shows_the_line_of_the_test_and_that_of_the_rank(driven: PytestRun) -> None:
    text = section(driven, "test_fails_because_a_rank_failed")

    assert ">       sim.run(lambda: 1 // 0, world_size=2)" in text
    assert "ZeroDivisionError" in text
    assert "rank 0, first to fail" in text
    assert "simdist/testing" not in text


def test_a_failed_assertion_of_the_host_comes_with_the_last_world(run: Run) -> None:
    source = """
def test_it(sim):
    result = sim.run(lambda: print("hello"), world_size=2)
    assert result.values == [1, 2]
"""
    text = section(run(files={"test_it.py": source}), "test_it")

    assert "assert [None, None] == [1, 2]" in text
    assert "ranks 0, 1, at 0 ns: returned\n    stdout | hello" in text


def test_a_world_under_way_when_the_test_fails_is_ended(driven: PytestRun) -> None:
    text = section(driven, "test_fails_with_a_world_left_behind")

    assert "3 ranks, under way at 1 s of virtual time" in text
    assert "rank 2: running, waits in sleep until 1.000200000 s" in text
