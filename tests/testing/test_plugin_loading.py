"""How pytest loads the plugin, and the cost for tests that do not use it."""

from __future__ import annotations

from pathlib import Path

from tests.testing.runs import SAMPLES, Run, run_pytest
from tests.warm import Interpreters

PLAIN = """
import sys

def test_nothing_heavy_is_imported():
    assert not {"torch", "numpy", "simpy", "networkx", "pydantic"} & set(sys.modules)
    assert sorted(name for name in sys.modules if name.startswith("simdist")) == [
        "simdist", "simdist._lazy", "simdist.testing", "simdist.testing.plugin"
    ]
"""

USED = """
import pytest

@pytest.mark.simdist(2)
def test_it(rank): assert rank in (0, 1)
"""


def test_a_project_that_does_not_use_it_imports_nothing_of_it(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, files={"test_it.py": PLAIN})

    assert run.outcomes == {"test_nothing_heavy_is_imported": "passed"}, run.text


def test_collecting_a_simulated_test_does_not_import_torch(tmp_path: Path) -> None:
    conftest = """
import sys
def pytest_collection_finish(session): print("torch" in sys.modules)
"""
    run = run_pytest(tmp_path, "--collect-only", "-s", files={"test_it.py": USED, "conftest.py": conftest})

    assert "False" in run.text


def test_it_may_be_named_more_than_once(run: Run) -> None:
    files = {"test_it.py": USED, "conftest.py": 'pytest_plugins = ["simdist.testing.plugin"]\n'}

    done = run("-p", "simdist.testing.plugin", files=files)

    assert done.outcomes == {"test_it": "passed"}, done.text


def test_the_entry_point_and_its_module_are_one_plugin(tmp_path: Path, interpreters: Interpreters) -> None:
    info = tmp_path / "simdist_here-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simdist-here\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\nsimdist = simdist.testing.plugin\n")
    files = {"test_it.py": USED}

    for plugins in ([], ["-p", "simdist"], ["-p", "simdist.testing.plugin"]):
        arguments = ("--collect-only", "--strict-markers", *plugins)
        run = run_pytest(tmp_path, *arguments, files=files, plugin=False, path=tmp_path, start=interpreters.run)

        assert run.code == 0, run.text
    blocked = run_pytest(
        tmp_path, "-p", "no:simdist", "--markers", files=files, plugin=False, path=tmp_path, start=interpreters.run
    )
    assert "@pytest.mark.simdist" not in blocked.text


def test_the_marker_the_fixtures_and_the_options_are_listed(run: Run) -> None:
    markers = run("--markers").text
    fixtures = run("--fixtures").text
    options = run("--help").text

    assert "@pytest.mark.simdist(world_size=4, *, backend, seeds, faults" in markers
    assert all(name in fixtures for name in ("sim --", "rank --", "world_size --", "simdist_seed --"))
    assert all(f"--simdist-{name}" in options for name in ("seed=S", "seeds=N", "check-determinism", "trace=DIR"))


def test_the_examples_of_the_guide_pass(run: Run) -> None:
    done = run(files={"test_guide.py": (SAMPLES / "guide.py").read_text()})

    assert len(done.outcomes) == 6
    assert set(done.outcomes.values()) == {"passed"}, done.text
