"""PyTorch's own tests of NCCL (test_c10d_nccl.py of 2.13), by name, on virtual devices.

The function `case_NAME` does what the test NAME does, with its assertions, on two or more ranks. `LEFT_OUT` has the
tests of this part of the file without a case, with reasons. The tests are of making and ending groups, and timeouts.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.nccl.suite import Case, cases, dist, hold, play, raises, require_most


def case_default_store_timeout_nccl(self: Case) -> None:
    timeout = timedelta(seconds=3)
    begin = time.monotonic()
    if self.rank == 0:
        raises(
            dist.DistStoreError,
            lambda: dist.TCPStore("127.0.0.1", 29700, 3, True, timeout, wait_for_workers=True),
        )
        assert time.monotonic() - begin < 5


def case_init_no_gpus(self: Case) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    raises(
        ValueError,
        lambda: dist.ProcessGroupNCCL(self.store(), self.rank, self.world_size),
        "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    )


def case_init_wo_backend_str(self: Case) -> None:
    self.init(None, device_id=self.device)
    dist.all_reduce(torch.empty(1, device=self.device))


def case_scalable_init(self: Case) -> None:
    os.environ["TORCH_NCCL_RANKS_PER_ROOT"] = "1"
    self.init(None, device_id=self.device)
    dist.all_reduce(torch.empty(1, device=self.device))


def case_nccl_dist_backend_error(self: Case) -> None:
    self.init()
    error = raises(dist.DistBackendError, lambda: dist.broadcast(torch.tensor([1, 2, 3]).cuda(), 0))
    assert isinstance(error, dist.DistError)
    assert isinstance(error, RuntimeError)


def case_abort_pg(self: Case) -> None:
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    self.init()
    tensor = torch.rand(10, 10, device=self.device)
    dist.all_reduce(tensor)
    model = DistributedDataParallel(nn.Linear(10, 10).to(self.device), device_ids=[self.device])
    model(tensor).sum().backward()
    if self.rank == 0:
        dist.all_reduce(tensor)
        group = dist.distributed_c10d._get_default_group()
        thread = threading.Thread(target=group._get_backend(self.device).abort)
        thread.start()
        tensor.cpu()
        thread.join()


def case_close_pg(self: Case) -> None:
    for eager in (False, True):
        self.init(device_id=self.device if eager else None)
        tensor = torch.rand(10, 10, device=self.device)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        raises(ValueError, lambda: dist.all_reduce(torch.rand(1, device=self.device)))


def case_restart_pg(self: Case) -> None:
    store = self.store()
    self.init(store=store)
    dist.all_reduce(torch.rand(10, 10, device=self.device))
    torch.cuda.synchronize()
    dist.destroy_process_group()
    self.init(store=dist.PrefixStore("2nd", store))
    tensor = torch.rand(5, 5, device=self.device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    raises(ValueError, lambda: dist.all_reduce(tensor))


def case_cuda_event_cache_mthd_race(self: Case) -> None:
    def launch(tensor: torch.Tensor) -> None:
        for _ in range(3):
            dist.all_reduce(tensor)

    os.environ["TORCH_NCCL_CUDA_EVENT_CACHE"] = "1"
    self.init()
    tensor = torch.rand(10, 10, device=self.device)
    launch(tensor)
    thread = threading.Thread(target=launch, args=(tensor,))
    thread.start()
    thread.join()
    torch.cuda.synchronize()


def case_nan_assert(self: Case) -> None:
    os.environ["TORCH_NCCL_NAN_CHECK"] = "1"
    group = self.init()
    backend = group._get_backend(torch.device("cuda"))
    tensor = torch.zeros(64, device=self.device)
    tensor[random.randrange(64)] = float("nan")
    output = torch.empty(self.world_size, 64, device=self.device)
    backend._set_enable_nan_check(False)
    backend._set_enable_nan_check(True)
    try:
        group._allgather_base(output, tensor)
    except Exception:
        os._exit(signal.SIGABRT)
    dist.destroy_process_group()


def case_nan_rank_filter(self: Case) -> None:
    os.environ["TORCH_NCCL_NAN_CHECK"] = "1"
    self.init()
    tensor = torch.ones(3, 4, dtype=torch.bfloat16, device=self.device)
    if self.rank != 0:
        tensor[1, 1] = float("nan")
    dist.broadcast(tensor, 0)
    if self.rank == 0:
        dist.send(tensor, 1)
    elif self.rank == 1:
        dist.recv(tensor, 0)
    dist.destroy_process_group()


def case_nan_check(self: Case) -> None:
    os.environ["TORCH_NCCL_NAN_CHECK"] = "1"
    torch.cuda.set_device(self.rank)
    self.init()
    dist.broadcast(torch.ones((10,), device=self.device) * self.rank, src=0)
    dist.all_reduce(torch.ones(3, 4, device=self.device))
    dist.barrier()
    dist.destroy_process_group()


def case_extra_cuda_context(self: Case) -> None:
    self.init(device_id=self.device)
    tensor = torch.empty((1,), device=self.device)
    before = torch.cuda.mem_get_info(self.device)
    work = dist.all_reduce(tensor, async_op=True)
    if self.rank == 0:
        time.sleep(5)
        assert torch.cuda.mem_get_info(self.device) == before
    del work
    dist.all_reduce(tensor)
    torch.cuda.synchronize(self.device)
    dist.destroy_process_group()


def case_destruct_before_terminate_pg(self: Case) -> None:
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    group = self.init()
    group.allreduce(torch.rand(10, 10, device=self.device))
    del group


def case_abort_in_destroy_pg(self: Case) -> None:
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    group = self.init()
    tensor = torch.rand(10, 10, device=self.device)
    group.allreduce(tensor)
    dist.destroy_process_group()
    raises(dist.DistBackendError, lambda: group.allreduce([tensor]))


def case_abort_in_destroy_multi_pgs(self: Case) -> None:
    group = self.init()
    group.allreduce(torch.rand(10, 10, device=self.device)).wait()
    others = [dist.new_group([0, 1]) for _ in range(2)]
    for other in others:
        other.allreduce(torch.rand(10, 10, device=self.device)).wait()
    assert group._get_backend(self.device).comm_split_count() == 0
    dist.destroy_process_group()


def case_abort_in_destroy_mixed_empty_pgs(self: Case) -> None:
    group = self.init()
    group.allreduce(torch.rand(10, 10, device=self.device)).wait()
    dist.new_group([0, 1])
    dist.new_group([0, 1]).allreduce(torch.rand(10, 10, device=self.device)).wait()
    assert group._get_backend(self.device).comm_split_count() == 0
    dist.destroy_process_group()


def case_file_store_check(self: Case) -> None:
    os.environ |= {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "0",
    }
    group = self.init()
    assert (group.rank(), group.size()) == (self.rank, self.world_size)
    time.sleep(2)
    dist.destroy_process_group()


def require_timeout(self: Case, expected: timedelta) -> None:
    """Require this timeout in the options of the default group's backend."""
    group = dist.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device(f"cuda:{self.rank}")).options._timeout == expected


def case_init_process_group_nccl_timeout(self: Case) -> None:
    default = torch.distributed.constants.default_pg_nccl_timeout
    assert default is not None
    for settings, expected in (
        ({}, default),
        ({"timeout": timedelta(seconds=123)}, timedelta(seconds=123)),
        ({"pg_options": True}, default),
        ({"pg_options": True, "timeout": timedelta(seconds=1240)}, timedelta(seconds=1240)),
    ):
        given: dict[str, Any] = dict(settings)
        if given.pop("pg_options", False):
            given["pg_options"] = dist.ProcessGroupNCCL.Options()
            given["pg_options"]._timeout = timedelta(seconds=123)
        with warnings.catch_warnings(record=True):
            self.init(**given)
        require_timeout(self, expected)
        dist.destroy_process_group()


def case_set_nccl_pg_timeout(self: Case) -> None:
    for backend in (None, "nccl"):
        group = self.init(backend, timeout=timedelta(seconds=123))
        group.allreduce(torch.rand(10).cuda(self.rank))
        require_timeout(self, timedelta(seconds=123))
        group._get_backend(torch.device(f"cuda:{self.rank}"))._set_default_timeout(timedelta(seconds=23))
        require_timeout(self, timedelta(seconds=23))
        group.allreduce(torch.rand(10).cuda(self.rank))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=252), group)
        require_timeout(self, timedelta(seconds=252))
        dist.destroy_process_group()


def case_extend_nccl_pg_timeout(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    group = self.init(timeout=timedelta(seconds=123))
    backend = group._get_backend(torch.device(f"cuda:{self.rank}"))

    def launch(length: int = 10) -> Any:
        return group.allreduce(torch.rand(length).cuda(self.rank))

    work = launch()
    assert backend._verify_work_timeout(work, timedelta(seconds=123))
    work.wait()
    backend._set_default_timeout(timedelta(seconds=3))
    if self.rank == 0:
        time.sleep(5)
        launch()
        time.sleep(5)
        launch(5)
        work = launch()
        assert backend._verify_work_timeout(work, timedelta(seconds=3))
        work.wait()
    else:
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=10))
        first, second = launch(), launch(5)
        assert backend._verify_work_timeout(first, timedelta(seconds=13))
        assert backend._verify_work_timeout(second, timedelta(seconds=13))
        first.wait()
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=5))
        torch.cuda.synchronize(torch.device(f"cuda:{self.rank}"))
        work = launch()
        assert backend._verify_work_timeout(work, timedelta(seconds=8))
        work.wait()


CASES = cases(globals())
LEFT_OUT = {
    "common_errors": "is about the environment that init_process_group wants; tests/c10d/test_ways_in.py has it",
    "extra_cuda_context_sync_ops": "counts processes on a device with NVML, which a virtual device has not",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_torchs_own(name: str, tmp_path: Path) -> None:
    result = play(globals()[f"case_{name}"], tmp_path)

    if name == "nan_assert":
        assert {rank.exit_code for rank in result.ranks} <= {signal.SIGABRT, -signal.SIGABRT}
    else:
        hold(result)


def test_nine_tenths_of_torchs_tests_pass() -> None:
    require_most(CASES, LEFT_OUT)
