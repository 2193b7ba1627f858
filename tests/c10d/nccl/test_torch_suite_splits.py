"""PyTorch's own tests of NCCL groups that are split off another group or shrunk, and of messages in them, by name.

As in `test_torch_suite.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.c10d.nccl.suite import Case, cases, dist, hold, play, raises, require_most


def case_new_group(self: Case) -> None:
    for eager in (True, False):
        self.init(device_id=self.device if eager else None)
        other = dist.new_group()
        tensor = torch.tensor([self.rank], device=self.device)
        dist.broadcast(tensor, 0)
        dist.broadcast(tensor, 0, group=other)
        dist.destroy_process_group()


def case_comm_split_subgroup(self: Case) -> None:
    group = self.init(device_id=self.device)
    backend = group._get_backend(self.device)
    tensor = torch.full((1,), self.rank).cuda(self.device)
    original = tensor.clone()
    other = dist.new_group([0])
    assert backend.comm_split_count() == 1
    if self.rank == 0:
        dist.broadcast(tensor, 0, group=other)
    assert backend.comm_split_count() == 1
    assert torch.equal(tensor, original)
    dist.destroy_process_group()


def case_comm_eager_init_subgroup(self: Case) -> None:
    group = self.init()
    backend = group._get_backend(self.device)
    assert backend._is_initialized() is False
    other = dist.new_group([0, 1], device_id=self.device)
    dist.broadcast(torch.full((1,), self.rank).cuda(self.device), 0, group=other)
    assert backend._is_initialized() is False
    torch.cuda.synchronize()
    dist.destroy_process_group()


def case_comm_split_group(self: Case, backend_name: str = "nccl") -> None:
    options = dist.ProcessGroupNCCL.Options()
    group = self.init(backend_name, pg_options=options, device_id=self.device)
    backend = group._get_backend(self.device)
    first = dist.split_group(group, [[0, 1]])
    split = first._get_backend(self.device)
    assert backend.options._timeout == split.options._timeout
    assert backend.options.is_high_priority_stream == split.options.is_high_priority_stream
    assert first.group_desc == "default_pg:split:0"
    assert backend.comm_split_count() == 1
    assert dist.get_process_group_ranks(first) == [0, 1]
    devices: list[Any] = ["cpu", self.device] if ":" in backend_name else [self.device]
    for device in devices:
        tensor = torch.full((1,), self.rank, device=device)
        dist.broadcast(tensor, dist.get_global_rank(first, 0), group=first)
        assert tensor.item() == 0
    second = dist.split_group(group, [[0, 1]])
    assert second.group_desc == "default_pg:split:1"
    assert backend.comm_split_count() == 2
    dist.destroy_process_group()


def case_comm_split_group_mixed_backend(self: Case) -> None:
    case_comm_split_group(self, "cpu:gloo,cuda:nccl")


def case_non_blocking_init(self: Case, splits: int = 0, **settings: Any) -> None:
    os.environ |= {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "TORCH_NCCL_NONBLOCKING_TIMEOUT": "100"}
    group = self.init(**settings)
    backend = group._get_backend(self.device)
    assert backend.comm_split_count() == 0
    group.allreduce(torch.rand(10, 10, device=self.device)).wait()
    other = dist.new_group()
    assert backend.comm_split_count() == splits
    other.broadcast(torch.tensor([self.rank]).cuda(self.device), 0).wait()
    assert backend.comm_split_count() == splits
    dist.destroy_process_group()


def case_non_blocking_with_eager_init(self: Case) -> None:
    case_non_blocking_init(self, 1, device_id=self.device)


def case_non_blocking_p2p(self: Case) -> None:
    os.environ |= {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "TORCH_NCCL_NONBLOCKING_TIMEOUT": "100"}
    self.init()
    exchange(self, None)
    dist.destroy_process_group()


def exchange(self: Case, group: Any) -> None:
    """Send from rank 0 to rank 1."""
    sent = torch.ones(10, 10, device=self.device)
    if self.rank == 0:
        dist.send(sent, 1, group=group)
    if self.rank == 1:
        received = torch.rand(10, 10, device=self.device)
        dist.recv(received, 0, group=group)
        assert torch.equal(sent, received)


def case_subgroup_p2p(self: Case) -> None:
    for eager in (True, False):
        self.init(device_id=self.device if eager else None)
        exchange(self, dist.new_group())
        dist.destroy_process_group()


def case_get_uid(self: Case) -> None:
    group = self.init(device_id=self.device)
    assert dist.distributed_c10d._get_process_group_uid(group) == 0
    assert dist.distributed_c10d._get_process_group_uid(dist.new_group([0, 1])) == 1


def case_set_process_group_desc(self: Case) -> None:
    group = self.init(device_id=self.device)
    assert group.group_desc == "default_pg"
    assert dist.new_group([0, 1], group_desc="test_purpose").group_desc == "test_purpose"
    assert dist.new_group([0, 1]).group_desc == "undefined"


def shrink(self: Case, excluded: list[int], **settings: Any) -> None:
    """Make a group without some ranks, and reduce in it."""
    self.init(device_id=self.device)
    if self.rank in excluded:
        dist.destroy_process_group()
        return
    made = dist.shrink_group(excluded, **settings)
    left = [rank for rank in range(self.world_size) if rank not in excluded]
    assert made.size() == len(left)
    assert made.rank() == left.index(self.rank)
    tensor = torch.full((1,), self.rank).cuda(self.device)
    dist.all_reduce(tensor, group=made)
    assert tensor.item() == sum(left)
    dist.destroy_process_group()


def case_shrink_group_basic(self: Case) -> None:
    shrink(self, [1])


def case_shrink_group_validation(self: Case) -> None:
    self.init(device_id=self.device)
    raises(ValueError, lambda: dist.shrink_group([]), "cannot be empty")
    raises(ValueError, lambda: dist.shrink_group([0, 0, 1]), "Duplicate rank 0")
    raises(ValueError, lambda: dist.shrink_group([self.world_size + 1]), "out of bounds for group size 2")
    dist.destroy_process_group()


def case_shrink_group_backend_properties(self: Case) -> None:
    group = self.init(device_id=self.device)
    if self.rank == 0:
        dist.destroy_process_group()
        return
    before = group._get_backend(self.device).options
    after = dist.shrink_group([0])._get_backend(self.device).options
    assert (before._timeout, before.is_high_priority_stream) == (after._timeout, after.is_high_priority_stream)
    dist.destroy_process_group()


def case_shrink_group_multiple_comms(self: Case) -> None:
    torch.cuda.set_device(self.device)
    self.init(device_id=self.device)
    subgroup = dist.new_group([0, 1])
    if self.rank == 0:
        alone = dist.shrink_group([1], group=subgroup)
        assert alone.size() == 1
        tensor = torch.full((1,), self.rank).cuda(self.device)
        dist.all_reduce(tensor, group=alone)
        assert tensor.item() == 0
    dist.barrier()
    if self.rank != self.world_size - 1:
        left = dist.shrink_group([self.world_size - 1])
        tensor = torch.full((1,), self.rank).cuda(self.device)
        dist.all_reduce(tensor, group=left)
        assert tensor.item() == sum(range(self.world_size - 1))
    dist.destroy_process_group()


def case_shrink_group_flags(self: Case) -> None:
    shrink(self, [1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)


def case_shrink_group_nccl_config(self: Case) -> None:
    self.init(device_id=self.device)
    if self.rank == self.world_size - 1:
        dist.destroy_process_group()
        return
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    options.config.blocking = 1
    made = dist.shrink_group([self.world_size - 1], pg_options=options)._get_backend(torch.device("cuda")).options
    assert made.is_high_priority_stream is True
    assert made.config.blocking == 1
    dist.destroy_process_group()


def case_shrink_group_multiple_exclusions(self: Case) -> None:
    shrink(self, [2])


def case_shrink_group_multiple_iterations(self: Case) -> None:
    self.init(device_id=self.device)
    last = self.world_size - 1
    if self.rank != last:
        first = dist.shrink_group([last])
        assert first.size() == last
        if self.rank != last - 1:
            second = dist.shrink_group([last - 1], group=first)
            assert second.size() == last - 1
            tensor = torch.full((1,), self.rank).cuda(self.device)
            dist.all_reduce(tensor, group=second)
            assert tensor.item() == sum(range(last - 1))
    dist.destroy_process_group()


def case_deterministic_mode_no_break(self: Case) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        self.init(device_id=self.device)
        dist.all_reduce(torch.empty(10, 10, device=self.device))
    finally:
        torch.use_deterministic_algorithms(False)


def case_init_with_idx(self: Case) -> None:
    self.init(None, device_id=self.rank)
    dist.all_reduce(torch.empty(1, device=torch.device("cuda", self.rank)))


def case_block_current_stream(self: Case) -> None:
    group = self.init(device_id=self.device)
    work = group.allreduce(torch.rand(10, device=self.device))
    work.block_current_stream()
    torch.cuda.current_stream().synchronize()
    work.wait()
    torch.cuda.synchronize()


FOUR_RANKS = ("shrink_group_multiple_exclusions", "shrink_group_multiple_iterations", "shrink_group_multiple_comms")
A_CLOCK = "compares real times of two ways to recover"
CASES = cases(globals())
LEFT_OUT = {"shrink_group_performance": A_CLOCK, "shrink_group_vs_abort_reinit_performance": A_CLOCK}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_torchs_own(name: str, tmp_path: Path) -> None:
    hold(play(globals()[f"case_{name}"], tmp_path, size=4 if name in FOUR_RANKS else 2))


def test_nine_tenths_of_torchs_tests_pass() -> None:
    require_most(CASES, LEFT_OUT)
