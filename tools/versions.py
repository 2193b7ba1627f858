"""Try simdist on other versions of torch and Python, each in an environment of its own, and write a table.

    python tools/versions.py                                # every version that simdist was tried on, this Python
    python tools/versions.py 2.14.1 --python 3.11           # one, as pip gives it: on Linux built for CUDA
    python tools/versions.py 2.14.1 --tests tests/device    # a share of the tests
    python tools/versions.py --environment 2.14.1=PATH      # an environment that is there, which is kept

An environment takes minutes and gigabytes, and is removed again. Failures where torch is known to differ
(`known_differences.toml`) are counted apart. The programs for GPUs run with both forms of the kernels; compare their
processor times only between versions that ran at the same time. Exit code 1 if anything else fails, 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simdist.inside import TRIED  # noqa: E402  # of this tree, whatever is installed
from tests.device.test_checks import CHECKS  # noqa: E402

KNOWN = Path(__file__).with_name("known_differences.toml")
GPU_PROGRAMS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("scenarios/programs/cuda_*.toml"))
KERNELS = ("python", "compiled")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_PYTHON = re.compile(r"3\.\d+")
_LIMIT_S = 4 * 3600
_SHOWN = 300  # letters of a failure

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
"""A function that runs a command in the repository and returns its output."""


@dataclass
class Row:
    """The results of one version of torch on one Python."""

    torch: str
    python: str
    build: str = ""
    first_command: str = "not tried"  # of the README
    first_example: str = "not tried"  # of the README
    ranks: str = "not tried"
    devices: str = "not tried"
    checks: str = "not run"  # how many of the 45 checks of devices hold, with the kernels in Python and in C++
    programs: dict[str, str] = field(default_factory=dict)  # the programs for GPUs, by the form of the kernels
    seconds: float = 0  # the tests' time
    passed: int = 0
    skipped: int = 0
    known: list[str] = field(default_factory=list)  # tests that fail where torch is known to differ
    failed: list[str] = field(default_factory=list)  # all others that fail
    why: dict[str, str] = field(default_factory=dict)  # the failure of each of these
    problem: str = ""  # why nothing could be tried

    @property
    def is_good(self) -> bool:
        """True if all failures are known."""
        works = {self.first_command, self.first_example, self.ranks} == {"works"}
        return works and not (self.problem or self.failed or any("not" in said for said in self.programs.values()))


def main(words: Sequence[str] | None = None, run: Run | None = None) -> int:
    """Try the versions that the command line names; returns the exit code."""
    options = _options(words)
    problems = _problems(options)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    run = run or _run
    there = dict(each.split("=", 1) for each in options.environment)
    versions = options.versions or ([] if there else list(TRIED))
    rows = []
    for version, python in [(version, python) for version in versions for python in options.python]:
        print(f"torch {version} on Python {python} ...", file=sys.stderr, flush=True)
        rows.append(_in_new_environment(version, python, options.tests, run))
    for version, path in there.items():
        print(f"torch {version} in {path} ...", file=sys.stderr, flush=True)
        rows.append(_tried(version, Path(path), options.tests, run))
    print(table(rows))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of torch, such as 2.14.1")
    parser.add_argument("--python", action="append", metavar="VERSION", help="such as 3.12; may be repeated")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="what pytest runs; else all")
    parser.add_argument("--environment", action="append", default=[], metavar="VERSION=PATH", help="one that is there")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args(words)
    options.python = options.python or [f"{sys.version_info.major}.{sys.version_info.minor}"]
    return options


def _problems(options: argparse.Namespace) -> list[str]:
    found = [
        f"{each!r} is no version of torch; one is like 2.14.1" for each in options.versions if not _is_version(each)
    ]
    for each in options.python:
        if not _PYTHON.fullmatch(each):
            found.append(f"{each!r} is no version of Python; one is like 3.12")
        elif (options.versions or not options.environment) and _interpreter(each) is None:
            found.append(f"there is no Python {each} here: no python{each} on the path")
    for each in options.environment:
        version, _, path = each.partition("=")
        if not _is_version(version) or not (Path(path) / "bin" / "python").exists():
            found.append(f"--environment {each}: expected a version, '=' and the folder of a virtual environment")
    found += [f"--tests {each}: there is no such file or folder" for each in options.tests if not _exists(each)]
    return found


def _is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _exists(test: str) -> bool:
    return (ROOT / test.partition("::")[0]).exists()


def _interpreter(python: str) -> str | None:
    return shutil.which(f"python{python}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"it did not end within {_LIMIT_S} s")


def requirements(version: str) -> list[str]:
    """Return the requirements for pip: this version of torch, and all else that the tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [f"torch=={version}", *(each for each in named if re.match(r"[\w-]+", each)[0] != "torch")]  # type: ignore[index]


def _in_new_environment(version: str, python: str, tests: Sequence[str], run: Run) -> Row:
    with tempfile.TemporaryDirectory(prefix="simdist-versions-") as folder:
        for command in (
            [str(_interpreter(python)), "-m", "venv", folder],
            [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", *requirements(version)],
            [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)],
        ):
            done = run(command)
            if done.returncode:
                return Row(version, python, problem=_last_line(done))
        return _tried(version, Path(folder), tests, run)


def _tried(version: str, environment: Path, tests: Sequence[str], run: Run) -> Row:
    python = str(environment / "bin" / "python")
    asked = run([python, "-c", _ABOUT])
    if asked.returncode:
        return Row(version, "", problem=_last_line(asked))
    found, number, build = asked.stdout.split()
    if found.partition("+")[0] != version:
        return Row(version, number, build, problem=f"torch {found} is installed there")
    row = Row(version, number, build)
    row.first_command = _works(run([python, "-m", *first_command()]))
    row.first_example = _works(run([python, "-c", _FIRST_EXAMPLE]))
    row.ranks, row.devices = _by_doctor(run([python, "-m", "simdist", "doctor", "--json"]))
    run([python, "-m", "simdist", "build-devices"])
    for form in KERNELS:
        row.programs[form] = _of_programs(run([python, "-c", _PROGRAMS, form, *GPU_PROGRAMS]))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        words = ["-q", "-p", "no:cacheprovider", "-n", str(_cores()), f"--junitxml={report}", *tests]
        done = run([python, "-m", "pytest", *words])
        if not report.exists():
            row.problem = _last_line(done)
            return row
        count(row, report, known_for(version))
    return row


_ABOUT = """
import platform, torch
number = ".".join(platform.python_version_tuple()[:2])
print(torch.__version__, number, "CPU" if torch.version.cuda is None else f"CUDA-{torch.version.cuda}")
"""

# The README's example, with the line and the folder of Gloo's source as in this torch.
_FIRST_EXAMPLE = """
import re, sys, tempfile
from pathlib import Path
from simdist.inside.torch import Place
from tools._page_examples import run_page
text = Path("README.md").read_text()
text = re.sub(r"\\[[^[]*/pair\\.cc:\\d+\\]", f"[{Place.PAIR_CLOSED.path}]", re.sub(r"(?m)^FAILED .*$", "...", text))
with tempfile.TemporaryDirectory() as folder:
    page = run_page(text, Path(folder))
sys.exit("\\n".join(page.problems) if page.problems else not page.ran)
"""

_PROGRAMS = """
import json, os, resource, subprocess, sys
environment = os.environ | {"SIMDIST_DEVICE_KERNELS": sys.argv[1]}
failed = [
    file
    for file in sys.argv[2:]
    if subprocess.run([sys.executable, "-m", "simdist", "run", file], env=environment, capture_output=True).returncode
]
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([failed, used.ru_utime + used.ru_stime]))
"""


def first_command(readme: str | None = None) -> list[str]:
    """Return the README's first command after the installation, split into words."""
    found = re.search(r"&& (simdist run \S+)", (ROOT / "README.md").read_text() if readme is None else readme)
    assert found is not None
    return found[1].split()


def _works(done: subprocess.CompletedProcess[str]) -> str:
    return "works" if not done.returncode else _last_line(done)


def _of_programs(done: subprocess.CompletedProcess[str]) -> str:
    try:
        failed, seconds = json.loads(done.stdout)
    except ValueError:
        return f"not run: {_last_line(done)}"
    names = f", not {', '.join(Path(each).stem for each in failed)}" if failed else ""
    return f"{len(GPU_PROGRAMS) - len(failed)} of {len(GPU_PROGRAMS)}{names}, {seconds:.0f} s"


def _by_doctor(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    try:
        features = {each["name"]: each for each in json.loads(done.stdout)["features"]}
    except (ValueError, KeyError):
        return (_last_line(done),) * 2
    ranks, devices = features["simulated ranks"], features["virtual CUDA devices"]
    return ("works" if ranks["on"] else ranks["why_off"], "works" if devices["on"] else devices["why_off"])


def known_for(version: str, file: Path = KNOWN) -> dict[str, str]:
    """Return the tests that fail with a version because torch differs there, and the reasons."""
    entries = tomllib.loads(file.read_text()).get("difference", [])
    return {
        each["test"]: each["why"]
        for each in entries
        if _minor(each["since"]) <= _minor(version) <= _minor(each.get("until", version))
    }


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def count(row: Row, report: Path, known: dict[str, str]) -> None:
    """Add the counts of a junit report of pytest to the row."""
    root = ET.parse(report)
    row.seconds = sum(float(each.get("time", 0)) for each in root.iter("testsuite"))
    passed: dict[str, bool] = {}
    for case in root.iter("testcase"):
        name = _name(case.get("classname", ""), case.get("name", ""))
        test, ok = name.partition("[")[0], False
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is not None and name in known:
            row.known.append(name)
        elif wrong is not None:
            row.failed.append(name)
            row.why[name] = " ".join(wrong.get("message", "").split())[:_SHOWN]
        elif case.find("skipped") is not None:
            row.skipped += 1
        else:
            row.passed += 1
            ok = True
        passed[test] = ok and passed.get(test, True)
    wishes = [f"tests/device/{test}" for test in CHECKS.values()]
    if any(test in passed for test in wishes):
        row.checks = f"{sum(passed.get(test, False) for test in wishes)} of {len(wishes)}"


def _name(owner: str, name: str) -> str:
    """Return pytest's name: "tests.cli.test_run.TestRun", "test_a" give "tests/cli/test_run.py::TestRun::test_a"."""
    parts = owner.split(".")
    module = next((at for at, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    return "::".join(("/".join(parts[: module + 1]) + ".py", *parts[module + 1 :], name))


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if line.strip()]
    return f"exit code {done.returncode}: {lines[-1] if lines else 'it said nothing'}"


def table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown, followed by the names of the tests that failed."""
    heads = ["torch", "build", "Python", "first command", "first example", "ranks", "virtual devices", "device checks"]
    heads += ["GPU programs, kernels in Python", "in C++", "tests", "known differences", "failed", "seconds"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        which = f"| {row.torch} | {row.build} | {row.python} |"
        if row.problem:
            lines.append(f"{which} {row.problem} |{' |' * (len(heads) - 4)}")
            continue
        cells = [row.first_command, row.first_example, row.ranks, row.devices, row.checks]
        cells += [row.programs[form] for form in KERNELS]
        cells += [f"{row.passed} passed, {row.skipped} skipped", str(len(row.known)), str(len(row.failed))]
        lines.append(f"{which} {' | '.join([*cells, f'{row.seconds:.0f}'])} |")
    for row in rows:
        failed = [f"{name}: {row.why[name]}" if row.why.get(name) else name for name in row.failed]
        lines += [f"failed with torch {row.torch}, Python {row.python}: {each}" for each in failed]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
