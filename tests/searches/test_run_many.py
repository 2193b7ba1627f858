"""Many runs have the same results, in the same order, with any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.errors import ArgumentError, RunFailedError
from simdist.faults import Crash
from simdist.searches import ManyReport, run_plan_many
from tests.programs.pools import standing_in
from tests.searches.programs import asserts, asserts_without_a_text, crashes_python, never_above_two, unlucky

PROGRAMS = Path(__file__).parent
FORTY: dict[str, Any] = {"world_size": 2, "seeds": 40, "kwargs": {"bad": 11}}


def test_each_run_is_the_ordinary_run_of_its_seed() -> None:
    report = simdist.run_many(unlucky, world_size=2, seeds=[3, 14, 3], workers=1)

    alone = [simdist.run(unlucky, world_size=2, seed=seed) for seed in (3, 14, 3)]
    assert [(run.number, run.seed, run.digest, run.virtual_time_ns) for run in report.results] == [
        (number, result.seed, result.digest, result.virtual_time_ns) for number, result in enumerate(alone)
    ]
    assert [run.ok for run in report.results] == [result.ok for result in alone] == [True, False, True]
    assert report.results[1].replay == alone[1].replay


@pytest.fixture(scope="module")
def one() -> ManyReport:
    """The report of 40 runs in this process."""
    return simdist.run_many(unlucky, **FORTY, workers=1)


def test_failures_are_merged_by_cause_and_name_their_seeds(one: ManyReport) -> None:
    (failure,) = one.failures
    assert str(failure.cause).startswith("rank 1 raised ValueError: drew 11 (programs.py:")
    assert [run.seed for run in failure.runs] == [5, 7, 16, 22]
    assert one.first_failure() == failure.first == one.results[5]
    assert not one
    assert list(one.lines()) == [
        "40 runs: 36 passed, 4 failed",
        f"found: {failure.cause}",
        "  4 of 40 runs: seeds 5, 7, 16, 22",
        "  replay: simdist.run(unlucky, world_size=2, kwargs={'bad': 11}, seed=5)",
    ]
    assert str(one).splitlines()[-1].endswith(" runs a minute per core")
    with pytest.raises(RunFailedError, match="drew 11"):
        one.raise_for_failure()


def test_runs_without_a_failure_are_ok() -> None:
    report = simdist.run_many(unlucky, world_size=2, seeds=3)

    assert report
    assert report.first_failure() is None
    assert list(report.lines()) == ["3 runs: 3 passed, 0 failed"]
    report.raise_for_failure()


@pytest.mark.parametrize("workers", [2, 5, None])
def test_runs_side_by_side_come_to_the_same(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, one: ManyReport
) -> None:
    monkeypatch.setattr("simdist.searches._run_many.cores", lambda: 3)

    with standing_in(monkeypatch) as pools:
        two = simdist.run_many(unlucky, **FORTY, workers=workers)

    assert sum(map(len, pools.submitted)) == 40
    assert two == one
    assert two.summary() == one.summary()


def test_few_runs_are_done_here_unless_workers_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch) as pools:
        simdist.run_many(unlucky, world_size=2, seeds=3)
        assert pools.made == 0
        simdist.run_many(unlucky, world_size=2, seeds=3, workers=2)

    assert sorted(map(len, pools.submitted)) == [1, 1, 1]


def test_a_function_that_only_this_process_has_is_run_here() -> None:
    seen: list[int] = []

    report = simdist.run_many(lambda: seen.append(1), world_size=1, seeds=50)

    assert report.ok
    assert len(seen) == 50
    with pytest.raises(ArgumentError, match="another process can't import the program"):
        simdist.run_many(lambda: None, world_size=1, seeds=50, workers=2)


def test_variants_are_run_with_each_seed_or_their_own() -> None:
    variants: list[dict[str, Any]] = [{}, {"faults": [Crash(rank=1, nth=2)]}, {"seed": 14, "kwargs": {"bad": -1}}]

    report = simdist.run_many(unlucky, world_size=2, seeds=[0, 14], variants=variants)

    assert [(run.variant, run.seed, run.ok) for run in report.results] == [
        (0, 0, True),
        (0, 14, False),
        (1, 0, False),
        (1, 14, False),
        (2, 14, True),
    ]
    assert "  1 of 5 runs: variant 1, seed 0" in report.lines()
    again = "faults=[simdist.faults.Crash(rank=1, nth=2)], seed=0"
    assert report.results[2].replay == f"simdist.run(unlucky, world_size=2, {again})"


@pytest.mark.parametrize("check", [never_above_two, asserts])
def test_a_check_says_what_is_wrong_with_a_run(check: Any) -> None:
    report = simdist.run_many(unlucky, world_size=2, seeds=range(16, 20), kwargs={"bad": -1}, check=check)

    wrong = [run.seed for run in report.results if not run.ok]
    assert wrong == [18, 19]
    assert [str(failure.cause) for failure in report.failures] == ["check: above 1.8"]
    results = [simdist.run(unlucky, world_size=2, seed=seed, kwargs={"bad": -1}) for seed in range(16, 20)]
    assert wrong == [result.seed for result in results if never_above_two(result)]


def test_an_assertion_of_a_check_without_a_text_is_named_by_its_line() -> None:
    report = simdist.run_many(
        unlucky, world_size=2, seeds=[18], kwargs={"bad": -1}, check=asserts_without_a_text, workers=1
    )

    (failure,) = report.failures
    line = asserts_without_a_text.__code__.co_firstlineno + 2
    assert str(failure.cause) == f"check: AssertionError (programs.py:{line} in asserts_without_a_text)"


def test_a_check_that_returns_no_text_is_refused() -> None:
    text = "simdist.run_many: check: returned True; expected a text that says what is wrong, or None"
    with pytest.raises(ArgumentError, match=f"^{text}$"):
        simdist.run_many(unlucky, world_size=2, seeds=1, check=lambda result: result.ok)  # type: ignore[arg-type, return-value]


def test_it_stops_at_the_first_failure_whoever_does_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[ManyReport] = []
    for workers in (1, 3):
        with standing_in(monkeypatch):
            reports.append(simdist.run_many(unlucky, **FORTY, until_failure=True, workers=workers))

    assert reports[0] == reports[1]
    assert reports[0].runs == 6


def test_a_run_of_which_processes_die_is_a_failure_and_loses_no_other(
    monkeypatch: pytest.MonkeyPatch, one: ManyReport
) -> None:
    with standing_in(monkeypatch, deadly=lambda task: task.seed in (3, 4)):
        two = simdist.run_many(unlucky, **FORTY, workers=2)

    dead = [run for run in two.results if run.seed in (3, 4)]
    assert [str(run.cause) for run in dead] == ["its process was killed by SIGKILL"] * 2
    assert dead[0].replay == "simdist.run(unlucky, world_size=2, kwargs={'bad': 11}, seed=3)"
    others = [run for run in one.results if run.seed not in (3, 4)]
    assert [run for run in two.results if run.seed not in (3, 4)] == others
    assert [failure.cause.kind for failure in two.failures] == ["died", "raised"]
    assert not [line for line in two.lines() if "done again" in line]


def test_a_worker_that_died_once_changes_nothing_but_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch, 2):
        report = simdist.run_many(unlucky, world_size=2, seeds=12, workers=2)

    assert list(report.lines()) == [
        "12 runs: 12 passed, 0 failed",
        "worker processes died once; what they had begun was done again",
    ]


@pytest.mark.real
@pytest.mark.parametrize(("way", "said"), [("segfault", "was killed by SIGSEGV"), ("exit", "left with exit code 7")])
def test_a_run_that_ends_its_process_is_a_failure(way: str, said: str) -> None:
    reports = [simdist.run_many(crashes_python, world_size=2, seeds=40, args=(way,), workers=n) for n in (2, 3)]

    (failure,) = reports[0].failures
    assert [run.seed for run in failure.runs] == [3, 14, 39]
    assert str(failure.cause) == f"its process {said}"
    assert reports[0] == reports[1]


def test_progress_is_reported() -> None:
    heard: list[tuple[int, int, int]] = []

    simdist.run_many(unlucky, world_size=2, seeds=range(13, 16), progress=lambda *said: heard.append(said))

    assert heard == [(1, 3, 0), (2, 3, 1), (3, 3, 1)]


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, ["seeds: say which, or how many"]),
        ({"seeds": 0}, ["seeds: 0 is no count; 1 is the least"]),
        ({"seeds": []}, ["seeds: there are none"]),
        ({"seeds": "ab"}, ["seeds: expected a count, or seeds, found the text 'ab'"]),
        ({"seeds": [1, -1]}, ["seeds[1]: -1 is too small; the least is 0"]),
        ({"seeds": 3, "seed": 1}, ["seed: there are many; say seeds=[...], or how many"]),
        ({"seeds": 3, "worker": 2}, ["worker: unknown argument; did you mean 'workers'?"]),
        ({"seeds": 3, "workers": 0}, ["workers: 0 is no count; 1 is the least"]),
        ({"seeds": 3, "check": 5}, ["check: expected a function, found the number 5"]),
        (
            {"seeds": 3, "disk": "/", "replay": "x"},
            [
                "disk: all runs would use the folder of one disk; a scenario has a disk for each run",
                "replay: each run has its own",
            ],
        ),
        ({"seeds": 3, "variants": 4}, ["variants: expected mappings with settings of simdist.run, found the number 4"]),
        (
            {"seeds": 3, "variants": [{"sed": 4}, {"world_size": 0, "echo": print}]},
            [
                "variants[0].sed: unknown argument; did you mean 'seed'?",
                "variants[1].echo: what many runs print would be mixed up; run one of them by its replay",
                "variants[1].world_size: 0 is too small; the least is 1",
            ],
        ),
        (
            {"seeds": 3, "variants": [{}, {"faults": [Crash(rank=5, nth=1)]}]},
            ["variants[1]: faults[0].rank: rank 5 is outside the world of 2 ranks"],
        ),
        ({"seeds": 3, "min_hosts": 2}, ["min_hosts: 2 is more than the cluster's 1 host"]),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(ArgumentError) as raised:
        simdist.run_many(unlucky, **{"world_size": 2, **given})

    assert list(raised.value.problems) == lines


def test_a_scenario_is_judged_by_its_own_expectations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "unlucky.toml"
    path.write_text(
        f"world_size = 2\n[workload]\ntarget = \"programs:unlucky\"\nfolder = '{PROGRAMS}'\n"
        '[expect]\noutcomes = { "0-1" = "raised" }\n'
    )
    from simdist.scenario import load

    plan = load(str(path))
    one = run_plan_many(plan, range(12, 16), workers=1)

    with standing_in(monkeypatch):
        two = run_plan_many(plan, range(12, 16), workers=2)

    assert two == one
    assert [run.seed for run in one.results if run.ok] == [14]
