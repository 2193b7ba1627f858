"""torch's `MultiProcessTestCase` with simulated ranks in the place of processes.

Torch's class starts one process per rank, each of which makes the test object anew and runs the test method; the main
process joins them and judges their exit codes. Here `_join_processes` runs a world whose ranks do the same. Everything
else (`world_size`, `file_name`, skips, `special_return_code_checks`) is torch's own code.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import traceback
import unittest
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

from simdist._world import World, WorldSpec
from simdist.faults import Fault
from simdist.process import current_process
from simdist.result import RankResult, RunResult
from simdist.testing._multithreaded import SimulatedThreads

__all__ = ["MultiProcessTestCase", "SimulatedProcesses", "simulated"]

_TorchCase: Any = common_distributed.MultiProcessTestCase
_set_rng_seed: Any = common_utils.set_rng_seed
_FIRST_PID = 1000
_SHUTDOWN_NS = 5_000_000  # from the end of a test until its process is gone: it joins a thread and ends the interpreter


class _Pipe:
    """One direction is enough: what a rank sends, the host reads after the world has ended."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self.closed = False

    def send(self, message: Any) -> None:
        self._messages.append(message)

    def recv(self) -> Any:
        if not self._messages:
            raise EOFError("the rank sent nothing")
        return self._messages.popleft()

    def poll(self, timeout: float = 0.0) -> bool:
        return bool(self._messages)

    def close(self) -> None:
        self.closed = True


class _Process:
    """Looks like a `multiprocessing.Process` to the code that judges exit codes."""

    def __init__(self, rank: int, pipe: _Pipe) -> None:
        self.rank = rank
        self.pid = _FIRST_PID + rank
        self.name = f"process {rank}"
        self.pipe = pipe
        self.exitcode: int | None = None
        self.result: RankResult | None = None

    def terminate(self) -> None:
        """Nothing to do: no simulated process outlives its world."""

    def is_alive(self) -> bool:
        """False: see `terminate`."""
        return False


class SimulatedProcesses:
    """Mixin in front of a class derived from torch's `MultiProcessTestCase`.

    Class attributes set up the world of every test: `sim_seed`, `sim_faults`, `sim_policy`, `sim_stall_s`, and
    `sim_backend`: over "nccl" each rank has a virtual device.
    `simulation` is the `RunResult` of the last test that ran.
    """

    sim_seed: ClassVar[int] = 0
    sim_faults: ClassVar[tuple[Fault, ...]] = ()
    sim_policy: ClassVar[str] = "fifo"
    sim_stall_s: ClassVar[float] = 30.0
    sim_backend: ClassVar[str] = "gloo"
    simulation: RunResult | None = None

    # What torch's class gives; declared here because the mixin stands before it.
    processes: list[Any]
    pid_to_pipe: dict[int, Any]
    rank: int
    file_name: str
    world_size: Any
    destroy_pg_upon_exit: bool
    _current_test_name: Callable[[], str]
    _check_return_codes: Callable[[Any, float], None]

    def _start_processes(self, proc: Any) -> None:
        self.processes = [_Process(rank, _Pipe()) for rank in range(int(self.world_size))]
        self.pid_to_pipe = {process.pid: process.pipe for process in self.processes}

    def _spawn_processes(self) -> None:
        self._start_processes(None)

    def _fork_processes(self) -> None:
        self._start_processes(None)

    def _join_processes(self, fn: Any) -> None:
        try:
            if self.processes:
                self._run_world()
            seconds = 0.0 if self.simulation is None else self.simulation.virtual_time_ns / 1e9
            self._check_return_codes(fn, seconds)
        finally:
            for pipe in self.pid_to_pipe.values():
                pipe.close()

    def _run_world(self) -> None:
        run: Any = type(self)._run  # type: ignore[attr-defined]  # torch's, or the suite's own
        name, file_name = self._current_test_name(), self.file_name
        pipes = [process.pipe for process in self.processes]
        spec = WorldSpec(
            call=lambda rank: run(rank, name, file_name, pipes[rank], fake_pg=getattr(self, "fake_pg", False)),
            world_size=len(self.processes),
            backend=self.sim_backend,
            seed=self.sim_seed,
            faults=self.sim_faults,
            policy=self.sim_policy,
            stall_s=self.sim_stall_s,
            torchrun=False,
        )
        result = self.simulation = World(spec).run()
        for process, rank in zip(self.processes, result.ranks, strict=True):
            process.exitcode = rank.exit_code
            process.result = rank
            if rank.exception is not None:
                # What escaped `run_test`, in a class of its own making: a process would have shown exit code 1.
                process.pipe.send("".join(traceback.format_exception(rank.exception)))

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Run the test method on this rank, with torch's rules for exit codes."""
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
        _seed_generators()
        try:
            getattr(self, test_name)()
        except unittest.SkipTest:
            sys.exit(common_distributed.TEST_SKIPS["generic"].exit_code)
        except Exception:
            parent_pipe.send(traceback.format_exc())
            sys.exit(_TorchCase.TEST_ERROR_EXIT_CODE)
        process = current_process()
        if process is not None:
            process.simulation.sleep(_SHUTDOWN_NS)
        if self.destroy_pg_upon_exit:
            with contextlib.suppress(AssertionError, ValueError):  # the test destroyed it itself
                dist.destroy_process_group()


def _seed_generators() -> None:
    """As torch's `set_rng_seed`."""
    if torch.accelerator.is_available():
        _set_rng_seed()
        return
    # `torch.manual_seed` would also leave the seed, with three stack traces, for accelerators that are not there; with
    # hundreds of ranks in one process that is most of what a small test costs.
    torch.default_generator.manual_seed(common_utils.SEED)
    random.seed(common_utils.SEED)
    np.random.seed(common_utils.SEED)  # noqa: TID251  # the rank's own generator, as torch's helper


def simulated(case: type, **attributes: Any) -> type:
    """A subclass of `case`, derived from torch's `MultiProcessTestCase` or `MultiThreadedTestCase`, on simulated ranks.

    `attributes` become class attributes, such as `sim_seed=3`.
    """
    threaded = issubclass(case, common_distributed.MultiThreadedTestCase)
    mixin = SimulatedThreads if threaded else SimulatedProcesses
    return type(f"Simulated{case.__name__}", (mixin, case), {"__module__": case.__module__, **attributes})


class MultiProcessTestCase(SimulatedProcesses, _TorchCase):  # type: ignore[misc]  # torch's class is untyped
    """Drop-in for `torch.testing._internal.common_distributed.MultiProcessTestCase`."""
