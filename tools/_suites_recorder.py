"""A plugin of pytest that `tools/suites.py` loads into other projects' suites: it writes the outcome of each test.

The file that SIMDIST_SUITES_RECORD names gets a line of JSON when a test begins, one when it has ended, and one at the
end of the session: so the lines of a process that dies or is stopped are kept. Tests that SIMDIST_SUITES_DONE lists,
one per line, are left out. The plugin keeps the exit codes of the children that a test starts by multiprocessing, since
some harnesses skip a test whose children died. Where pytest runs on each rank (SIMDIST_SUITES_RANKS), rank 0 writes,
and the others write only about tests that did not pass. It imports only the standard library, because it runs in the
projects' environments.
"""

from __future__ import annotations

import json
import multiprocessing.process
import os
import signal
from pathlib import Path
from typing import Any

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_collectreport",
    "pytest_configure",
    "pytest_runtest_logfinish",
    "pytest_runtest_logreport",
    "pytest_runtest_logstart",
    "pytest_sessionfinish",
]

# The worst report of a test counts: subtests, teardown and repeated calls report under the same name.
_WORST_FIRST = ("error", "failed", "passed unexpectedly", "failed as expected", "skipped", "passed")
_SAY_NOTHING = (0, -signal.SIGTERM, -signal.SIGKILL)  # which children a harness still has to end is a race
_IS_STARTED_ON_RANKS = int(os.environ["SIMDIST_SUITES_RANKS"]) > 1
_RANK = int(os.environ["RANK"]) if _IS_STARTED_ON_RANKS else 0
_PROCESS = os.getpid()  # a test's forked child that falls through into pytest reports nothing
_outcomes: dict[str, tuple[str, str]] = {}
_children: list[Any] = []


def pytest_configure() -> None:
    """Record the children that tests start, and restore the environment of plain pytest, if tests start their ranks.

    With torchrun's variables, which `simdist launch` sets, `env://` would mean the launcher's store in every child.
    """
    if not _IS_STARTED_ON_RANKS:
        for name in set(os.environ) - set(json.loads(os.environ["SIMDIST_SUITES_NAMES"])):
            del os.environ[name]
    processes: Any = multiprocessing.process.BaseProcess
    start = processes.start

    def starting(self: Any) -> None:
        start(self)
        _children.append(self)

    processes.start = starting


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the tests that an earlier process ran."""
    done = set(Path(os.environ["SIMDIST_SUITES_DONE"]).read_text().splitlines())
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: Any) -> None:
    """Record a module that can't be imported as a failure, and one that skips itself as skipped."""
    if report.failed or report.skipped:
        outcome = "collection error" if report.failed else "skipped"
        _write(kind="end", test=report.nodeid, outcome=outcome, text=_last_line(report))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write that the test begins."""
    _outcomes.pop(nodeid, None)
    _children.clear()
    _write(kind="begin", test=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst of a test's reports."""
    if hasattr(report, "wasxfail"):
        outcome = "failed as expected" if report.skipped else "passed unexpectedly"
    elif report.failed:
        outcome = "failed" if report.when == "call" else "error"
    elif report.when != "call" and report.passed:
        return  # a set-up or a teardown that went well says nothing about the test
    else:
        outcome = report.outcome
    before = _outcomes.get(report.nodeid)
    if before is None or _WORST_FIRST.index(outcome) < _WORST_FIRST.index(before[0]):
        _outcomes[report.nodeid] = (outcome, "" if outcome == "passed" else _last_line(report))


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write the test's outcome."""
    outcome, text = _outcomes.pop(nodeid, ("error", "the test ended without a report"))
    codes = sorted({code for child in _children if (code := _exit_code(child)) not in _SAY_NOTHING})
    if codes:
        outcome += f", children ended with {', '.join(map(str, codes))}"
    _write(kind="end", test=nodeid, outcome=outcome, text=text)
    _children.clear()


def pytest_sessionfinish(exitstatus: int) -> None:
    """Write that all tests ran."""
    _write(kind="finish", exit_code=int(exitstatus))


def _exit_code(child: Any) -> int:
    try:
        return child.exitcode or 0
    except ValueError:  # the test closed it after it had seen the child end
        return 0


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:500]
    if isinstance(report.longrepr, tuple):  # file, line and reason of a skip
        return str(report.longrepr[2])[:500]
    return str(report.longrepr or "").strip()[-500:]


def _write(**line: Any) -> None:
    if os.getpid() != _PROCESS:
        return
    if _RANK:
        if line["kind"] != "end" or line["outcome"].split(",")[0] not in ("error", "failed", "passed unexpectedly"):
            return
        line["rank"] = _RANK
    # The file is opened each time: a test that closes descriptors, or is killed, loses no line.
    with Path(os.environ["SIMDIST_SUITES_RECORD"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
