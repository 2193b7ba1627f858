"""A worker's pytest: a process that collects the tests once, and runs the requested ones.

`ServedTests` lives in the worker and starts the process, which loads this module as a plugin. The two communicate over
a pipe: node ids go in, reports of each test come back. The process ends when the pipe does, so it never outlives its
worker.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from simdist.programs import Worker

__all__ = ["Observed", "ServedTests", "pytest_addoption"]

_PIPE = "_SIMDIST_PIPE"  # the variable that names its end of the pipe
_LINES = 12  # of its output that are shown when the process dies
_LAST_WORDS = "Fatal Python error"  # if it is there, its output is shown from it on

Observed = tuple[str, dict[str, Any]]
"""A report, as pytest's hooks make it serializable; or the arguments of a recorded warning."""


# -- in the worker -----------------------------------------------------------------------------------------------------


class ServedTests(Worker[str, "list[Observed] | str"]):
    """Runs tests in a pytest called with `arguments` in `folder`; a context manager, as a `Start` returns one."""

    def __init__(self, arguments: Sequence[str], folder: str, options: str) -> None:
        self._arguments = arguments
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> ServedTests:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._output.close()

    def do(self, task: str) -> list[Observed] | str:
        """Return the reports of a test, or the reason why there are none."""
        if self._pipe is None and (problem := self._start()):
            return problem
        assert self._pipe is not None
        try:
            self._pipe.send(task)
            seen: list[Observed] | str = self._pipe.recv()
        except (EOFError, OSError):
            return f"the process that ran this test on a worker {self._end()}"
        return seen

    def _start(self) -> str:
        """Start the process; return the problem that prevents it, "" if none."""
        if not Path(self._folder).is_dir():
            return f"the worker has no folder {self._folder}: the tests have to be there under the same path"
        ours, theirs = Pipe()
        environment = os.environ | {
            _PIPE: str(theirs.fileno()),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTEST_ADDOPTS": self._options,
        }
        self._output.seek(0)
        self._output.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *self._arguments, "-p", __name__],
            cwd=self._folder,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self._pipe = ours
        try:
            ours.recv()
        except (EOFError, OSError):
            return f"pytest can't run on a worker: it {self._end()}"
        return ""

    def _end(self) -> str:
        """End the process; return how it ended."""
        if self._process is None or self._pipe is None:
            return ""
        self._pipe.close()
        code = self._process.wait()
        self._process = self._pipe = None
        self._output.seek(0)
        text = self._output.read().decode("utf-8", "replace").rstrip()
        begin = text.rfind(_LAST_WORDS)
        said = text.splitlines()[-_LINES:] if begin < 0 else text[begin:].splitlines()[:_LINES]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "\n".join([f"{how}{':' if said else ''}", *(f"  {line}" for line in said)])


# -- in its process ----------------------------------------------------------------------------------------------------


class _Server:
    """The plugin: the loop over the requested tests."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._seen: list[Observed] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the requested tests, until the pipe closes."""
        items = {item.nodeid: item for item in session.items}
        with contextlib.suppress(EOFError, OSError):  # the worker has no further request
            self._pipe.send("ready")
            for nodeid in self._asked():
                item = items.get(nodeid)
                if item is None:
                    self._pipe.send("this test was not found on a worker: do the same files lie there?")
                    continue
                self._seen = []
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                self._pipe.send(self._seen)
        return True

    def _asked(self) -> Iterator[str]:
        while True:
            yield self._pipe.recv()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report."""
        config = self._config
        self._seen.append(("report", config.hook.pytest_report_to_serializable(config=config, report=report)))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Keep the warning; one that can't be pickled is sent as its text."""
        message, category = warning_message.message, warning_message.category
        try:
            pickle.dumps((message, category))
        except Exception:
            message, category = UserWarning(f"{category.__name__}: {message}"), UserWarning
        shown = warnings.WarningMessage(message, category, warning_message.filename, warning_message.lineno)
        data = {"warning_message": shown, "when": when, "nodeid": nodeid, "location": location}
        self._seen.append(("warning", data))

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Declare that another process reports, as pytest-xdist does: plugins that write files leave it to that one."""
        self._config = config
        config.option.simdist_scheduler = None
        config.workerinput = {  # type: ignore[attr-defined]  # by that convention
            "workerid": f"gw{os.getpid()}",
            "workercount": 1,
            "testrunuid": str(os.getppid()),
        }


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Start serving if the pipe's variable is set."""
    number = os.environ.pop(_PIPE, None)
    if number is not None:
        pluginmanager.register(_Server(Connection(int(number))), "simdist-served")
