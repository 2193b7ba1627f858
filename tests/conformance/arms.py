"""One body, two arms: a test class whose ranks are forked processes on real Gloo, and simulated ranks.

A class of bodies derives from `Bodies`, which is torch's `MultiProcessTestCase`: each `test_*` method runs on every
rank, with `self.rank`, `self.world_size` and `self.file_name`. The decorator `on_both_arms` turns it into a class that
pytest shows as `TestName.test_x[simulated]` and `TestName.test_x[real]`.
"""

from __future__ import annotations

import faulthandler
import signal
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.testing._internal import common_distributed

from simdist.testing import SimulatedProcesses

__all__ = ["Bodies", "message_of", "on_both_arms", "options"]

dist: Any = torch.distributed  # its stubs leave out much of what is called here
_TorchCase: Any = common_distributed.MultiProcessTestCase
ARMS = ["simulated", pytest.param("real", marks=pytest.mark.real)]
_DEADLINE_S = 30.0


class Bodies(_TorchCase):  # type: ignore[misc]  # torch's class is untyped
    """The base of all bodies. `ranks` is the size of the world, `deadline_s` the time limit of real ranks."""

    ranks = 4
    deadline_s = _DEADLINE_S

    @property
    def world_size(self) -> int:
        return self.ranks

    def setUp(self) -> None:
        super().setUp()
        Path(self.file_name).unlink()  # a FileStore makes its file itself
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        Path(self.file_name).unlink(missing_ok=True)

    def store(self) -> Any:
        """Return a FileStore at which all ranks meet."""
        return dist.FileStore(self.file_name, self.world_size)

    def init(self, **kwargs: Any) -> None:
        """Make the default group; no rank goes on, or leaves, before all are connected."""
        dist.init_process_group("gloo", store=self.store(), rank=self.rank, world_size=self.world_size, **kwargs)
        dist.barrier()

    def gloo(self, threads: int = 2) -> Any:
        """Make a group without `init_process_group`."""
        device = dist.ProcessGroupGloo.create_device(interface="lo")
        opts = dist.ProcessGroupGloo._Options()
        opts._timeout = 50.0
        opts._devices = [device]
        opts._threads = threads
        group = dist.ProcessGroupGloo(self.store(), self.rank, self.world_size, opts)
        dist.barrier(group=group)
        return group

    @contextmanager
    def refused(self, text: str) -> Iterator[None]:
        """Expect a `RuntimeError` with exactly this text."""
        with self.assertRaises(RuntimeError) as caught:
            yield
        self.assertEqual(message_of(caught.exception), text)


class _SimulatedRanks(SimulatedProcesses):
    sim_stall_s = 100.0  # real time: on a busy machine the import of half of torch on a rank may take long


class _RealRanks:
    """Forks instead of spawning, and kills processes that do not end."""

    processes: list[Any]
    pid_to_pipe: dict[int, Any]
    deadline_s: float
    _start_processes: Callable[[Any], None]
    _check_return_codes: Callable[[Any, float], None]

    def _spawn_processes(self) -> None:
        # A test has the runner's handlers and filters, and the rank's process inherits copies of them.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on fork in a process that has threads
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        signal.set_wakeup_fd(-1)
        faulthandler.disable()  # pytest's: the test checks how a rank dies, so the log needs no dump
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)  # an OpenMP pool does not survive a fork
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)  # type: ignore[misc]

    def _join_processes(self, fn: Any) -> None:
        started = time.monotonic()
        waiting = list(self.processes)
        try:
            while waiting and (left := started + self.deadline_s - time.monotonic()) > 0:
                ended = connection.wait([process.sentinel for process in waiting], left)
                failed = False
                for process in [process for process in waiting if process.sentinel in ended]:
                    process.join()
                    waiting.remove(process)
                    failed |= process.exitcode == _TorchCase.TEST_ERROR_EXIT_CODE
                if failed:
                    break
            # The remaining ranks wait for a rank that failed, or forever.
            self.end_all()
            late = waiting and not any(p.exitcode == _TorchCase.TEST_ERROR_EXIT_CODE for p in self.processes)
            assert not late, f"{[process.name for process in waiting]} still lived after {self.deadline_s} s"
            self._check_return_codes(fn, time.monotonic() - started)
        finally:
            self.end_all()
            for pipe in self.pid_to_pipe.values():
                pipe.close()

    def end_all(self) -> None:
        """Kill all processes that still live."""
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
                process.join()


def on_both_arms(bodies: type) -> type:
    """Return a class for pytest with every test of `bodies` on both arms."""
    cases: dict[str, Any] = {
        arm: type(bodies.__name__, (mixin, bodies), {"__module__": bodies.__module__})
        for arm, mixin in (("simulated", _SimulatedRanks), ("real", _RealRanks))
    }

    def make(name: str) -> Callable[..., None]:
        def test(self: Any, arm: str) -> None:
            _run(cases[arm](name))

        test.__name__ = name
        parametrized: Callable[..., None] = pytest.mark.parametrize("arm", ARMS)(test)
        return parametrized

    names = [name for name in dir(bodies) if name.startswith("test_")]
    tests: dict[str, Any] = {name: make(name) for name in names}
    return type(bodies.__name__, (), {"__module__": bodies.__module__, "__doc__": bodies.__doc__, **tests})


def _run(case: unittest.TestCase) -> None:
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own warnings, in both arms
        case.run(result)
    for _, trace in result.errors + result.failures:
        pytest.fail(trace, pytrace=False)
    for _, reason in result.skipped:
        pytest.skip(reason)


def options(kind: Any, **values: Any) -> Any:
    """Return an options object of torch with these attributes."""
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def message_of(error: BaseException) -> str:
    """Return the text of an error, without a C++ stack and the place in a build."""
    text = str(error).split("\nException raised from ")[0]
    return text.split("] ", 1)[1] if text.startswith("[") else text
