"""A search over faults skips failures that a fault explains, and makes the others small."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.errors import ArgumentError, InterruptedRunsError, RunFailedError, ScenarioError, SimdistError
from simdist.faults import KINDS, Crash, Fault, Partition, SlowRank, Surroundings
from simdist.programs import FunctionProgram, Program
from simdist.scenario import Plan, load, run_scenario
from simdist.searches import (
    FAMILIES,
    Attempt,
    Facts,
    FuzzReport,
    Trial,
    Tries,
    _fuzz,
    fuzz_plan,
    plan_of_faults,
    read_token,
    token_of,
)
from simdist.searches._outcomes import shape_of
from simdist.searches._shrinking import shrunk
from tests.searches.programs import all_together, falls_out, gives_up

PROGRAMS = Path(__file__).parent


def scenario(folder: Path, more: str = "") -> Plan:
    path = folder / "saving.toml"
    path.write_text(
        f"world_size = 3\nmax_restarts = 1\n[workload]\ntarget = \"programs:in_place\"\nfolder = '{PROGRAMS}'\n"
        f'args = ["{{tmp}}"]\nkwargs = {{ steps = 3 }}\n[disk]\n{more}'
    )
    return load(str(path))


def drawn(count: int, **about: Any) -> list[Attempt]:
    facts = Facts.of(simdist.run(all_together, world_size=4))
    has = {name: about.pop(name, False) for name in ("has_disk", "has_devices")}
    world = Surroundings(4, about.pop("max_restarts", 0), has_local_disks=False, **has)
    given: dict[str, Any] = {"budget": 1, "families": tuple(FAMILIES)} | about
    return [plan_of_faults(number, 0, facts, world, **given).attempt for number in range(count)]


def ranks_of(fault: Fault) -> set[int]:
    return {rank for ranks in fault.named_ranks().values() for rank in ranks}


def test_every_kind_of_fault_is_in_one_family() -> None:
    assert sorted(kind for kinds in FAMILIES.values() for kind in kinds) == sorted(KINDS)


def test_plans_hold_at_most_as_many_ranks_as_the_budget_says() -> None:
    of_ranks = [
        {fault.target for fault in attempt.faults if fault.target is not None} for attempt in drawn(80, budget=2)
    ]

    assert max(map(len, of_ranks)) == 2
    assert max(len(found) for found in of_ranks if found) <= 2


def test_each_plan_has_its_own_families_and_all_of_them_are_drawn() -> None:
    plans = drawn(200, has_disk=True, has_devices=True, max_restarts=1)
    kinds = [{fault.kind for fault in attempt.faults} for attempt in plans]
    without = {"disk_full", "bit_rot", "short_write", "lost_sync", "io_error", "slow_disk"}  # nothing is written

    assert set().union(*kinds) >= set(KINDS) - without
    assert drawn(20) == drawn(20)


def test_a_world_without_devices_gets_no_fault_of_one() -> None:
    faults = [fault for attempt in drawn(200, max_restarts=1) for fault in attempt.faults]

    assert faults
    assert not [fault for fault in faults if fault.needs_devices]


def test_everything_that_lasts_has_an_end() -> None:
    faults = [fault for attempt in drawn(150, max_restarts=1) for fault in attempt.faults]

    assert all(getattr(fault, "until_ns", 0) is not None for fault in faults)
    assert all(getattr(fault, "duration_ns", 0) is not None for fault in faults)
    assert all(fault.optional for fault in faults)


def test_a_program_that_fails_only_as_its_faults_explain_has_no_bug() -> None:
    report = simdist.fuzz(all_together, world_size=3, runs=16)

    assert report.ok, str(report)
    assert report.passed + report.explained == 16
    assert report.explained > 0
    report.raise_for_failure()


def test_a_result_that_is_another_one_than_without_faults_is_found() -> None:
    report = simdist.fuzz(gives_up, world_size=3, runs=12, families=["exception"])

    (bug,) = report.bugs
    assert (bug.cause.kind, bug.minimal, bug.attempt.policy, len(bug.attempt.faults)) == ("wrong", True, "fifo", 1)
    target = bug.attempt.faults[0].target
    assert target is not None
    assert f"world_size={target + 1}," in bug.replay
    assert "rank 0 returned another result than without faults: value: -1 and 81" in str(report)
    with pytest.raises(RunFailedError, match="found: rank"):
        report.raise_for_failure()


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, FuzzReport, Path]:
    """A plan whose checkpoint can be torn, a search that found that, and its database."""
    folder = tmp_path_factory.mktemp("torn")
    plan, kept = scenario(folder), folder / "kept"
    return plan, fuzz_plan(plan, Tries(families=("crash", "signal"), runs=5, seed=10), database=kept), kept


def test_a_torn_checkpoint_is_found_as_small_as_can_be_and_written_down(
    torn: tuple[Plan, FuzzReport, Path], tmp_path: Path
) -> None:
    _, report, kept = torn

    bug = next(bug for bug in report.bugs if "EOFError" in bug.cause.text)
    assert bug.minimal
    assert bug.plan is not None
    assert (bug.plan.world_size, dict(bug.plan.workload.kwargs), len(bug.plan.faults)) == (1, {"steps": 1}, 1)
    written = list(report.write(tmp_path / "written"))
    assert not run_scenario(load(str(written[0]))).ok
    assert written[1].name.startswith("test_saving_")
    assert len(list((kept / "saving").iterdir())) == len(report.bugs)


def test_what_the_database_holds_is_tried_first_and_forgotten_when_mended(
    torn: tuple[Plan, FuzzReport, Path], tmp_path: Path
) -> None:
    plan, _, found = torn
    kept = shutil.copytree(found, tmp_path / "kept")
    again = fuzz_plan(plan, Tries(families=("slow",), runs=1), database=kept)
    for path in (kept / "saving").iterdir():
        path.write_text(f'{{"token": "{token_of(plan, Attempt())}"}}')
    mended = fuzz_plan(plan, Tries(families=("slow",), runs=1), database=kept)

    assert {bug.first for bug in again.bugs} == {-1}
    assert mended.ok
    assert not list((kept / "saving").iterdir())


def test_what_was_found_outlives_an_interrupted_shrinking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(program: Program, attempt: Attempt, fails: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simdist.searches._fuzz.shrunk", interrupt)
    with pytest.raises(InterruptedRunsError) as caught:
        fuzz_plan(scenario(tmp_path), Tries(families=("crash", "signal"), runs=5, seed=10), database=tmp_path / "kept")

    (bug,) = caught.value.report.bugs
    assert (bug.count, bug.minimal, caught.value.report.ok) == (1, False, False)
    assert len(list((tmp_path / "kept" / "saving").iterdir())) == 1


def test_a_program_that_fails_without_faults_is_made_small_too() -> None:
    report = simdist.fuzz(falls_out, world_size=6, kwargs={"steps": 4})

    assert str(report) == (
        "without any fault: rank 3 raised ValueError: step 1 of rank 3 (programs.py:"
        f"{falls_out.__code__.co_firstlineno + 5} in falls_out)\n"
        "  replay: simdist.run(falls_out, world_size=1, judges=True, kwargs={'steps': 2})"
    )
    assert report.bugs[0].minimal
    assert not report.ok


def test_a_plan_that_kills_its_workers_is_called_by_its_own_number() -> None:
    program = FunctionProgram(caller="a test", function=all_together, settings={"world_size": 4})
    with program.ready():
        judge = _fuzz._Judge(Trial(program))

    with pytest.raises(SimdistError, match="began task 69 died, the last one was killed"):
        judge.killed(5, _fuzz._Drawn(69, Attempt()), "was killed")


def test_causes_are_the_same_in_smaller_worlds_and_other_folders() -> None:
    one = "ranks 0, 2-5 differ from rank 1 in /dev/shm/simdist-ab12_z9k/model.pt after 3.5 s"
    two = "rank 0 differ from ranks 1 and 2 in /tmp/simdist-q0q0q0q0/model.pt after 12 s"

    assert shape_of(one).replace("/dev/shm", "") == shape_of(two).replace("/tmp", "")
    assert shape_of(one) != shape_of(one.replace("differ", "agree"))


def test_a_token_holds_a_whole_attempt(tmp_path: Path) -> None:
    plan = scenario(tmp_path)
    faults = (
        Crash(rank=1, op="write", nth=2, optional=True),
        Partition(groups=((0,), (1, 2)), until_ns=5, optional=True),
    )
    attempt = Attempt(policy="pct:3@17", faults=faults)

    token = token_of(plan, attempt)

    assert read_token(token, plan.source)[1] == attempt
    assert read_token(token, plan.source)[0].workload == plan.workload
    assert token.startswith("sd1-")
    assert len(token) < 300


@pytest.mark.parametrize("token", ["", "sd1-", "sd1-????", "sd2-eNpV", "sd1-eNpVjs"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(ScenarioError, match="is no token"):
        read_token(token)


@pytest.mark.parametrize("change", [lambda token: token + "A", lambda token: token[:-1], lambda token: token[:-6]])
def test_a_token_with_a_letter_too_many_or_too_few_is_refused(tmp_path: Path, change: Any) -> None:
    plan = scenario(tmp_path)
    token = token_of(plan, Attempt(policy="pct:3@17"))

    with pytest.raises(ScenarioError, match="is no token"):
        read_token(change(token), plan.source)


def test_a_token_used_in_another_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = scenario(tmp_path)
    monkeypatch.chdir(Path(plan.source).parent)
    token = token_of(plan, Attempt())
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)

    with pytest.raises(ScenarioError, match="go to the folder of the search, or say --file PATH"):
        read_token(token)


def test_any_text_is_a_token_or_refused() -> None:
    source = random.Random(1)
    for _ in range(300):
        with pytest.raises(ScenarioError):
            read_token("sd1-" + "".join(source.choices("abcdeNpVjsEKwy_-09", k=source.randrange(60))))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runs": 0}, "runs: 0 is no count; 1 is the least"),
        ({"budget": True}, "budget: True is no count"),
        ({"families": ["chrash"]}, "families: 'chrash' is none; did you mean 'crash'"),
        ({"families": [["crash"]]}, r"families: \['crash'\] is none; did you mean 'crash'"),
        (
            {"families": "crash"},
            r"^simdist.fuzz: families: expected a sequence of families, such as \['crash'\], found the text 'crash'$",
        ),
        (
            {"families": ["disk", "device"]},
            "^simdist.fuzz: families: no fault of disk, device fits; more restarts, a disk or devices may be missing$",
        ),
        ({"spare": [(0, "1")]}, r"spare: \(0, '1'\) is no group of ranks"),
        ({"spare": [()]}, r"spare: \(\) is no group of ranks"),
        ({"spare": [(0, 2)]}, "spare: rank 2 is outside the world of 2 ranks"),
        ({"faults": []}, "faults: a search has its own"),
        ({"max_restart": 1}, "max_restart: unknown argument; did you mean 'max_restarts'"),
        ({"stall_s": -1}, "^simdist.fuzz: stall_s: -1 is too small"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        simdist.fuzz(all_together, world_size=2, **given)


def test_what_a_fault_has_besides_is_left_out_even_if_two_fields_need_it() -> None:
    def fails(_: Program, attempt: Attempt) -> bool:
        """Fail if the fault has the jitter; a tail needs both its share and its length."""
        (fault,) = attempt.faults or (None,)
        if not isinstance(fault, SlowRank):
            return False
        return fault.jitter_ns == 5 and bool(fault.tail_share) == bool(fault.tail_ns)

    slow = SlowRank(rank=0, delay_ns=3, jitter_ns=5, tail_share=0.5, tail_ns=7, start_ns=9, optional=True)
    program = FunctionProgram(caller="a test", function=all_together, settings={"world_size": 1})
    found = shrunk(program, Attempt(faults=(slow,)), fails)

    assert found.attempt.faults == (SlowRank(rank=0, jitter_ns=5, optional=True),)
    assert found.minimal
