"""The suite that the torch wheel ships: `torch.testing._internal.distributed.distributed_test`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from simdist.inside.torch import NCCL
from simdist.testing._multiprocess import SimulatedProcesses

__all__ = ["distributed_test_case"]

_dist: Any = dist


class _StoreBarrier:
    """Replaces the suite's own barrier, which counts in a class attribute; simulated processes do not share that."""

    file_name: str
    world_size: Any

    def _barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
        count = int(os.environ.get("SIMDIST_TEST_BARRIERS", "0")) + 1
        os.environ["SIMDIST_TEST_BARRIERS"] = str(count)
        size = int(self.world_size) if wait_for is None else wait_for
        store = _dist.FileStore(f"{self.file_name}.barrier", size)
        if store.add(f"arrived {count}", 1) == size:
            store.set(f"open {count}", "1")
        store.wait([f"open {count}"], timedelta(seconds=timeout))


def distributed_test_case(*, backend: str, world_size: int, real: bool) -> type:
    """Return the suite as a test class, on simulated ranks or on forked processes.

    The suite reads the backend and world size from the environment (BACKEND, WORLD_SIZE) when it is imported and run;
    this sets both for the rest of the process.
    """
    os.environ["BACKEND"] = backend
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ.setdefault("TEMP_DIR", os.environ.get("TMPDIR", "/tmp"))
    with _nccl_at_hand(backend == "nccl" and not real):
        from torch.testing._internal.distributed import distributed_test as suite

    tests: Any = suite.DistributedTest._DistTestBase
    base: Any = suite.TestDistBackend

    def start(self: Any) -> None:
        base.setUp(self)
        if real:
            self._start_processes(torch.multiprocessing.get_context("fork").Process)
        else:
            self._spawn_processes()

    name = f"DistributedTest_{backend}_{world_size}"
    bases = (base, tests) if real else (_StoreBarrier, SimulatedProcesses, base, tests)
    attributes = {"__module__": suite.__name__, "setUp": start, "__qualname__": name}
    if not real:
        attributes["sim_backend"] = backend
    case: type = type(name, bases, attributes)
    return case


@contextmanager
def _nccl_at_hand(on: bool) -> Iterator[None]:
    """Let the suite find GPUs and NCCL while it is imported: worlds over nccl will have them."""
    if not on:
        yield
        return
    from torch.testing._internal import common_distributed

    names: Any = common_distributed
    names.TEST_CUDA = True  # tests check it when they run, too
    with (
        mock.patch.object(dist, "is_nccl_available", return_value=True),
        mock.patch.object(names.c10d, "is_nccl_available", return_value=True),
        mock.patch.object(torch.cuda.nccl, "version", return_value=NCCL.number),
    ):
        yield
