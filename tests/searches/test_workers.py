"""A search finds the same in several processes as in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.errors import ArgumentError
from simdist.scenario import Plan, load
from simdist.searches import FuzzReport, Tries, explore_plan, fuzz_plan
from tests.programs.pools import standing_in
from tests.searches.programs import all_together, first_come, gives_up, lost_update

PROGRAMS = Path(__file__).parent


def saving(folder: Path) -> Plan:
    path = folder / "saving.toml"
    path.write_text(
        f"world_size = 2\nmax_restarts = 1\n[workload]\ntarget = \"programs:in_place\"\nfolder = '{PROGRAMS}'\n"
        'args = ["{tmp}"]\nkwargs = { steps = 2 }\n[disk]\n[expect]\nsame_as_without_faults = true\n'
    )
    return load(str(path))


@pytest.mark.parametrize("function", [first_come, lost_update])
def test_schedules_side_by_side_find_the_same(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    given: dict[str, Any] = {"world_size": 2 if function is lost_update else 3, "runs": 10}
    one = simdist.explore(function, **given)

    with standing_in(monkeypatch, few=8) as pools:
        two = simdist.explore(function, **given, workers=2)

    assert pools.submitted
    assert two == one
    assert two.summary() == one.summary()


def test_a_search_until_something_is_found_ends_at_the_same_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"world_size": 3, "runs": 40, "until_found": True, "inevitable": False}
    one = simdist.explore(lost_update, **given)

    with standing_in(monkeypatch, few=8) as pools:
        two = simdist.explore(lost_update, **given, workers=3)

    assert pools.submitted
    assert two.runs == one.runs < 40
    assert str(two) == str(one)


def test_plans_of_faults_side_by_side_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"world_size": 3, "runs": 12, "families": ["exception"]}
    one = simdist.fuzz(gives_up, **given)

    with standing_in(monkeypatch, few=8) as pools:
        two = simdist.fuzz(gives_up, **given, workers=2)

    assert pools.submitted
    assert two == one
    assert two.bugs


def test_a_worker_that_died_changes_nothing_but_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    one = simdist.fuzz(all_together, world_size=2, runs=8)

    with standing_in(monkeypatch, 2, few=8):
        two = simdist.fuzz(all_together, world_size=2, runs=8, workers=2)

    assert two == one
    said = "worker processes died once; what they had begun was done again"
    assert [line for line in str(two).splitlines() if line not in str(one).splitlines()] == [said]


def test_a_scenario_with_a_database_finds_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, tries = saving(tmp_path), Tries(families=("crash",), runs=5, seed=10, shrink=False)
    reports: list[FuzzReport] = []
    for name, count in (("one", 1), ("two", 2)):
        for each in (tries, Tries(families=("slow",), runs=5, shrink=False)):
            with standing_in(monkeypatch, few=5) as pools:
                reports.append(fuzz_plan(plan, each, database=tmp_path / name, workers=count))
            assert bool(pools.submitted) == (count == 2)

    assert reports[:2] == reports[2:]
    assert [bug.token for bug in reports[0].bugs] == [bug.token for bug in reports[2].bugs]
    assert reports[2].bugs
    assert {bug.first for bug in reports[3].bugs} == {-1}
    kept = [sorted(path.read_text() for path in (tmp_path / name / "saving").iterdir()) for name in ("one", "two")]
    assert kept[0] == kept[1]


def test_a_search_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[None] = []

    def over() -> bool:
        asked.append(None)
        return len(asked) > 8

    with standing_in(monkeypatch) as pools:
        report = fuzz_plan(saving(tmp_path), Tries(runs=None, families=("slow",)), over=over, workers=2)

    assert pools.submitted
    assert report.runs == 8


def test_a_scenario_with_a_fault_of_its_own_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(
        "from simdist.faults import SlowRank\n\n\nclass Late(SlowRank):\n    kind = 'late'\n"
    )
    path = tmp_path / "late.toml"
    path.write_text(
        f"world_size = 2\nfaults = [{{ kind = \"kinds:Late\", rank = 1, delay = '1ms', optional = true }}]\n"
        f"[workload]\ntarget = \"programs:all_together\"\nfolder = '{PROGRAMS}'\n"
    )
    plan = load(str(path))
    one = explore_plan(plan, runs=10)

    with standing_in(monkeypatch, few=8) as pools:
        two = explore_plan(plan, runs=10, workers=2)

    assert pools.submitted
    assert two == one


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers: 0 is no count; 1 is the least"),
        ({"workers": 2, "systematic": True}, "workers: a systematic search tries one order after the other"),
        (
            {"workers": 2, "disk": simdist.storage.Mount(folder="/")},
            "workers: they would all use the folder of one disk",
        ),
    ],
)
def test_workers_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        simdist.explore(all_together, world_size=2, **given)


def test_a_function_that_another_process_cannot_import_is_refused() -> None:
    with pytest.raises(ArgumentError, match="another process can't import the program"):
        simdist.fuzz(lambda: None, world_size=1, workers=2)
