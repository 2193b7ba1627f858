"""One arm of `tools/suite.py`: run a module of unittest classes in this process, and write each test's outcome."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
import time
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["main"]


class _Result(unittest.TestResult):
    """The outcome of each test, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._began = 0.0

    def startTest(self, test: Any) -> None:
        """Start the clock."""
        super().startTest(test)
        self._began = time.perf_counter()

    def _report(self, test: Any, outcome: str, text: str = "") -> None:
        seconds = time.perf_counter() - self._began
        name = ".".join(test.id().split(".")[-2:])
        self.outcomes[name] = {"outcome": outcome, "text": text, "seconds": seconds}

    def addSuccess(self, test: Any) -> None:
        """The test passed."""
        self._report(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        """The test failed."""
        self._report(test, "failed", str(err[1]))

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        """The test was skipped."""
        self._report(test, "skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        """The test failed as it should."""
        self._report(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        """The test should have failed."""
        self._report(test, "unexpected success")


def main(path: str, kind: str, out: str, share: str) -> None:
    """Run the module at `path`; `kind` is "simulated", "forked" or "spawned"; a `share` of 1/3 is its second third."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    case: Any = MultiProcessTestCase
    if kind == "forked":
        case._spawn_processes = lambda self: self._start_processes(torch.multiprocessing.get_context("fork").Process)
        torch.set_num_threads(1)  # an OpenMP pool does not survive a fork
    sys.path.insert(0, str(Path(path).parent))
    module = importlib.import_module(Path(path).stem)
    part, parts = map(int, share.split("/"))
    suite = unittest.TestSuite(list(_tests(unittest.defaultTestLoader.loadTestsFromModule(module)))[part::parts])
    result = _Result()
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        suite.run(result)
    seconds = time.perf_counter() - began
    Path(out).write_text(json.dumps({"seconds": seconds, "outcomes": result.outcomes}))


def _tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _tests(each)
        else:
            yield each


if __name__ == "__main__":
    main(*sys.argv[1:])
