"""PyTorch's own tests of errors and completion hooks over NCCL (test_c10d_nccl.py), after those of DDP, by name.

As in `test_torch_suite.py`: every test from the hooks to variables that are no truth values.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C import _distributed_c10d as c10d_names
from torch.nn.parallel import DistributedDataParallel

from tests.builds import VERSION
from tests.c10d.nccl.suite import Case, cases, dist, hold, ones, play, raises, same

_c: Any = c10d_names


# -- completion hooks ------------------------------------------------------------------------------------------------


def counted(group: Any) -> tuple[Counter[str], list[Any]]:
    """Count the calls of a group's hook by operation, and keep their arguments."""
    calls: Counter[str] = Counter()
    seen: list[Any] = []

    def hook(info: Any) -> None:
        calls[info.op_type.name] += 1
        seen.append(info)

    group._register_on_completion_hook(hook)
    return calls, seen


def took_time(seen: list[Any]) -> bool:
    return bool(seen) and all(info.active_duration.total_seconds() > 0 for info in seen)


def case_on_completion_hook_broadcast(self: Case) -> None:
    group = self.init()
    calls, seen = counted(group)
    tensor = ones(self, 2, 3, times=self.rank)
    group.broadcast([tensor]).wait()
    group.broadcast([tensor]).wait()
    dist.destroy_process_group(group)
    assert calls == {"BROADCAST": 2}
    assert took_time(seen)
    assert same(tensor, 0)


def case_on_completion_hook_mixed_ops(self: Case) -> None:
    group = self.init()
    calls, seen = counted(group)
    tensor = ones(self, 2, 3)
    gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
    group.allreduce(tensor)
    group.allgather(gathered, tensor)
    group.allreduce(tensor)
    dist.destroy_process_group(group)
    assert calls == {"ALLREDUCE": 2, "ALLGATHER": 1}
    assert took_time(seen)
    assert same(tensor, self.world_size**2)
    assert all(same(each, self.world_size) for each in gathered)


def case_on_completion_hook_with_ddp(self: Case) -> None:
    group = self.init()
    calls, seen = counted(group)
    layers = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(10)]).to(self.device)
    model = DistributedDataParallel(layers, device_ids=[self.rank], process_group=group, bucket_cap_mb=0.01)
    group._wait_for_pending_works()
    assert calls["BROADCAST"] > 0
    before = calls["ALLREDUCE"]
    model(torch.zeros(2, 100, device=self.device)).sum().backward()
    dist.destroy_process_group(group)
    assert calls["ALLREDUCE"] > before
    assert took_time(seen)


def case_on_completion_hook_all_gather_object(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    group = self.init()
    calls, seen = counted(group)
    objects: list[Any] = [None] * self.world_size
    dist.all_gather_object(objects, {"rank": self.rank, "of": self.world_size}, group=group)
    assert objects == [{"rank": rank, "of": self.world_size} for rank in range(self.world_size)]
    dist.destroy_process_group(group)
    assert calls == {"_ALLGATHER_BASE" if VERSION >= (2, 15) else "ALLGATHER": 2}
    assert took_time(seen)


def case_on_completion_hook_seq(self: Case) -> None:
    group = self.init()
    calls, seen = counted(group)
    tensor = ones(self, 2, 3, times=self.rank)
    for _ in range(3):
        group.broadcast([tensor]).wait()
    dist.destroy_process_group(group)
    assert calls == {"BROADCAST": 3}
    assert seen[-1].seq == 3


# -- errors ----------------------------------------------------------------------------------------------------------


def short_timeouts() -> None:
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "4"
    os.environ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1000"


def own_group(self: Case, **settings: Any) -> Any:
    """Make a ProcessGroupNCCL that is not the default group."""
    return dist.ProcessGroupNCCL(self.store(), self.rank, self.world_size, **settings)


def case_send_recv_non_dense_tensor(self: Case) -> None:
    self.init(None, device_id=self.device)
    block = ones(self, 64, 64, times=self.rank)[:, 16:32]
    if self.rank == 0:
        raises(ValueError, lambda: dist.send(block, dst=1))
    elif self.rank == 1:
        raises(ValueError, lambda: dist.recv(block, src=0))


def case_nccl_errors_nonblocking(self: Case) -> None:
    short_timeouts()
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    group = own_group(self)
    group.allreduce(torch.rand(10, device=self.device))
    if self.rank == 0:
        group.allreduce(torch.rand(10, device=self.device)).wait()

        def hangs() -> None:
            group.allreduce(torch.rand(10).cuda(self.rank)).wait()
            torch.cuda.synchronize(self.rank)  # torch's own test relies on `rand` to do this

        thread = threading.Thread(target=hangs, daemon=True)
        thread.start()
        thread.join(20)
        assert thread.is_alive()


def case_nccl_errors_blocking(self: Case) -> None:
    short_timeouts()
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    group = own_group(self)
    data = torch.rand(1024, device=self.device)
    group.allreduce(data)
    if self.rank == 0:
        work = group.allreduce(data)
        raises(dist.DistBackendError, lambda: work.wait(timeout=timedelta(seconds=3)))


def case_nccl_non_blocking_wait_with_barrier(self: Case, blocking: bool = False) -> None:
    short_timeouts()
    os.environ["TORCH_NCCL_BLOCKING_WAIT" if blocking else "TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1" if blocking else "0"
    group = own_group(self, timeout=timedelta(seconds=10))
    group.barrier().wait()
    if self.rank == 0:
        raises(dist.DistBackendError, lambda: group.barrier().wait(timeout=timedelta(seconds=3)))


def case_nccl_blocking_wait_with_barrier(self: Case) -> None:
    case_nccl_non_blocking_wait_with_barrier(self, blocking=True)


def case_error_detection_and_propagation(self: Case) -> None:
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_PROPAGATE_ERROR"] = "1"
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "5"
    group = own_group(self, timeout=timedelta(seconds=2))
    assert group.get_error() == _c.ErrorType.SUCCESS
    barrier = group.barrier()
    barrier.wait()
    assert _c.WorkResult(barrier.get_future_result().wait()) == _c.WorkResult.SUCCESS
    work = group.allreduce(torch.rand(10, device=self.device))
    work.wait()
    seen: list[Any] = []
    work.get_future_result().then(lambda future: seen.append(_c.WorkResult(future.value())))
    if self.rank == 0:
        missed = group.allreduce(torch.rand(10, device=self.device))
        missed.wait()
        assert _c.WorkResult(missed.get_future_result().wait()) == _c.WorkResult.TIMEOUT
        assert group.get_error() == _c.ErrorType.TIMEOUT
    else:
        time.sleep(4)
        assert group.get_error() == _c.ErrorType.REMOTE_ERROR
    assert seen == [_c.WorkResult.SUCCESS]
    group.abort()


def case_restart_pg_after_error(self: Case) -> None:
    short_timeouts()
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_PROPAGATE_ERROR"] = "1"
    backend = self.init(timeout=timedelta(seconds=2))._get_backend(self.device)
    assert backend.get_error() == _c.ErrorType.SUCCESS
    barrier = backend.barrier()
    barrier.wait()
    assert _c.WorkResult(barrier.get_future_result().wait()) == _c.WorkResult.SUCCESS
    if self.rank == 0:
        work = backend.allreduce(torch.rand(10, device=self.device))
        work.wait()
        assert _c.WorkResult(work.get_future_result().wait()) == _c.WorkResult.TIMEOUT
        assert backend.get_error() == _c.ErrorType.TIMEOUT
    else:
        time.sleep(4)
        assert backend.get_error() == _c.ErrorType.REMOTE_ERROR
    backend.abort()
    dist.destroy_process_group()
    again = self.init(store=dist.FileStore(f"{self.file_name}.again", self.world_size))._get_backend(self.device)
    dist.all_reduce(torch.rand(5, 5, device=self.device))
    assert again.get_error() == _c.ErrorType.SUCCESS
    torch.cuda.synchronize()
    dist.destroy_process_group()


def case_invalid_nccl_blocking_wait_env(self: Case) -> None:
    for value in ("abc", "-1", "2147483647", "4294967295"):
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = value
        raises(RuntimeError, lambda: own_group(self))


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(globals()))
def test_torchs_own(name: str, tmp_path: Path) -> None:
    hooked = name.startswith("on_completion_hook")
    env = {"TORCH_NCCL_ENABLE_TIMING": "1"} if hooked else {}

    hold(play(globals()[f"case_{name}"], tmp_path, size=2 if hooked else 3, env=env))
