"""The steps of `tools/suites.py` for one project: fetch it, make an environment, run its tests in two ways, compare.

Every child runs in a session of its own with a time limit, and has a mark in its environment. When it ends, remaining
processes with that mark are found and killed, whatever their process group is.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools._suites_projects import Project

__all__ = [
    "Comparison",
    "Run",
    "SuiteError",
    "compare",
    "environment",
    "fetch",
    "outcomes_of",
    "run_child",
    "run_tests",
]

ROOT = Path(__file__).resolve().parents[1]
MARK = "SIMDIST_SUITES_MARK"
NOT_PASSING = ("collection error", "died", "error", "failed", "passed unexpectedly", "timed out")
_POLL_S = 0.2
_INSTALL_LIMIT_S = 600.0
_STARTER = "import sys\nfrom simdist.__main__ import entry\n\nif __name__ == '__main__':\n    sys.exit(entry())\n"


class SuiteError(Exception):
    """A project could not be fetched, installed or run."""


@dataclass(slots=True)
class Run:
    """One arm: the outcome and the last line of every test that began or could not be collected."""

    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: str = ""  # why tests may be missing; empty if all ran


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms of one project, test by test."""

    tests: int
    passed: int  # on both
    same: int
    differing: dict[str, str]  # test: its outcome on each arm
    known: dict[str, str]  # test: why it differs
    problems: tuple[str, ...]  # those of the whole share

    @property
    def ok(self) -> bool:
        """True if all differences are known."""
        return not self.differing and not self.problems


def compare(project: Project, simulated: Run, real: Run | None) -> Comparison:
    """Compare the two arms; without a real one, every test that did not pass or skip counts as a difference.

    A test that is missing on one arm differs, unless that arm was stopped, which is a problem of the share. A test that
    can't be collected, died or was stopped differs, even if it did so on both arms: nothing was tested.
    """
    differing: dict[str, str] = {}
    known: dict[str, str] = {}
    passed = same = 0
    arms = [("simulated", simulated)] if real is None else [("simulated", simulated), ("real", real)]
    names = sorted({name for _, run in arms for name in run.outcomes})
    for name in names:
        if any(run.stopped and name not in run.outcomes for _, run in arms):
            continue
        one, text = simulated.outcomes.get(name, ("missing", ""))
        if real is None:
            other, other_text, alike = "", "", one.split(",")[0] not in (*NOT_PASSING, "missing")
        else:
            other, other_text = real.outcomes.get(name, ("missing", ""))
            alike = one == other and one not in ("collection error", "died", "timed out")
        passed += alike and one.split(",")[0] == "passed"
        same += alike
        if alike:
            continue
        reported = _reported("simulated", one, text) + (
            "" if real is None else "; " + _reported("real", other, other_text)
        )
        reason = _reason_for(project.known, name)
        if reason is None:
            differing[name] = reported
        else:
            known[name] = reason
    problems = [f"{arm}, {len(run.outcomes)} tests done: {run.stopped}" for arm, run in arms if run.stopped]
    if not passed:
        problems.append("no test passed")
    return Comparison(len(names), passed, same, differing, known, tuple(problems))


def _reported(arm: str, outcome: str, text: str) -> str:
    first = text.strip().splitlines()[0][:160] if text.strip() and outcome != "passed" else ""
    return f"{arm} {outcome}" + (f" ({first})" if first else "")


def _reason_for(known: Mapping[str, str], name: str) -> str | None:
    for pattern, reason in known.items():
        if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL):
            return reason
    return None


def fetch(project: Project, into: Path, mirror: Path | None) -> None:
    """Check out the project's pinned commit in `into`.

    Raises:
        SuiteError: the commit is not there.
    """
    git = ("git", "-c", "safe.directory=*", "-c", "advice.detachedHead=false")
    into.mkdir(parents=True)
    log, settings = into.parent / "fetch.log", dict(os.environ)
    if mirror is None:
        commands = [
            (*git, "init", "-q"),
            (*git, "fetch", "-q", "--depth", "1", f"https://github.com/{project.repository}.git", project.commit),
            (*git, "checkout", "-q", "FETCH_HEAD"),
        ]
    else:
        copy = (mirror / project.repository.replace("/", "+") / "repo").resolve()
        if not copy.is_dir():
            raise SuiteError(f"no copy of {project.repository} at {copy}")
        settings |= {"GIT_INDEX_FILE": str(into.parent / "index")}  # nothing is written into the copy
        at = (*git, f"--git-dir={copy / '.git' if (copy / '.git').is_dir() else copy}", f"--work-tree={into}")
        commands = [(*at, "read-tree", project.commit)]
    for command in commands:
        if run_child(command, into, settings, log, _INSTALL_LIMIT_S) != 0:
            raise SuiteError(f"{project.repository} at {project.commit}: {_tail(log)}")
    if mirror is not None:
        # A copy may lack large files, which no test here needs; the log lists them.
        run_child((*at, "checkout-index", "-q", "-a"), into, settings, log, _INSTALL_LIMIT_S)
        if not any(into.iterdir()):
            raise SuiteError(f"{project.repository} at {project.commit}: {_tail(log)}")


def environment(project: Project, folder: Path, starter: str = _STARTER) -> Path:
    """Make a virtual environment that sees the packages of this one, install the project's needs; returns its folder.

    Raises:
        SuiteError: pip failed.
    """
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "of_the_parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    command = folder / "bin" / "simdist"  # as pip writes it: the installed command, not `python -m simdist`
    command.write_text(f"#!{folder / 'bin' / 'python'}\n{starter}")
    command.chmod(0o755)
    if project.needs:
        limits = folder.parent / "constraints.txt"
        held = ("torch", "numpy", "pytest")
        limits.write_text("".join(f"{name}=={importlib.metadata.version(name)}\n" for name in held))
        pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q")
        log = folder.parent / "install.log"
        arguments = (*pip, "--disable-pip-version-check", "-c", str(limits), *project.needs)
        if run_child(arguments, folder, dict(os.environ), log, _INSTALL_LIMIT_S) != 0:
            raise SuiteError(f"pip could not install what {project.name} needs: {_tail(log)}")
    return folder


def run_tests(project: Project, arm: str, source: Path, python: Path, folder: Path, limit_s: float) -> Run:
    """Run the project's share on one arm, "simulated" or "real", in a copy of `source`; logs stay in `folder`.

    A test that takes longer than the project's limit, or ends the process, is reported as such, and the tests after it
    run in a new process.
    """
    folder.mkdir(parents=True)
    tree, seen, record, done = folder / "tree", folder / "seen", folder / "record", folder / "done"
    shutil.copytree(source, tree, symlinks=True)
    seen.mkdir()
    (seen / "simdist").symlink_to(ROOT / "simdist")  # alone: this project's `tests` and `tools` hide the other's
    shutil.copy(ROOT / "tools" / "_suites_recorder.py", seen / "simdist_suites_recorder.py")
    record.touch()
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(seen), *(str(tree / root) for root in project.roots)]),
        "SIMDIST_SUITES_RECORD": str(record),
        "SIMDIST_SUITES_DONE": str(done),
        **project.settings,
    }
    bin_folder = python / "bin"
    settings["PATH"] = f"{bin_folder}{os.pathsep}{settings.get('PATH', os.defpath)}"
    settings["SIMDIST_SUITES_RANKS"] = str(project.ranks)
    settings["SIMDIST_SUITES_NAMES"] = json.dumps(sorted([*settings, "SIMDIST_SUITES_NAMES", MARK]))
    devices = ("--devices", str(project.devices)) if project.devices else ()
    ranks = ("--nproc-per-node", str(project.ranks)) if project.ranks > 1 else ()
    if arm == "simulated":
        start = (str(bin_folder / "simdist"), "launch", *ranks, *devices)
    else:
        start = (str(bin_folder / "python"), *(("-m", "torch.distributed.run", *ranks) if ranks else ()))
    plugins = ("-p", "simdist_suites_recorder", "-p", "no:cacheprovider")
    command = (*start, "-m", "pytest", "-q", *plugins, *project.options, *project.tests)
    run, began = Run(), time.monotonic()
    while True:
        done.write_text("".join(f"{name}\n" for name in run.outcomes))
        left = limit_s - (time.monotonic() - began)
        before = len(run.outcomes)
        code = run_child(command, tree, settings, folder / "log", left, record, project.test_limit_s)
        run.outcomes, finished = outcomes_of(record.read_text().splitlines(), timed_out=code is None)
        if finished:
            break
        if code is None and time.monotonic() - began >= limit_s:
            run.stopped = f"stopped after {limit_s:g} s"
            if run.outcomes and next(reversed(run.outcomes.values()))[0] == "timed out":
                run.outcomes.popitem()  # the test under way: the arm's limit stopped it, not its own
            break
        if len(run.outcomes) == before:
            ended = "was stopped" if code is None else f"ended with exit code {code}"
            run.stopped = f"pytest {ended} outside a test: {_tail(folder / 'log')}"
            break
        with record.open("a") as file:  # the outcome of the test that was under way
            name, (outcome, text) = next(reversed(run.outcomes.items()))
            file.write(json.dumps({"kind": "end", "test": name, "outcome": outcome, "text": text}) + "\n")
    run.seconds = time.monotonic() - began
    return run


def outcomes_of(lines: Sequence[str], *, timed_out: bool) -> tuple[dict[str, tuple[str, str]], bool]:
    """Return the outcomes that the recorder wrote, and True if the session reached its end.

    Ranks other than 0 write only about tests that did not pass there; such a test has not passed.
    """
    outcomes: dict[str, tuple[str, str]] = {}
    elsewhere: dict[str, tuple[str, str]] = {}
    under_way: str | None = None
    finished = False
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # the process was killed while it wrote
            continue
        if entry.get("rank", 0):
            elsewhere.setdefault(entry["test"], (entry["outcome"], f"rank {entry['rank']}: {entry['text']}"))
            continue
        if entry["kind"] == "begin":
            under_way = entry["test"]
        elif entry["kind"] == "end":
            outcomes.pop(entry["test"], None)
            outcomes[entry["test"]] = (entry["outcome"], entry["text"])
            under_way = None
        finished = entry["kind"] == "finish"
    if under_way is not None:
        outcomes[under_way] = ("timed out" if timed_out else "died", "")
        finished = False
    good = {name for name, (outcome, _) in outcomes.items() if outcome.split(",")[0] not in NOT_PASSING}
    outcomes |= {name: outcome for name, outcome in elsewhere.items() if name in good}
    return outcomes, finished


def run_child(
    command: Sequence[str],
    folder: Path,
    settings: Mapping[str, str],
    log: Path,
    limit_s: float,
    record: Path | None = None,
    quiet_s: float = 0.0,
) -> int | None:
    """Run a command, and return its exit code; None if it took longer than `limit_s`, or wrote nothing to `record`.

    All processes that it started have ended afterwards.
    """
    mark = uuid.uuid4().hex
    now = time.monotonic()
    until, size, changed = now + limit_s, -1, now
    with log.open("a") as file:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**settings, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return child.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                if record is not None and record.stat().st_size != size:
                    size, changed = record.stat().st_size, now
                if now >= until or (record is not None and now - changed >= quiet_s):
                    return None
        finally:
            _end(child, mark)


def _end(child: subprocess.Popen[bytes], mark: str) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    while left := _marked(mark):  # again: a process may have started another one just before it was killed
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            settings = (folder / "environ").read_bytes()  # empty for a process that has ended
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in settings.split(b"\0"):
            found.append(int(folder.name))
    return found


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:]
