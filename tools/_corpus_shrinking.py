"""The smallest runs of the corpus's bugs, as a user gets them: found, made smaller, written down, repeated elsewhere.

Each entry is a scenario: with twice the ranks that its program needs; in its largest layout, compared with one rank; or
with crashes, compared with the run without them. Fresh processes repeat each finding: by the token (`simdist replay`),
and by the pytest test that `simdist fuzz --write` writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import simdist
from simdist.scenario import load
from simdist.searches import Bug, Tries, fuzz_plan
from simdist.searches._outcomes import shape_of
from tests.corpus import Entry

__all__ = ["Smallest", "can_be_shrunk", "shrink"]

ROOT = Path(__file__).resolve().parents[1]
_LONGEST_S = 120.0
_PLANS = 20  # number of plans of crashes


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest run of an entry; `problem` says what is wrong with it, and is empty if nothing is."""

    entry: Entry
    ranks: int = 0
    seconds: float = 0.0  # to find it and to make it smaller
    problem: str = ""

    def line(self) -> str:
        """One line of the table."""
        what = f"PROBLEM: {self.problem}" if self.problem else f"{_ranks(self.entry)} ranks -> {self.ranks}"
        return f"{self.entry.name:<51} {self.seconds:6.1f} s  {what}"


def can_be_shrunk(entry: Entry) -> bool:
    """True if anything finds the bug."""
    return bool(entry.finder)


def _ranks(entry: Entry) -> int:
    """Return the number of ranks with which the search begins."""
    if entry.layouts:
        return max(simdist.Layout.of(each).world_size for each in entry.layouts)
    return entry.world_size if entry.resumes else 2 * entry.world_size


def shrink(entry: Entry) -> Smallest:
    """Find the bug of an entry, make its run smaller, and repeat that in fresh processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / f"{entry.name}.toml"
        file.write_text(_scenario(entry), encoding="utf-8")
        started = time.perf_counter()
        report = fuzz_plan(load(str(file)), Tries(runs=_PLANS, families=["crash"]) if entry.resumes else Tries(runs=1))
        seconds = time.perf_counter() - started
        if not report.bugs:
            return Smallest(entry, seconds=seconds, problem="nothing is found")
        bug = report.bugs[0]
        assert bug.plan is not None
        test = next(path for path in report.write(folder / "found") if path.suffix == ".py")  # the first bug's
        return Smallest(entry, bug.plan.world_size, seconds, _problem(bug, seconds, folder, test))


def _scenario(entry: Entry) -> str:
    settings = {"world_size": _ranks(entry), **entry.settings}
    target, folder, expect = "main", ", folder = '{tmp}'", ""
    if entry.layouts:
        target, folder, expect = "trained", "", "same_as_one_rank = true"
    elif entry.resumes:
        target, expect = "resumed", "same_as_without_faults = true"
        settings["max_restarts"] = 1
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f'[workload]\ntarget = "tests.corpus._scenario:{target}"', f"folder = '{ROOT}'"]
    lines += [f"kwargs = {{ name = {json.dumps(entry.name)}{folder} }}", f"[expect]\n{expect}"]
    return "\n".join([*lines, ""])


def _problem(bug: Bug, seconds: float, folder: Path, test: Path) -> str:
    """Return what is wrong with the smallest run; empty if nothing is."""
    if not bug.minimal:
        return "something can still be left out"
    if seconds > _LONGEST_S:
        return f"it took {seconds:.0f} s"
    said = _squeezed(bug.cause.text)
    replayed = _run(["-m", "simdist", "replay", bug.token], folder)
    if replayed.returncode != 1 or said not in _squeezed(replayed.stdout):
        return f"its token does not fail so: {replayed.stdout[-300:]}{replayed.stderr[-300:]}"
    tested = _run(["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(test)], folder)
    if tested.returncode != 1 or "1 failed" not in tested.stdout or said not in _squeezed(tested.stdout):
        return f"its test does not fail so: {tested.stdout[-300:]}{tested.stderr[-300:]}"
    return ""


def _run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )


def _squeezed(text: str) -> str:
    return "".join(shape_of(text).split())
