"""pytest runs of the plugin in separate processes, and their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["CI_NAMES", "SAMPLES", "PytestRun", "Run", "run_pytest", "run_samples", "section"]

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(__file__).resolve().parents[2]
CI_NAMES = ("CI", "BUILD_NUMBER")  # if one is set, pytest shows differences in full
Start = Callable[..., subprocess.CompletedProcess[str]]
_OUTCOME = r"(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR)"


@dataclass(frozen=True, slots=True)
class PytestRun:
    """The result of a pytest run. `outcomes` maps a test's name, without the file, to its outcome in lower case."""

    code: int
    text: str

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcomes, from the lines that `-v` prints."""
        found = re.findall(rf"^\S*?::(.+?) {_OUTCOME}\b", self.text, re.MULTILINE)
        on_workers = re.findall(rf"^\[gw\d\] \[.*?\] {_OUTCOME} \S*?::(.+?) *$", self.text, re.MULTILINE)
        return {name: outcome.lower() for name, outcome in [*found, *((b, a) for a, b in on_workers)]}


class Run(Protocol):
    """The fixture `run`: runs pytest in this process and the present folder, after writing `files` there."""

    def __call__(self, *arguments: str, files: dict[str, str] | None = None) -> PytestRun: ...


def run_pytest(
    folder: Path,
    *arguments: str,
    files: dict[str, str] | None = None,
    typed: str = "",
    plugin: bool = True,
    path: Path | None = None,
    start: Start = subprocess.run,
) -> PytestRun:
    """Run pytest in `folder`, after writing `files` there; `typed` is a person's input.

    `plugin` names the plugin on the command line; `path` is also searched for packages. `start` starts the process: use
    that of `tests.warm` if it makes no difference that torch is already imported.
    """
    for name, source in (files or {}).items():
        (folder / name).write_text(source)
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV")) and key not in CI_NAMES
    }
    done = start(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-v"),
            *(("-p", "simdist.testing.plugin") if plugin else ()),
            f"--rootdir={folder}",
            *arguments,
        ],
        cwd=folder,
        env=environ
        | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, [ROOT, path]))), "COLUMNS": "80", "NO_COLOR": "1"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return PytestRun(done.returncode, done.stdout + done.stderr)


def run_samples(folder: Path, *names: str, start: Start, arguments: Sequence[str] = ()) -> PytestRun:
    """Run files in `samples`, each as `test_<name>.py`."""
    files = {f"test_{name}.py": (SAMPLES / f"{name}.py").read_text() for name in names}
    return run_pytest(folder, *arguments, files=files, start=start)


def section(run: PytestRun, test: str) -> str:
    """Return pytest's output about the failure of one test, from its title on."""
    found = re.search(rf"^_+ {re.escape(test)} _+$\n(.*?)(?=^_{{3,}} \S|^=+ \S)", run.text, re.M | re.DOTALL)
    assert found is not None, run.text
    return found[0]
