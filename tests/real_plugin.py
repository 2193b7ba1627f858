"""`pytest` runs the deterministic tests, `pytest --real` only those that need real processes or real time.

A test that needs either has the marker `real`: from itself, from its folder's conftest.py, or from the arm on which it
runs. The plain command deselects these, and the summary counts them; `--real` deselects all others.

The plain command without arguments uses all cores. A selection of tests runs one after the other, and so do tests of
real processes, which would disturb each other's timing (`-n` changes this).

A busy machine can make real processes differ. So each test that fails with `--real` runs again when all others are
done, alone in a pytest of its own, up to twice, and fails only if it never passes. The summary names each of these
tests, also those that passed in the end, with the result of every attempt.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

MARKER = "real: needs real processes or real time; runs with --real"
_AGAIN = "--real-again"  # for the pytest that runs one test alone, which repeats nothing itself
_ALONE = 2  # more attempts of a test that failed
_LONGEST_S = 300
_FORKS = "parity"  # its worlds are forks of pytest and run first: a fork dies the slower, the more memory pytest has
_COLUMNS = 400  # enough to show a reason as a whole


@dataclass(slots=True)
class _Again:
    """A test that failed when it ran with all others, and its failures then and later."""

    reports: list[pytest.TestReport] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    passed: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option, and the one for the pytest that runs a test again."""
    group = parser.getgroup("real", "real processes and real time")
    group.addoption(
        "--real", action="store_true", help="run the tests that need real processes or real time, and only these"
    )
    group.addoption(_AGAIN, action="store_true", help="fail at once; used for a test that is run again alone")


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and the plugin that repeats failed tests."""
    config.addinivalue_line("markers", MARKER)
    config.pluginmanager.register(_Selection(config), "simdist-real-selection")
    on_worker = hasattr(config, "workerinput")  # a worker of pytest-xdist, whose starter gets all failures
    if config.getoption("--real") and not config.getoption(_AGAIN) and not on_worker:
        config.pluginmanager.register(_RunAgain(config), "simdist-real-again")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number for `-n auto` of pyproject.toml: every core; pytest-xdist may count half of them."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not everything or config.getoption("--real"):
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let workers keep bytecode in any environment: without it each rewrites all assertions, which takes 10 s."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class _Selection:
    """Deselects the tests that do not belong to this run, and counts them."""

    def __init__(self, config: pytest.Config) -> None:
        self._real = bool(config.getoption("--real"))
        self._left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if (item.get_closest_marker("real") is not None) != self._real]
        self._left_out = len(left_out)
        if left_out:
            items[:] = [item for item in items if (item.get_closest_marker("real") is not None) == self._real]
            config.hook.pytest_deselected(items=left_out)
        if self._real:
            items.sort(key=lambda item: item.path.parent.name != _FORKS)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out and not self._real:
            terminalreporter.write_line(f"{self._left_out} tests of real processes and real time: pytest --real")


class _RunAgain:
    """Runs each failed test again, alone, and reports it as passed if it passes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, _Again] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            again = self._failed.setdefault(report.nodeid, _Again())
            again.reports.append(report)
            again.shown.append(_reason(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED:
            return  # interrupted, or nothing could be collected
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        for nodeid, again in self._failed.items():
            for _ in range(_ALONE):
                again.passed, shown = self._alone(nodeid)
                again.shown.append(shown)
                if again.passed:
                    break
            if again.passed and reporter is not None:
                for kind in ("failed", "error"):
                    kept = [report for report in reporter.stats.get(kind, []) if report not in again.reports]
                    reporter.stats[kind] = kept
                    if not kept:
                        del reporter.stats[kind]
                reporter.stats.setdefault("passed alone", []).extend(again.reports[:1])
        if self._failed and all(again.passed for again in self._failed.values()):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._failed:
            return
        terminalreporter.section("run again alone")
        for nodeid, again in self._failed.items():
            verdict = "passed alone after failing under load" if again.passed else "failed alone too"
            terminalreporter.write_line(f"{nodeid}: {verdict}")
            alone = len(again.shown) - len(again.reports)
            for index, shown in enumerate(again.shown):
                when = (
                    f"alone, {index - len(again.reports) + 1} of {alone}" if index >= len(again.reports) else "with all"
                )
                terminalreporter.write_line(f"  {when}: {shown}")

    def _alone(self, nodeid: str) -> tuple[bool, str]:
        """Run one test in its own process; returns True if it passed, and its result in words."""
        words = [sys.executable, "-m", "pytest", "--real", _AGAIN, "-rfEs", "--tb=short", "-p", "no:cacheprovider"]
        if self._config.inipath:
            words += ["-c", str(self._config.inipath)]
        try:
            done = subprocess.run(
                [*words, f"--rootdir={self._config.rootpath}", nodeid],
                cwd=self._config.rootpath,
                env=os.environ | {"COLUMNS": str(_COLUMNS)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            return False, f"did not end within {_LONGEST_S} s"
        if done.returncode == 0 and re.search(r"\b1 passed\b", done.stdout):  # not skipped
            return True, "passed"
        reported = re.findall(r"^(?:FAILED|ERROR) \S.*? - (.+)$", done.stdout, re.MULTILINE)
        last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
        return False, reported[-1] if reported else f"exit code {done.returncode}: {last}"


def _reason(report: pytest.TestReport) -> str:
    """Return the reason of a failure, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip() or "nothing"
    if crash is None:
        return text.splitlines()[-1]
    said, _, _ = text.partition("\nassert ")  # without pytest's addition to the test's own message
    return " ".join(said.split())[:_COLUMNS]
