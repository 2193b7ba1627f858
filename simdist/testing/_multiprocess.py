"""torch's `MultiProcessTestCase` with simulated ranks in the place of processes.

Torch's class starts one process per rank, each of which makes the test object anew and runs the test method; the main
process joins them and judges their exit codes. Here `_join_processes` runs a world whose ranks do the same. Everything
else (`world_size`, `file_name`, skips, `special_return_code_checks`) is torch's own code.

A suite may start its processes by a factory of its own, which gives each process more arguments: the factory is called,
and a rank runs what the made process would run. If there are pipes among the arguments, or the suite joins its
processes itself, its main process works while the ranks run. Then it is a process of the world too, the *launcher*,
whose waits for pipes, for processes and for time are virtual.

Suites are written for several versions of torch, in which `_run` and `_check_return_codes` take different arguments;
each is called with those that it has.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
import sys
import traceback
import types
import unittest
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_utils

from simdist.errors import UnsupportedError
from simdist.faults import Fault
from simdist.kernel import Task
from simdist.process import SimProcess, adopt_connections, current_process, hand_connections
from simdist.result import RankResult, RunResult
from simdist.testing._multithreaded import SimulatedThreads
from simdist.world import World, WorldSpec

__all__ = ["MultiProcessTestCase", "SimulatedProcesses", "simulated"]

_TorchCase: Any = common_distributed.MultiProcessTestCase
_set_rng_seed: Callable[[], None] = common_utils.set_rng_seed
_exit = sys.exit  # a suite may put something else there while its main process runs
_FIRST_PID = 1000
_SHUTDOWN_NS = 5_000_000  # from the end of a test until its process is gone: it joins a thread and ends the interpreter
_KILLED = -15
_Call = tuple[Callable[..., object], tuple[object, ...], dict[str, object]]


class _Pipe:
    """A pipe in one direction: the main process reads the rank's messages when the rank has ended."""

    def __init__(self) -> None:
        self._messages: deque[object] = deque()
        self.closed = False

    def send(self, message: object) -> None:
        self._messages.append(message)

    def recv(self) -> object:
        if not self._messages:
            raise EOFError("the rank sent nothing")
        return self._messages.popleft()

    def poll(self, timeout: float = 0.0) -> bool:
        return bool(self._messages)

    def close(self) -> None:
        self.closed = True


class _Joining:
    """The launcher parks on this while it waits for processes."""

    interruptible = True
    timed = False

    def __init__(self, awaited: Iterable[SimProcess]) -> None:
        self._awaited = tuple(awaited)

    def describe(self) -> str:
        names = ", ".join(f"rank {each.rank}" for each in self._awaited)
        return f"join of {names}"

    def waits_for(self) -> list[Task]:
        return [each.main for each in self._awaited if each.main is not None]


class _Process:
    """Looks like a `multiprocessing.Process` to code that judges exit codes or waits for processes.

    Its rank calls `target` with `args` and `kwargs`.
    """

    def __init__(self, rank: int, pipe: _Pipe, made: _Call) -> None:
        self.rank = rank
        self.pid = _FIRST_PID + rank
        self.name = f"process {rank}"
        self.pipe = pipe
        self.target, self.args, self.kwargs = made
        self.simulated: SimProcess | None = None  # once there is a world
        self.result: RankResult | None = None
        self._code: int | None = None

    @property
    def exitcode(self) -> int | None:
        """The exit code of its rank; None while it runs."""
        there = self.simulated
        if there is None:
            return self._code
        launcher = current_process()
        if there.running and launcher is not None:
            launcher.simulation.ask()
        return None if there.running else there.exit_code

    def end(self, result: RankResult) -> None:
        """Called when the world is over: keep the rank's result."""
        self.simulated, self.result, self._code = None, result, result.exit_code

    def join(self, timeout: float | None = None) -> None:
        """Wait until its rank has ended; does nothing before it began, or after the world's end."""
        if self.simulated is not None:
            _join([self.simulated], timeout)

    def start(self) -> None:
        """Does nothing: the ranks begin together."""

    def terminate(self) -> None:
        """End its rank, as SIGTERM does; no simulated process outlives its world."""
        if self.simulated is not None:
            self.simulated.signal(-_KILLED)

    def kill(self) -> None:
        """End its rank, as SIGKILL does."""
        if self.simulated is not None:
            self.simulated.kill(9)

    def is_alive(self) -> bool:
        """True while its rank runs."""
        return self.simulated is not None and self.exitcode is None


def _join(processes: Iterable[SimProcess], timeout: float | None = None) -> None:
    """Let the launcher wait until all of these have ended, or one with an error."""
    launcher = current_process()
    assert launcher is not None
    simulation = launcher.simulation
    awaited = [each for each in processes if each.running]
    deadline_ns = None if timeout is None else simulation.now_ns + round(timeout * 1e9)

    def reported(_: SimProcess) -> None:
        launcher.wake()

    for each in awaited:
        each.end_listeners[reported] = None
    wait = _Joining(awaited)
    while any(each.running for each in awaited):
        if not simulation.park(wait, deadline_ns):
            break
        launcher.drain()
        if any(each.exit_code == _TorchCase.TEST_ERROR_EXIT_CODE for each in awaited):
            break
    for each in awaited:
        each.end_listeners.pop(reported, None)


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

    # Attributes of torch's class; declared here because the mixin stands before it.
    MAIN_PROCESS_RANK: int
    processes: list[_Process]
    pid_to_pipe: dict[int, _Pipe]
    rank: int
    file_name: str
    world_size: Any
    destroy_pg_upon_exit: bool
    _current_test_name: Callable[[], str]
    _tested: Callable[..., object] | None = None  # the function of the test that is joined

    # -- the main process --------------------------------------------------------------------------------------------

    def join_or_run(self, fn: Callable[..., object]) -> Callable[[], None]:
        """Replace torch's; a main process that works while its ranks run becomes the launcher of their world."""

        @functools.wraps(fn)
        def wrapper(self: SimulatedProcesses) -> None:
            if self.rank != self.MAIN_PROCESS_RANK:
                fn()
            elif self.processes and self._talks():
                self._run_world(lambda: self._join_processes(fn))
            else:
                self._join_processes(fn)

        return types.MethodType(wrapper, self)

    def _start_processes(self, proc: Callable[..., object] | None) -> None:
        self.processes = []
        name, kwargs = self._current_test_name(), {"fake_pg": getattr(self, "fake_pg", False)}
        for rank in range(int(self.world_size)):
            pipe = _Pipe()
            target: Any = type(self)._run  # type: ignore[attr-defined]  # torch's, or the suite's own
            takes_more = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(target).parameters.values())
            named = kwargs if takes_more else {}
            args = rank, name, self.file_name, pipe
            made: _Call = target, args, named
            if proc is not None:
                made = _made_by(proc(name=f"process {rank}", target=target, args=args, kwargs=named))
            self.processes.append(_Process(rank, pipe, made))
        self.pid_to_pipe = {process.pid: process.pipe for process in self.processes}

    def _spawn_processes(self) -> None:
        self._start_processes(None)

    def _fork_processes(self) -> None:
        self._start_processes(None)

    def _talks(self) -> bool:
        """True if the main process works while its ranks run."""
        joins = next(each for each in type(self).__mro__ if "_join_processes" in vars(each))
        given = ((process.args, process.kwargs) for process in self.processes)
        return joins not in (SimulatedProcesses, _TorchCase) or next(_connections(list(given)), None) is not None

    def _join_processes(self, fn: Callable[..., object]) -> None:
        self._tested = fn
        there = [process.simulated for process in self.processes if process.simulated is not None]
        began_ns = 0
        try:
            if there:
                began_ns = there[0].simulation.now_ns
                _join(there)
                for process in self.processes:
                    process.terminate()
                seconds = (there[0].simulation.now_ns - began_ns) / 1e9
            else:
                if self.processes:
                    self._run_world()
                seconds = 0.0 if self.simulation is None else self.simulation.virtual_time_ns / 1e9
            self._judge(fn, seconds)
        finally:
            for pipe in self.pid_to_pipe.values():
                pipe.close()

    def _judge(self, fn: Callable[..., object] | None, seconds: float) -> None:
        """Call `_check_return_codes`, whose first argument is missing in older versions of torch."""
        self._check_return_codes(*_fitting(self._check_return_codes, fn, seconds))

    def _check_return_codes(self, *args: Any) -> None:
        judge: Any = super()._check_return_codes  # type: ignore[misc]  # torch's
        judge(*_fitting(judge, self._tested, args[-1]))

    def _run_world(self, launcher: Callable[[], None] | None = None) -> None:
        """Run the ranks; with a `launcher` also this, whose exception is raised here.

        Raises:
            Exception: the launcher's.
        """
        raised: list[BaseException] = []
        reported: list[bool] = []

        def launch() -> None:
            self._hand_over(world.processes)
            begin.extend(self.processes)
            for there in world.processes:
                there.wake()
            try:
                assert launcher is not None
                launcher()
                reported.append(True)
            except Exception as error:
                raised.append(error)
            for process in self.processes:
                process.terminate()

        def rank_main(rank: int) -> None:
            process = current_process()
            while launcher is not None and not begin:
                assert process is not None
                process.simulation.park(_Beginning())
            mine = self.processes[rank]
            mine.target(*mine.args, **mine.kwargs)

        begin: list[_Process] = []
        spec = WorldSpec(
            call=rank_main,
            world_size=len(self.processes),
            backend=self.sim_backend,
            seed=self.sim_seed,
            faults=self.sim_faults,
            policy=self.sim_policy,
            stall_s=self.sim_stall_s,
            torchrun=False,
            launcher=None if launcher is None else launch,
        )
        world = World(spec)
        result = self.simulation = world.run()
        for process, rank in zip(self.processes, result.ranks, strict=True):
            process.end(rank)
            if rank.exception is not None:
                # An exception that a class's own `run_test` let out: a process would have ended with exit code 1.
                process.pipe.send("".join(traceback.format_exception(rank.exception)))
        if raised:
            raise raised[0]
        if launcher is not None and not reported:
            self._judge(self._tested, result.virtual_time_ns / 1e9)  # it waits for what never arrives
            raise AssertionError(f"the main process of the test waits for what never comes\n{result.deadlock or ''}")

    def _hand_over(self, ranks: Iterable[SimProcess]) -> None:
        """On the launcher: give each rank its arguments, and close the rank's ends of pipes."""
        this = current_process()
        assert this is not None
        given = [(process.args, process.kwargs) for process in self.processes]
        adopt_connections(this, dict.fromkeys(_connections([given, vars(self)])))
        for process, there in zip(self.processes, ranks, strict=True):
            process.simulated = there
            process.args, process.kwargs = hand_connections((process.args, process.kwargs), there)

    # -- a rank ------------------------------------------------------------------------------------------------------

    def run_test(self, test_name: str, parent_pipe: _Pipe) -> None:
        """Run the test method on this rank, with torch's rules for exit codes."""
        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
        _seed_generators()
        try:
            getattr(self, test_name)()
        except unittest.SkipTest:
            _exit(common_distributed.TEST_SKIPS["generic"].exit_code)
        except Exception:
            parent_pipe.send(traceback.format_exc())
            _exit(_TorchCase.TEST_ERROR_EXIT_CODE)
        process = current_process()
        if process is not None:
            process.simulation.sleep(_SHUTDOWN_NS)
        if self.destroy_pg_upon_exit:
            with contextlib.suppress(AssertionError, ValueError):  # the test destroyed it itself
                dist.destroy_process_group()


class _Beginning:
    """A rank parks on this until the launcher has handed it its arguments."""

    def describe(self) -> str:
        return "the start of its process"

    def waits_for(self) -> tuple[Task, ...]:
        return ()


def _made_by(process: Any) -> _Call:
    """Return the call of a process that a suite's factory has made but not started.

    Raises:
        UnsupportedError: it is no process of `multiprocessing`, or runs its function in its own way.
    """
    try:
        return process._target, process._args, process._kwargs
    except AttributeError:
        raise UnsupportedError(
            f"the process factory of this suite made {process!r}, which does not say what it would run; simulated are "
            "processes of multiprocessing (torch.multiprocessing.get_context(...).Process), made with target, args "
            "and kwargs"
        ) from None


def _connections(value: object, depth: int = 5) -> Iterator[Connection]:
    """Yield the ends of pipes in a value: in lists, tuples and dicts, also nested."""
    if isinstance(value, Connection):
        if not value.closed:
            yield value
    elif depth and isinstance(value, (list, tuple)):
        for each in value:
            yield from _connections(each, depth - 1)
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _connections(each, depth - 1)


def _fitting(check: Callable[..., object], fn: Callable[..., object] | None, seconds: float) -> tuple[object, ...]:
    """Return the arguments of a `_check_return_codes`: the test's function and its duration, or the duration alone."""
    parameters = [each.kind for each in inspect.signature(_declared(check)).parameters.values()]
    both = inspect.Parameter.VAR_POSITIONAL in parameters or len(parameters) > 1
    return (fn, seconds) if both else (seconds,)


def _declared(check: Callable[..., object]) -> Callable[..., object]:
    """Return the method as the suite declares it, without a decorator that passes on any arguments."""
    function = getattr(check, "__func__", check)
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        for cell in getattr(function, "__closure__", None) or ():
            inner = cell.cell_contents
            if inspect.isfunction(inner) and inner.__name__ == "_check_return_codes":
                return types.MethodType(inner, check)
    return check


def _seed_generators() -> None:
    """Seed the generators as torch's `set_rng_seed` does."""
    if torch.accelerator.is_available():
        _set_rng_seed()
        return
    # `torch.manual_seed` would also store the seed, with three stack traces, for accelerators that do not exist; with
    # hundreds of ranks in one process that is most of a small test's time.
    torch.default_generator.manual_seed(common_utils.SEED)
    random.seed(common_utils.SEED)
    np.random.seed(common_utils.SEED)  # noqa: TID251  # the rank's own generator, as torch's helper


def simulated(case: type, **attributes: object) -> type:
    """A subclass of `case`, derived from torch's `MultiProcessTestCase` or `MultiThreadedTestCase`, on simulated ranks.

    `attributes` become class attributes, such as `sim_seed=3`.
    """
    threaded = issubclass(case, common_distributed.MultiThreadedTestCase)
    # Behind the suite's own classes, and before torch's: overrides in the suite stay in force.
    bases = (SimulatedThreads, case) if threaded else (case, MultiProcessTestCase)
    return type(f"Simulated{case.__name__}", bases, {"__module__": case.__module__, **attributes})


class MultiProcessTestCase(SimulatedProcesses, _TorchCase):  # type: ignore[misc]  # torch's class is untyped
    """Drop-in for `torch.testing._internal.common_distributed.MultiProcessTestCase`."""
