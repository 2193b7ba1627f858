"""`tools/suites.py`: its plain parts, and a small project of our own from a local repository through both arms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools._suites_projects import PROJECTS, Project
from tools._suites_runs import Run, SuiteError, compare, fetch, outcomes_of, run_child
from tools.suites import main, table

_TESTS = """\
import multiprocessing
import os
import time

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp


def body(rank):
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=2)
    dist.barrier()


def test_ranks(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29755")
    mp.spawn(body, nprocs=2)


def test_that_skips():
    pytest.skip("not here")


def test_that_skips_when_a_child_dies():
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    child.start()
    child.join()
    pytest.skip("the harness says nothing")


def test_that_ends_its_process():
    os._exit(3)


def test_time():
    assert time.time() > 1_700_000_000 and os.environ.get("SIMULATED_ALONE") is None


@pytest.mark.xfail
def test_that_fails_as_expected():
    assert False
"""


def _project(**changes: object) -> Project:
    settings: dict[str, object] = {"name": "ours", "repository": "us/ours", "commit": "0" * 40, "tests": ("t.py",)}
    return Project(**{**settings, **changes})  # type: ignore[arg-type]


def _run(**outcomes: str) -> Run:
    return Run({name: (outcome, "") for name, outcome in outcomes.items()}, 1.0)


def test_every_project_is_pinned_and_every_known_difference_has_a_reason() -> None:
    for project in PROJECTS:
        assert len(project.commit) == 40
        assert int(project.commit, 16) >= 0
        assert project.tests
        assert all(len(reason) > 10 for reason in project.known.values())
    assert len({project.name for project in PROJECTS}) == len(PROJECTS)


def test_a_row_that_touches_torch_or_has_nothing_to_run_on_is_refused() -> None:
    with pytest.raises(ValueError, match="torch is the environment's own"):
        _project(needs=("torch==2.0",))
    with pytest.raises(ValueError, match="has to need devices"):
        _project(real=False)


def test_skips_are_alike_and_have_not_passed() -> None:
    comparison = compare(_project(), _run(a="passed", b="skipped"), _run(a="passed", b="skipped"))

    assert (comparison.tests, comparison.passed, comparison.same, comparison.ok) == (2, 1, 2, True)


def test_a_share_without_a_test_that_passed_is_a_problem() -> None:
    comparison = compare(_project(), _run(b="skipped"), _run(b="skipped"))

    assert comparison.problems == ("no test passed",)
    assert not comparison.ok


@pytest.mark.parametrize("outcome", ["collection error", "died", "timed out"])
def test_what_tested_nothing_differs_even_from_itself(outcome: str) -> None:
    comparison = compare(_project(), _run(a="passed", b=outcome), _run(a="passed", b=outcome))

    assert comparison.differing == {"b": f"simulated {outcome}; real {outcome}"}


def test_a_missing_test_and_a_dead_child_behind_a_skip_differ() -> None:
    simulated = _run(a="passed", b="skipped, children ended with 1")
    comparison = compare(_project(), simulated, _run(a="passed", b="skipped", c="passed"))

    assert comparison.differing == {
        "b": "simulated skipped, children ended with 1; real skipped",
        "c": "simulated missing; real passed",
    }


def test_tests_that_a_stopped_arm_did_not_reach_are_one_problem() -> None:
    real = Run({"a": ("passed", "")}, 9.0, "stopped after 9 s")
    comparison = compare(_project(), _run(a="passed", b="passed", c="passed"), real)

    assert comparison.problems == ("real, 1 tests done: stopped after 9 s",)
    assert comparison.differing == {}
    assert not comparison.ok


def test_known_differences_are_named_with_their_reason_and_are_no_failure() -> None:
    project = _project(known={"t.py::test_a[*]": "it reads the machine's clock"})
    names = {"t.py::test_a[1-x]": "failed", "t.py::test_b": "passed"}
    comparison = compare(project, _run(**names), _run(**dict.fromkeys(names, "passed")))

    assert comparison.known == {"t.py::test_a[1-x]": "it reads the machine's clock"}
    assert comparison.ok


def test_without_a_real_arm_what_fails_differs() -> None:
    comparison = compare(_project(real=False, devices=2), _run(a="passed", b="skipped", c="failed", d="error"), None)

    assert list(comparison.differing) == ["c", "d"]
    assert (comparison.passed, comparison.same) == (1, 2)


def test_a_test_under_way_when_its_process_ended_has_died_or_timed_out() -> None:
    lines = [
        json.dumps({"kind": "begin", "test": "a"}),
        json.dumps({"kind": "end", "test": "a", "outcome": "passed", "text": ""}),
        json.dumps({"kind": "begin", "test": "b"}),
        '{"kind": "en',
    ]

    assert outcomes_of(lines, timed_out=False) == ({"a": ("passed", ""), "b": ("died", "")}, False)
    assert outcomes_of(lines, timed_out=True) == ({"a": ("passed", ""), "b": ("timed out", "")}, False)
    assert outcomes_of([*lines[:2], '{"kind": "finish", "exit_code": 0}'], timed_out=False)[1]


def test_a_test_that_fails_on_one_rank_has_not_passed() -> None:
    end = {"kind": "end", "outcome": "passed", "text": ""}
    failed = {**end, "outcome": "failed", "text": "no"}
    lines = [{**failed, "test": "a", "rank": 2}, {**end, "test": "a"}, {**failed, "test": "a", "rank": 1}]
    lines += [{**end, "test": "b", "outcome": "skipped"}, {**failed, "test": "b", "rank": 1}, {**end, "test": "c"}]

    outcomes, _ = outcomes_of(list(map(json.dumps, lines)), timed_out=False)

    assert outcomes == {"a": ("failed", "rank 2: no"), "b": ("failed", "rank 1: no"), "c": ("passed", "")}


def test_the_table_has_a_row_for_each_project_and_names_what_differs() -> None:
    simulated, real = _run(a="passed", b="failed"), _run(a="passed", b="passed")
    comparison = compare(_project(), simulated, real)
    lines = table([("ours", comparison, (simulated, real)), ("theirs", "pip failed", ())]).splitlines()

    assert lines[1].split() == ["ours", "2", "1", "1", "0", "1", "1.0", "s", "1.0", "s"]
    assert lines[2] == "  differs  b: simulated failed; real passed"
    assert lines[3].split() == ["theirs", "not", "run:", "pip", "failed"]


def test_an_unknown_project_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert "no such project: nothing; there are torchsnapshot" in capsys.readouterr().err


def test_a_missing_copy_is_named(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"no copy of us/ours at .*us\+ours"):
        fetch(_project(), tmp_path / "source", tmp_path)


def _mirrored(tmp_path: Path, files: dict[str, str]) -> str:
    """Make the repository us/ours in a mirror; returns its commit."""
    copy = tmp_path / "mirror" / "us+ours" / "repo"
    copy.mkdir(parents=True)
    for name, text in files.items():
        (copy / name).write_text(text)
    git = ("git", "-c", "user.name=us", "-c", "user.email=us@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "tests")):
        subprocess.run([*git, *command], cwd=copy, check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=copy, check=True, capture_output=True, text=True)
    return head.stdout.strip()


@pytest.mark.real
def test_a_child_that_is_stopped_leaves_nothing_even_in_other_sessions(tmp_path: Path) -> None:
    body = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    code = run_child([sys.executable, "-c", body], tmp_path, os.environ, tmp_path / "log", 3.0)

    assert code is None
    stat = Path("/proc", (tmp_path / "log").read_text().strip(), "stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"  # until init has reaped it


@pytest.mark.real
def test_a_project_runs_on_both_arms_and_every_difference_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = _mirrored(tmp_path, {"t.py": _TESTS, "broken.py": "import nothing_of_this_name\n"})
    known = {"t.py::test_that_ends_its_process": "it ends pytest on both arms"}
    project = _project(
        commit=commit, tests=("t.py", "broken.py"), options=("--continue-on-collection-errors",), known=known
    )
    out = tmp_path / "out.json"
    code = main(["--mirror", str(tmp_path / "mirror"), "--json", str(out), "--limit", "100"], [project])
    found = json.loads(out.read_text())["ours"]

    expected = {
        "broken.py": "collection error",
        "t.py::test_ranks": "passed",
        "t.py::test_that_skips": "skipped",
        "t.py::test_that_skips_when_a_child_dies": "skipped, children ended with 7",
        "t.py::test_time": "passed",
        "t.py::test_that_fails_as_expected": "failed as expected",
    }
    for arm in ("simulated", "real"):
        outcomes = {name: outcome for name, (outcome, _) in found[arm]["outcomes"].items()}
        assert outcomes == {**expected, "t.py::test_that_ends_its_process": "died"}
    assert code == 1
    assert list(found["comparison"]["differing"]) == ["broken.py"]
    assert found["comparison"]["known"] == known
    assert "differs  broken.py: simulated collection error" in capsys.readouterr().out


_TESTS_OF_RANKS = """\
import os

import torch
import torch.distributed as dist


def test_sum():
    dist.init_process_group("gloo")
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value)
    assert value.item() == 3


def test_first_rank():
    assert os.environ["RANK"] == "0"
"""


@pytest.mark.real
def test_a_suite_that_torchrun_starts_runs_on_ranks_in_both_ways(tmp_path: Path) -> None:
    commit = _mirrored(tmp_path, {"t.py": _TESTS_OF_RANKS})
    out = tmp_path / "out.json"
    main(
        ["--mirror", str(tmp_path / "mirror"), "--json", str(out), "--limit", "100"], [_project(commit=commit, ranks=2)]
    )
    found = json.loads(out.read_text())["ours"]

    for arm in ("simulated", "real"):
        assert found[arm]["outcomes"]["t.py::test_sum"] == ["passed", ""]
        outcome, text = found[arm]["outcomes"]["t.py::test_first_rank"]
        assert (outcome, text.splitlines()[0]) == ("failed", "rank 1: AssertionError: assert '1' == '0'")
