"""Tests that the pytest of a worker runs, with Dask and without."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simdist.testing._plugin._served import ServedTests
from tests.testing.runs import ROOT, Run, run_pytest

TESTS = """
import os, warnings
import pytest, torch, torch.distributed as dist

@pytest.mark.simdist(world_size=2)
def test_sum(rank):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2

@pytest.mark.simdist(world_size=2)
def test_wrong(rank, simdist_seed):
    print("rank", rank)
    assert simdist_seed != 2

def test_driven(sim, tmp_path_factory):
    assert os.environ.get("PYTEST_XDIST_WORKER") is None
    warnings.warn("careful")
    (tmp_path_factory.getbasetemp() / "seen").touch()

def test_here(request):
    assert not hasattr(request.config, "workerinput")

def test_killed(sim):
    import ctypes
    ctypes.string_at(0)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", env={"PYTHONPATH": python_path}
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.real
def test_seeds_of_tests_run_on_a_cluster_and_are_reported_as_without_one(address: str, tmp_path: Path) -> None:
    files = {"test_it.py": TESTS}
    chosen = ("-v", "--simdist-seeds", "3", "-k", "not killed and not here", "--junitxml", "out.xml")
    alone = run_pytest(tmp_path, *chosen, files=files)
    written = (tmp_path / "out.xml").read_text()

    there = run_pytest(tmp_path, *chosen, "--simdist-scheduler", address, files=files)

    assert f"on the workers of {address}" in there.text
    assert there.code == alone.code == 1
    assert list(there.outcomes.items()) == list(alone.outcomes.items())
    assert [name for name, outcome in there.outcomes.items() if outcome != "passed"] == ["test_wrong[seed2]"]
    assert "3 warnings" in there.text
    assert "careful" in there.text
    assert (tmp_path / "out.xml").read_text().count("<testcase") == written.count("<testcase") == 9


@pytest.mark.real
def test_a_test_that_kills_its_process_fails_alone(address: str, tmp_path: Path) -> None:
    chosen = ("-v", "-p", "no:faulthandler", "--simdist-scheduler", address, "-k", "killed or sum or here")
    done = run_pytest(tmp_path, *chosen, files={"test_it.py": TESTS})

    assert done.outcomes == {"test_here": "passed", "test_sum": "passed", "test_killed": "failed"}
    assert "the process that ran this test on a worker was killed by signal 11" in done.text


@pytest.mark.real
def test_a_file_that_can_not_be_collected_need_not_end_a_session(address: str, tmp_path: Path) -> None:
    there = "def test_there(request, sim): assert hasattr(request.config, 'workerinput')"
    chosen = ("-v", "--continue-on-collection-errors", "--simdist-scheduler", address)
    done = run_pytest(tmp_path, *chosen, files={"test_there.py": there, "test_broken.py": "import nothing_like_it"})

    assert done.outcomes == {"test_there": "passed"}
    assert "1 passed, 1 error" in done.text


@pytest.mark.real
def test_the_first_failure_ends_a_session_that_asks_for_it(address: str, tmp_path: Path) -> None:
    chosen = ("-v", "-x", "--simdist-seeds", "6", "--simdist-scheduler", address, "-k", "wrong")
    done = run_pytest(tmp_path, *chosen, files={"test_it.py": TESTS})

    assert done.code == 1
    assert list(done.outcomes) == [f"test_wrong[seed{seed}]" for seed in range(3)]
    assert "stopping after 1 failures" in done.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--simdist-scheduler", "there"), "--simdist-scheduler: 'there' is no address of a Dask scheduler"),
        (("--simdist-scheduler", "tcp://a:1", "--pdb"), "--simdist-scheduler: --pdb needs tests that run here"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Run, options: tuple[str, ...], said: str) -> None:
    done = run(*options, files={"test_it.py": "def test_it(): ..."})

    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert said in done.text


def _served(folder: Path, *arguments: str) -> ServedTests:
    """Return a worker's pytest, in a folder with the tests."""
    (folder / "test_it.py").write_text(TESTS)
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "simdist.testing.plugin")
    return ServedTests([*plugins, *arguments], str(folder), "")


def _warnings(seen: Any) -> list[str]:
    return [str(data["warning_message"].message) for kind, data in seen if kind == "warning"]


def _outcomes(seen: Any) -> list[str]:
    return [data["outcome"] for kind, data in seen if kind == "report"]


@pytest.mark.real
def test_a_worker_runs_tests_by_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])

    with _served(tmp_path, "--simdist-seeds", "3", "--junitxml", "out.xml") as tests:
        passed = tests.do("test_it.py::test_sum[seed1]")
        failed = tests.do("test_it.py::test_wrong[seed2]")
        warned = tests.do("test_it.py::test_driven[seed0]")
        missing = tests.do("test_it.py::test_sum[seed3]")
        killed = tests.do("test_it.py::test_killed[seed0]")
        again = tests.do("test_it.py::test_sum[seed1]")

    assert _outcomes(passed) == _outcomes(again) == ["passed"] * 3
    assert _outcomes(failed) == ["passed", "failed", "passed"]
    assert _warnings(warned) == ["careful"]
    assert missing == "this test was not found on a worker: do the same files lie there?"
    assert str(killed).startswith("the process that ran this test on a worker was killed by signal 11:\n  Fatal Python")
    assert not (tmp_path / "out.xml").exists()  # only the reporting process writes it


@pytest.mark.real
def test_a_worker_that_lacks_the_tests_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])

    with ServedTests([], str(tmp_path / "missing"), "") as nowhere:
        assert str(nowhere.do("a")).startswith(f"the worker has no folder {tmp_path / 'missing'}")
    with _served(tmp_path, "--no-such-option") as refused:
        said = refused.do("test_it.py::test_sum")

    assert str(said).startswith("pytest can't run on a worker: it ended with exit code 4:\n")
    assert "unrecognized arguments: --no-such-option" in str(said)
