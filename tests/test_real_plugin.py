"""`pytest --real`: which tests run, which run again alone, and what the summary says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Each test counts its attempts in its own file.
SOURCE = """
from pathlib import Path
import pytest

def attempt(name):
    with Path(name).open("a") as file:
        file.write("x")
    return len(Path(name).read_text())

def test_plain():
    attempt("plain")

@pytest.mark.real
def test_good():
    attempt("good")

@pytest.mark.real
@pytest.mark.parametrize("word", ["a b"])
def test_passes_at_the_third_attempt(word):
    number = attempt("third")
    assert number == 3, f"saw {number}"

@pytest.mark.real
def test_passes_alone():
    assert attempt("alone") > 1, "too late by 3 s"
"""
BROKEN = """
import os, signal
import pytest

@pytest.mark.real
class TestBroken:
    def test_never_passes(self):
        raise ValueError("always wrong")

    def test_dies_alone(self, request):
        if request.config.getoption("--real-again"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("wrong")

    @pytest.fixture
    def broken(self):
        yield
        raise OSError("no end")

    def test_ends_badly(self, broken): ...
"""


class Run(Protocol):
    """The fixture `run`: runs pytest with this plugin in the present folder, after writing `files` there."""

    def __call__(self, *arguments: str, **files: str) -> tuple[int, str]: ...


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return exit code and output of a run in this process; tests that run again alone have their own process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins only take time
    loads = f"import sys\nsys.path.append({str(ROOT)!r})\npytest_plugins = ['tests.real_plugin']\n"
    (pytester.path / "conftest.py").write_text(loads)

    def run_here(*arguments: str, **files: str) -> tuple[int, str]:
        for name, source in files.items():
            (pytester.path / f"{name}.py").write_text(source)
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--import-mode=importlib", "-q", *arguments)
        return int(done.ret), f"{done.stdout}\n{done.stderr}\n"

    return run_here


def attempts() -> dict[str, int]:
    return {path.name: len(path.read_text()) for path in Path().iterdir() if not path.suffix and path.is_file()}


def test_the_plain_command_leaves_real_tests_out_and_counts_them(run: Run) -> None:
    code, text = run(test_it=SOURCE)

    assert code == 0, text
    assert attempts() == {"plain": 1}
    assert "3 tests of real processes and real time: pytest --real\n" in text
    assert "1 passed, 3 deselected" in text


def test_with_the_option_only_real_tests_run_and_failures_run_again_alone(run: Run) -> None:
    code, text = run("--real", test_it=SOURCE)

    assert code == 0, text
    assert attempts() == {"good": 1, "third": 3, "alone": 2}
    assert text.partition("run again alone")[2].strip().splitlines()[1:-1] == [
        "test_it.py::test_passes_at_the_third_attempt[a b]: passed alone after failing under load",
        "  with all: AssertionError: saw 1",
        "  alone, 1 of 2: AssertionError: saw 2",
        "  alone, 2 of 2: passed",
        "test_it.py::test_passes_alone: passed alone after failing under load",
        "  with all: AssertionError: too late by 3 s",
        "  alone, 1 of 1: passed",
    ]
    last = text.strip().splitlines()[-1]
    assert "1 passed, 1 deselected, 2 passed alone" in last
    assert "failed" not in last


def test_what_never_passes_fails_the_run_with_every_attempt_in_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.real_plugin._ALONE", 1)
    code, text = run("--real", test_it=BROKEN)

    assert code == 1, text
    reported = text.partition("run again alone")[2]
    name = "test_it.py::TestBroken"
    wrong = "ValueError: always wrong"
    assert f"{name}::test_never_passes: failed alone too\n  with all: {wrong}\n  alone, 1 of 1: {wrong}\n" in reported
    assert f"{name}::test_dies_alone: failed alone too\n  with all: ValueError: wrong\n" in reported
    assert "  alone, 1 of 1: exit code -9: " in reported
    assert f"{name}::test_ends_badly: failed alone too\n  with all: OSError: no end\n" in reported
    assert "passed alone after failing under load" not in reported
    assert text.strip().splitlines()[-1].split(" in ")[0] == "2 failed, 1 passed, 1 error"


def test_a_file_that_cannot_be_imported_fails_the_run(run: Run) -> None:
    code, text = run("--real", test_it=SOURCE, test_wrong="import nothing_of_this_name")

    assert code == int(pytest.ExitCode.INTERRUPTED), text
    assert attempts() == {}


def test_every_test_below_the_folder_of_real_processes_is_left_out(run: Run) -> None:
    Path("parity").mkdir()
    (Path("parity") / "conftest.py").write_text((ROOT / "tests" / "parity" / "conftest.py").read_text())
    (Path("parity") / "test_it.py").write_text("def test_it(): ...")

    code, text = run(test_it="def test_it(): ...")

    assert code == 0, text
    assert "1 passed, 1 deselected" in text
