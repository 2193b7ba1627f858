"""The sides of the benchmark: ways to run one function on every rank of a world, each used in a process of its own."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

Launcher = Callable[[Callable[[], Any], int], list[Any]]


def simdist(body: Callable[[], Any], world_size: int) -> list[Any]:
    """One process, virtual time."""
    from simdist import run

    result = run(partial(_in_gloo_world, body), world_size=world_size)
    result.raise_for_failure()
    return list(result.values)


def mtpg(body: Callable[[], Any], world_size: int) -> list[Any]:
    """Torch's threaded process group, set up and taken down as MultiThreadedTestCase does it."""
    from torch.testing._internal.distributed.multi_threaded_pg import (
        ProcessLocalGroup,
        _install_threaded_pg,
        _uninstall_threaded_pg,
    )

    values: list[Any] = [None] * world_size
    failures: list[BaseException] = []
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]
    isolate(True)
    _install_threaded_pg()  # type: ignore[no-untyped-call]
    store = HashStore()

    def main(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
        try:
            values[rank] = body()
        except BaseException as error:
            failures.append(error)
            ProcessLocalGroup.exception_handle(error)  # type: ignore[no-untyped-call]
        finally:
            dist.destroy_process_group()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ProcessLocalGroup.reset()  # type: ignore[no-untyped-call]
    _uninstall_threaded_pg()  # type: ignore[no-untyped-call]
    isolate(False)
    if failures:
        raise failures[0]
    return values


def mtpg_pinned(body: Callable[[], Any], world_size: int) -> list[Any]:
    """The same with the whole process on one core, which is MTPG's best case."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return mtpg(body, world_size)


def gloo(body: Callable[[], Any], world_size: int) -> list[Any]:
    """Real Gloo, forked processes."""
    from tests.real_gloo import run_real

    outcomes = run_real(partial(_in_gloo_world, body), world_size)
    for rank, outcome in enumerate(outcomes):
        if outcome.status != "returned":
            raise RuntimeError(f"rank {rank} {outcome.status}: {outcome.exception_type} {outcome.message}")
    return [outcome.value for outcome in outcomes]


def gloo_spawned(body: Callable[[], Any], world_size: int) -> list[Any]:
    """Real Gloo, spawned processes, each of which imports torch. For start-up figures, so it returns no values."""
    from tests.real_gloo import reserve_port

    with reserve_port() as port:
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        torch.multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
            _spawned_main, args=(body, world_size, address), nprocs=world_size
        )
    return [None] * world_size


SIDES: dict[str, Launcher] = {
    "simdist": simdist,
    "mtpg": mtpg,
    "mtpg-pinned": mtpg_pinned,
    "gloo": gloo,
    "gloo-spawned": gloo_spawned,
}


def _in_gloo_world(body: Callable[[], Any]) -> Any:
    dist.init_process_group("gloo")
    try:
        return body()
    finally:
        dist.destroy_process_group()


def _spawned_main(rank: int, body: Callable[[], Any], world_size: int, address: str) -> None:
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
        body()
        dist.destroy_process_group()
