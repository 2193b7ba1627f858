"""Tests that a Dask cluster's workers run: `pytest --simdist-seeds 1000 --simdist-scheduler tcp://10.0.0.1:8786`.

Simulated tests (each seed of one is a test) run there, the others here. Each worker keeps a pytest of its own
(`_served.py`), in a process that has collected the same tests and runs those that it gets by their node ids. Its
reports are logged here in the order of the tests, so that terminal, exit code, `-x` and JUnit files are as without a
cluster.

- It is unknown which test a worker runs next, so fixtures of every scope are torn down after each test.
- A test fails if its process dies. The death of a worker loses nothing: see `simdist.programs`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simdist.errors import ArgumentError
from simdist.programs import Worker, Workers, workers_problems
from simdist.testing._plugin._served import Observed, ServedTests

__all__ = ["Elsewhere"]


class Elsewhere:
    """The loop over the tests of a session, some of which run on workers; a plugin.

    `is_simulated` returns whether a test drives worlds.

    Raises:
        pytest.UsageError: `address` is no address, or another option excludes it.
    """

    def __init__(self, config: pytest.Config, address: str, is_simulated: Callable[[pytest.Item], bool]) -> None:
        option = config.option
        problems = [each.replace("workers", "--simdist-scheduler", 1) for each in workers_problems(address)]
        problems += [
            f"--simdist-scheduler: {name} needs tests that run here"
            for name, given in (
                ("--pdb", option.usepdb),
                ("--trace", option.trace),
                ("-n", getattr(option, "numprocesses", None) or getattr(option, "tx", None)),
            )
            if given
        ]
        if problems:
            raise pytest.UsageError("\n".join(problems))
        self._address = address
        self._is_simulated = is_simulated

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests of the session."""
        option = session.config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None  # there is nothing to run, or pytest reports why not
        there = {
            item.nodeid: item
            for item in session.items
            if self._is_simulated(item) or item.get_closest_marker("simdist_sweep") is not None
        }
        here = [item for item in session.items if item.nodeid not in there]
        for item, following in zip(here, [*here[1:], None], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            _heed(session)
        if not there:
            return True
        start = functools.partial(ServedTests, *_arguments(session.config))
        try:
            workers: Workers[str, list[Observed] | str] = Workers(_Here(there), start, self._address, apart=True)
        except ArgumentError as error:
            raise pytest.UsageError(str(error)) from None
        with workers:
            for nodeid, seen in workers.run(list(there), len(there)):
                _log(there[nodeid], seen)
                _heed(session)
        return True


class _Here(Worker[str, "list[Observed] | str"]):
    """This process, which runs the tests if no worker is left."""

    def __init__(self, items: dict[str, pytest.Item]) -> None:
        self._items = items

    def do(self, task: str) -> list[Observed]:
        item = self._items[task]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return []  # pytest has logged it already

    def killed(self, number: int, task: str, how: str) -> str:
        return f"every worker that began this test died, the last one {how}"


def _arguments(config: pytest.Config) -> tuple[Sequence[str], str, str]:
    """Return how pytest was called: arguments, folder, and PYTEST_ADDOPTS."""
    arguments = [str(each) for each in config.invocation_params.args]
    if config.pluginmanager.has_plugin("xdist"):
        arguments.append("-n0")
    return arguments, str(config.invocation_params.dir), os.environ.get("PYTEST_ADDOPTS", "")


def _log(item: pytest.Item, seen: Sequence[Observed] | str) -> None:
    """Log a worker's reports of a test, or the reason why it has none."""
    hook = item.config.hook
    if isinstance(seen, str):
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        report: Any = pytest.TestReport(
            nodeid=item.nodeid, location=item.location, keywords={}, outcome="failed", longrepr=seen, when="call"
        )
        item.ihook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return
    if not seen:
        return
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for kind, data in seen:
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=item.config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        else:
            hook.pytest_warning_recorded.call_historic(kwargs=data)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _heed(session: pytest.Session) -> None:
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
