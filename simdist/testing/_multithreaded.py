"""torch's `MultiThreadedTestCase` and `spawn_threads_and_init_comms` with simulated ranks in the place of threads.

Torch's versions run each test method in one thread per rank, over its threaded process group. Here the threads are the
ranks of a world, each with a simulated group; torch's own code judges the exceptions of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

from simdist.process import current_process
from simdist.result import RunResult
from simdist.settings import BACKENDS
from simdist.world import World, WorldSpec

__all__ = ["MultiThreadedTestCase", "SimulatedThreads", "spawn_threads_and_init_comms"]

_TorchCase: Any = common_distributed.MultiThreadedTestCase
_Failure = tuple[int, tuple[object, object, object]]


class SimulatedThreads:
    """Mixin in front of a class derived from torch's `MultiThreadedTestCase`.

    `sim_backend`, `sim_seed` and `sim_stall_s` set up the world of every test; over "nccl" each rank has a virtual
    device, its current one. `simulation` is the result of the last world.
    """

    sim_backend: ClassVar[str] = "gloo"
    sim_seed: ClassVar[int] = 0
    sim_stall_s: ClassVar[float] = 30.0
    simulation: RunResult | None = None

    # Attributes of torch's class; declared here because the mixin stands before it.
    threads: list[threading.Thread]
    rank: int
    world_size: Any
    _current_test_name: str

    def _spawn_threads(self) -> None:
        self.threads = []  # the world runs when it is joined

    def _join_threads(self, threads: list[threading.Thread], fn: Callable[..., object]) -> None:
        failures: list[_Failure] = []
        name = self._current_test_name

        def run_rank(rank: int) -> None:
            case: Any = type(self)(name)  # type: ignore[call-arg]  # torch's constructor
            case.rank = rank
            if hasattr(case, "_tls"):  # unittest's precision settings are kept per thread
                case._tls = threading.local()
                case._tls.precision = _TorchCase._precision
                case._tls.rel_tol = _TorchCase._rel_tol
            with _group(self.sim_backend):
                case.perThreadSetUp()
                try:
                    getattr(case, name)()
                except Exception:
                    failures.append((rank, sys.exc_info()))
                finally:
                    case.perThreadTearDown()

        self.simulation = _run(run_rank, int(self.world_size), self.sim_seed, self.sim_stall_s, self.sim_backend)
        failures += _hung(self.simulation)
        type(self)._check_return_codes(failures, 0, fn)  # type: ignore[attr-defined]  # torch's


class MultiThreadedTestCase(SimulatedThreads, _TorchCase):  # type: ignore[misc]  # torch's class is untyped
    """Drop-in for `torch.testing._internal.common_distributed.MultiThreadedTestCase`."""


def spawn_threads_and_init_comms(
    func: Callable[..., object] | None = None,
    timeout: float = 0,
    world_size: int = common_distributed.DEFAULT_WORLD_SIZE,
    backend: str = "gloo",
) -> Callable[..., object]:
    """Drop-in for torch's decorator: run a test method on every rank of a simulated world with its group initialised.

    `timeout` is accepted and has no meaning in virtual time.
    """
    if func is None:
        return functools.partial(spawn_threads_and_init_comms, timeout=timeout, world_size=world_size, backend=backend)

    @functools.wraps(func)
    def wrapper(self: object, *args: object, **kwargs: object) -> None:
        failures: list[_Failure] = []

        def run_rank(rank: int) -> None:
            with _group(backend):
                try:
                    func(self, *args, **kwargs)
                except Exception:
                    failures.append((rank, sys.exc_info()))

        result = _run(run_rank, world_size, 0, 30.0, backend)
        _TorchCase._check_return_codes(failures + _hung(result), 0, func)

    return wrapper


@contextlib.contextmanager
def _group(backend: str) -> Iterator[None]:
    process = current_process()
    assert process is not None
    process.torch_state.stands_for_threads = True
    dist.init_process_group(backend)
    if backend == "nccl":
        torch.cuda.set_device(dist.get_rank())
    yield
    with contextlib.suppress(AssertionError, ValueError):  # the test destroyed it itself
        dist.destroy_process_group()


def _run(call: Callable[[int], None], world_size: int, seed: int, stall_s: float, backend: str) -> RunResult:
    made = backend if backend in BACKENDS else "gloo"  # for the world; torch knows other names
    result = World(WorldSpec(call=call, world_size=world_size, seed=seed, stall_s=stall_s, backend=made)).run()
    for rank in result.ranks:
        if rank.exception is not None and not isinstance(rank.exception, unittest.SkipTest):
            raise rank.exception  # from outside the test method: its set-up, or the group's
    return result


def _hung(result: RunResult) -> list[_Failure]:
    return [
        (rank.rank, (TimeoutError, TimeoutError(f"hangs in {rank.waiting}"), None))
        for rank in result.ranks
        if rank.status == "hung"
    ]
