"""Worlds of every kind for `leaks.py`: each leaves behind as much as a program may."""

# Torch's own gaps: many of its functions have no types, and its packages export by other ways.
# mypy: disable-error-code="no-untyped-call, attr-defined"

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.utils.data
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import simdist
from simdist.faults import Crash, Hang, HostCrash, IoError, LinkDelay, Partition, Raise, Signal, SlowRank, StoreLost
from simdist.launch import launch, log_folder, parsed

__all__ = ["KINDS", "Kind"]

Kind = Callable[[int], set[str]]
"""A function that runs one world of its kind, given the number of the run, and returns how its ranks ended."""

KINDS: dict[str, Kind] = {}


def _meet(timeout_s: float = 5, backend: str = "gloo") -> int:
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    return dist.get_rank()


def _kind(
    arguments: Mapping[str, Any] | None = None, *, name: str = ""
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Define a kind whose ranks run the function; `arguments` are those of `simdist.run`."""

    def add(function: Callable[[], object]) -> Callable[[], object]:
        def run(index: int) -> set[str]:
            result = simdist.run(function, world_size=3, seed=index, **(arguments or {}))
            return {rank.status for rank in result.ranks}

        KINDS[name or function.__name__.strip("_")] = run
        return function

    return add


@_kind()
@_kind({"policy": "random"}, name="sets everything, shuffled")
@_kind({"isolate": True}, name="sets everything, modules apart")
def _sets_everything() -> None:
    rank = _meet()
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    os.environ["LEFT"] = "behind"
    os.chdir("/")
    os.umask(0o27)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_printoptions(precision=2)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    sys.setrecursionlimit(3000)
    sys.excepthook = lambda *_: None
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.alarm(1000)
    tempfile.tempdir = "/"
    dist.all_reduce(torch.ones(10_000))


@_kind()
def _leaves_operations_open() -> None:
    rank = _meet()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    work.get_future().then(lambda future: future.value())
    if rank:
        dist.irecv(torch.ones(1), 0)


@_kind()
def _ends_in_every_way() -> None:
    rank = _meet()
    sys.stdout.write("half a line")
    if rank == 2:
        sys.exit(3)
    if rank == 1:
        os._exit(4)
    raise ValueError("x")


@_kind()
@_kind({"backend": "sim"}, name="deadlocks, ideal")
def _deadlocks() -> None:
    rank = _meet()
    dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())


@_kind({"faults": [Crash(rank=1, at_step=1)]}, name="crash")
@_kind({"faults": [Crash(rank=0, op="all_reduce", nth=2)], "max_restarts": 1}, name="restart")
@_kind({"faults": [Hang(rank=0, at_step=1)]}, name="hang")
@_kind({"faults": [Signal(rank=1, at_step=1)]}, name="signal")
@_kind({"faults": [Raise(rank=1, op="all_reduce", nth=2)]}, name="raise")
@_kind({"faults": [SlowRank(rank=1, delay_ns=1000), LinkDelay(src=0, dst=1, delay_ns=1000)]}, name="slow")
@_kind({"faults": [Partition(groups=((0,), (1, 2)), start_ns=1_000_000)]}, name="partition")
@_kind({"faults": [StoreLost(at_ns=1_000_000)]}, name="lost store")
def _trains() -> None:
    rank = _meet()
    for step in range(3):
        simdist.step(step)
        time.sleep(0.001)
        dist.all_reduce(torch.full((100,), float(rank)))


@_kind()
@_kind({"isolate": True}, name="threads, modules apart")
def _threads() -> None:
    """Leave threads that have ended, that wait forever, and that are in the middle of something."""
    _meet()
    lock, never = threading.Lock(), threading.Event()
    threading.Thread(target=never.wait, daemon=True).start()
    threading.Thread(target=lambda: lock.acquire() and never.wait(), daemon=True).start()
    threading.Timer(1000, print).start()
    pool = ThreadPoolExecutor(2)
    assert [future.result() for future in [pool.submit(pow, 2, n) for n in range(5)]] == [1, 2, 4, 8, 16]
    asyncio.run(asyncio.sleep(0.1))
    threading.local().value = object()
    os._exit(0)


class _Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((10,), float(index))


@_kind()
def _data_loaders() -> None:
    _meet()
    loader: Any = torch.utils.data.DataLoader(_Numbers(), num_workers=1, persistent_workers=True)
    for batch in (*loader, *loader):
        dist.all_reduce(batch)
    left = iter(torch.utils.data.DataLoader(_Numbers(), num_workers=1, multiprocessing_context="spawn"))
    next(left)


@_kind()
def _children() -> None:
    """Leave children, pipes, a pool and a half-read queue when the ranks end."""
    rank = _meet()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    context.Process(target=time.sleep, args=(3,), daemon=rank == 0).start()
    queue.put(b"x" * 100_000)
    context.Process(target=queue.get).start()
    pool = context.Pool(2)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    context.Value("i", 3)
    if rank == 1:
        os._exit(1)


@_kind()
def _programs() -> None:
    _meet()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "file").write_text("text")
        subprocess.run(["true"], check=True)
        left = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        left.communicate(b"x")
    tempfile.NamedTemporaryFile()  # noqa: SIM115  # left open on purpose


@_kind({"isolate": True})
def _shared_modules() -> None:
    """Change modules and classes that all ranks share."""
    _meet()
    library: Any = json
    library.dialect = "mine"
    vars(builtins)["left"] = 1
    logging.basicConfig(level=logging.DEBUG, force=True)
    logging.getLogger("left.behind").addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("torch").setLevel(logging.ERROR)
    multiprocessing.Process.left = 1


@_kind()
def _tensors_of_a_mesh() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    _meet()
    mesh = init_device_mesh("cpu", (3,))
    mode = CommDebugMode()
    mode.__enter__()
    tensor: Any = distribute_tensor(torch.ones(7, 2), mesh, [Shard(0)])
    tensor.redistribute(mesh, [Replicate()])
    raise KeyboardInterrupt


@_kind()
def _shards() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    _meet()
    mesh = init_device_mesh("cpu", (3,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    model(torch.ones(2, 6)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    tensor: Any = distribute_tensor(torch.ones(6, 6), mesh, [Shard(0)])
    assert (tensor @ tensor).full_tensor().sum().item() == 6**3


@_kind()
@_kind({"faults": [Crash(rank=1, op="all_reduce", nth=2, when="during")]}, name="futures and works, crash")
def _futures_and_works() -> None:
    """Leave works that nobody waits for, and futures with errors in a cycle."""
    _meet()
    assert dist.group.WORLD is not None
    for call in ("all_reduce", "all_reduce_", "all_reduce"):
        getattr(torch.ops._c10d_functional, call)(torch.ones(2), "sum", dist.group.WORLD.group_name)
    work: Any = dist.all_reduce(torch.ones(2), async_op=True)
    future = work.get_future()
    failing = future.then(lambda done: json.loads(""))
    failing.add_done_callback(lambda done: done.value())
    with contextlib.suppress(RuntimeError):
        failing.wait()


@_kind()
def _operators() -> None:
    @torch.library.custom_op("leaks::double", mutates_args=())
    def double(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2 * dist.get_world_size()

    rank = _meet()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("sin", lambda tensor: tensor + rank, "CPU")
        assert torch.sin(double(torch.ones(1))).item() == 6 + rank
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        parameter = torch.ones(3, requires_grad=True)
        (parameter * 2).sum().backward()
    dist.barrier()


@_kind()
def _checkpoints() -> None:
    _meet()
    with tempfile.TemporaryDirectory() as folder:
        model = DDP(torch.nn.Linear(4, 4))
        dcp.save({"model": model.state_dict()}, storage_writer=dcp.FileSystemWriter(folder, thread_count=2))
        future: Any = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/later")
        future.result()
        dist.barrier()


@_kind()
def _profiles() -> None:
    _meet()
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(2))
    assert profile.events() is not None
    torch.autograd.set_detect_anomaly(True)


@_kind({"backend": "nccl", "env": {"TORCH_NCCL_PROPAGATE_ERROR": "1", "TORCHELASTIC_USE_AGENT_STORE": "0"}})
def _devices_without_a_store() -> None:
    """Watchdogs ask a store whose rank has left."""
    rank = _meet(backend="nccl")
    torch.cuda.set_device(rank)
    dist.all_reduce(torch.ones(4, device="cuda"))
    if rank == 0:
        os._exit(0)
    time.sleep(0.5)


@_kind({"backend": "nccl"})
@_kind({"backend": "nccl", "faults": [Crash(rank=1, op="all_reduce", nth=2)]}, name="devices, crash")
def _devices() -> None:
    rank = _meet(backend="nccl")
    torch.cuda.set_device(rank)
    model = DDP(torch.nn.Linear(4, 4).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream = torch.cuda.Stream()
    for _ in range(2):
        with torch.cuda.stream(stream):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        optimizer.step()
        dist.all_reduce(torch.ones(4, device="cuda"))


def _saves(folder: str) -> None:
    _meet()
    for step in range(3):
        simdist.step(step)
        if dist.get_rank() == 0:
            torch.save({"step": step}, f"{folder}/new.pt")
            with Path(folder, "new.pt").open("rb+") as file:
                os.fsync(file.fileno())
            Path(folder, "new.pt").replace(Path(folder, "last.pt"))
        dist.barrier()


def _on_disk(faults: Callable[[], list[Any]], **arguments: Any) -> Kind:
    def run(index: int) -> set[str]:
        with tempfile.TemporaryDirectory() as folder:
            result = simdist.run(
                _saves, world_size=2, args=(folder,), disk=folder, seed=index, faults=faults(), **arguments
            )
        return {rank.status for rank in result.ranks}

    return run


KINDS["disk"] = _on_disk(list)
KINDS["disk, power lost"] = _on_disk(lambda: [HostCrash(rank=0, at_step=1, down_ns=10**9)], max_restarts=1)
KINDS["disk, io error"] = _on_disk(lambda: [IoError(rank=0, op="write", nth=2)])

_SCRIPT = """
import logging, os, sys, threading, time
import torch.distributed as dist
logging.basicConfig(level=logging.INFO)
dist.init_process_group("gloo")
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
print("rank", os.environ["RANK"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    raise ValueError("the first time")
dist.barrier()
"""


def _launched(index: int) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(_SCRIPT)
        words = ["--nproc-per-node=2", "--nnodes=2", "--max-restarts=1", "--tee=3", f"--log-dir={folder}/logs"]
        plan, _ = parsed([*words, f"--seed={index}", f"{folder}/script.py"])
        with log_folder(plan) as logs:
            result = launch(plan, logs, out=io.StringIO(), err=io.StringIO())
    return {rank.status for rank in result.ranks}


KINDS["launch"] = _launched


def _spawned(index: int) -> set[str]:
    with contextlib.redirect_stdout(io.StringIO()):
        simdist.spawn(_spawn_body, nprocs=2)
    return {"returned"}


def _spawn_body(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    _meet()
    dist.barrier()


KINDS["spawn"] = _spawned
