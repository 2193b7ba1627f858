"""PyTorch's own tests of groups over NCCL (test_c10d_nccl.py), after those of errors, by name.

As in `test_torch_suite.py`, with `test_torch_suite_subgroups.py`: every test from registered buffers to splits of eight
ranks, except those of the flight recorder (`test_torch_suite_records.py`). A test with parameters is one case, which
runs with all of them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.c10d.nccl.suite import Case, cases, dist, hold, ones, play, raises, require_most, same
from tests.c10d.worlds import calls_of_mixed_types

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def case_broadcast_coalesced_nccl(self: Case) -> None:
    group = self.init()
    for root in (0, 1):
        halves, floats, doubles = torch.half, torch.float, torch.double
        target = [
            chunk
            for dtype in (halves, floats, halves, doubles, halves, floats)
            for chunk in torch.arange(60, dtype=dtype, device=self.device).chunk(5)
        ]
        tensors = [each.clone() if self.rank == root else torch.zeros_like(each) for each in target]
        dist._broadcast_coalesced(group, tensors, buffer_size=256, src=root)
        assert all(torch.equal(one, other) for one, other in zip(tensors, target, strict=True))


def of_several_sizes(self: Case) -> list[torch.Tensor]:
    return [ones(self, 60 + index, times=self.rank + 1 + index) for index in range(5)]


def summed(self: Case, tensors: list[torch.Tensor]) -> bool:
    size = self.world_size
    return all(same(each, size * (index + (size + 1.0) / 2.0)) for index, each in enumerate(tensors))


def case_all_reduce_coalesced_nccl(self: Case) -> None:
    group = self.init()
    tensors = of_several_sizes(self)
    dist.all_reduce_coalesced(tensors, group=group)
    assert summed(self, tensors)


def case_all_reduce_coalesced_manager_nccl(self: Case) -> None:
    group = self.init()
    for later in (False, True):
        tensors = of_several_sizes(self)
        with dist._coalescing_manager(group=group, device=self.device, async_ops=later) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert len(manager.works) == (1 if later else 0)
        manager.wait()
        assert summed(self, tensors)


def case_all_gather_into_tensor_coalesced_manager_nccl(self: Case) -> None:
    group = self.init()
    size = self.world_size
    for later in (False, True):
        outputs = [ones(self, length * size, times=0) for length in range(60, 65)]
        with dist._coalescing_manager(group=group, device=self.device, async_ops=later) as manager:
            for length, output in zip(range(60, 65), outputs, strict=True):
                own = torch.arange(self.rank * length, (self.rank + 1) * length, device=self.device).float()
                dist.all_gather_into_tensor(output, own)
        assert len(manager.works) == (1 if later else 0)
        manager.wait()
        for output in outputs:
            assert torch.equal(output, torch.arange(len(output), device=self.device).float())


def case_coalesced_manager_op_integrity(self: Case) -> None:
    group = self.init()

    def mixes() -> None:
        with dist._coalescing_manager(group=group, async_ops=True):
            tensor = ones(self, 60)
            dist.all_reduce(tensor)
            dist.all_gather_into_tensor(ones(self, 60 * self.world_size), tensor)

    raises(RuntimeError, mixes, "Coalescing manager requires all collectives to be the same type")


def case_reduce_scatter_base_k(self: Case) -> None:
    self.init()
    output = torch.zeros(2, dtype=torch.int64, device=self.device)
    inputs = torch.arange(self.world_size * 2, device=self.device).reshape(self.world_size, 2)
    dist.reduce_scatter_tensor(output, inputs)
    assert torch.equal(output, inputs[self.rank] * self.world_size)


def case_reduce_scatter_tensor_coalesced(self: Case) -> None:
    self.init()
    outputs = ones(self, 2, 2, times=0)
    inputs = [ones(self, 2, 2) for _ in range(self.world_size)]
    with dist._coalescing_manager():
        for index in range(self.world_size):
            dist.reduce_scatter_tensor(outputs[index], inputs[index])
    assert torch.equal(outputs, inputs[self.rank] * self.world_size)


def case_time_estimate_nccl(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    group = self.init()
    tensor = torch.full((1024,), self.rank).cuda()
    with dist._time_estimator(group=group, device=self.device) as estimator:
        dist.all_reduce(tensor)
    assert estimator.estimated_time > 0


def numbers(group: Any, over: Any = None) -> list[int]:
    """Return the sequence numbers of a group on all ranks of another."""
    found: list[Any] = [None] * dist.get_world_size(over)
    dist.all_gather_object(found, group._get_sequence_number_for_group(), group=over)
    return found


def increments(self: Case, group: Any, ranks: list[int]) -> None:
    beside = dist.new_group(ranks, backend="gloo")
    if self.rank not in ranks:
        return
    (first,) = set(numbers(group, beside))
    tensor = ones(self, 1)
    for count in range(1, 11):
        dist.all_reduce(tensor, group=group)
        assert numbers(group, beside) == [first + count] * len(ranks)
    if len(ranks) > 2:
        if dist.get_rank(group) not in (0, 2):
            dist.all_reduce(tensor, group=group, async_op=True)
        found = numbers(group, beside)
        assert found == [first + 10 + (rank not in (0, 2)) for rank in range(len(ranks))]


def case_sequence_num_set_default_pg_nccl(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    assert len(set(numbers(self.init()))) == 1


def case_sequence_num_incremented_nccl_default(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    increments(self, self.init(), list(range(self.world_size)))


def case_sequence_num_incremented_nccl_subgroup(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    self.init()
    increments(self, dist.new_group([0, 1, 2]), [0, 1, 2])


def case_sequence_num_set_nccl_new_group(self: Case) -> None:
    torch.cuda.set_device(self.rank)
    self.init()
    group = dist.new_group([0, 1])
    assert len(set(numbers(group, group))) == 1


def with_options(self: Case, options: Any) -> None:
    self.init(pg_options=options)
    group = dist.new_group([0, 1], pg_options=options)
    tensor = torch.full((10,), self.rank + 1).cuda(self.rank)
    group.allreduce(tensor).wait()
    assert same(tensor, 3)


def case_pass_nccl_options_high_priority_stream(self: Case) -> None:
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    with_options(self, options)


def case_pass_nccl_options_config(self: Case) -> None:
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas, options.config.min_ctas = 4, 2
    options.config.cga_cluster_size, options.config.split_share = 2, 1
    options.config.net_name = "Socket"
    with_options(self, options)
    fresh = dist.ProcessGroupNCCL.Options()
    config = dist.ProcessGroupNCCL.NCCLConfig()
    assert fresh.config.min_ctas == config.min_ctas == -2147483648
    copied, shallow = copy.deepcopy(fresh), copy.copy(fresh.config)
    copied.config.min_ctas, shallow.min_ctas = 2, 4
    assert (fresh.config.min_ctas, copied.config.min_ctas, shallow.min_ctas) == (-2147483648, 2, 4)
    config.blocking, config.max_ctas = False, np.int64(4)
    assert [(type(number), number) for number in (config.blocking, config.max_ctas)] == [(int, 0), (int, 4)]
    raises(TypeError, lambda: setattr(config, "min_ctas", 1.0), "incompatible function arguments")


def case_nccl_barrier(self: Case) -> None:
    self.init()
    device = 2 * self.rank

    def check(group: Any, expected: int) -> None:
        tensor = torch.full((10,), self.rank + 1).cuda(device)
        dist.all_reduce(tensor, group=group)
        assert same(tensor, expected)

    check(None, 3)
    check(dist.new_group([0, 1]), 3)
    for alone in (0, 1):
        group = dist.new_group([alone])
        if self.rank == alone:
            check(group, self.rank + 1)


def case_nccl_barrier_device_ids(self: Case) -> None:
    self.init()
    dist.barrier(device_ids=[self.rank])


def case_nccl_warn_not_in_group_debug_off(self: Case, level: str = "OFF") -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()
    self.init()
    group = dist.new_group([0])
    tensor = torch.zeros(2, 2, device=self.device)
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: dist.all_gather([torch.zeros_like(tensor)], tensor, group=group),
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "broadcast": lambda: dist.broadcast(tensor, src=0, group=group),
    }
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        reported = [str(each.message) for each in caught if "does not belong to" in str(each.message)]
        assert len(reported) == self.rank
        assert all(name in each for each in reported)


case_nccl_warn_not_in_group_debug_info = partial(case_nccl_warn_not_in_group_debug_off, level="INFO")
case_nccl_warn_not_in_group_debug_detail = partial(case_nccl_warn_not_in_group_debug_off, level="DETAIL")


def case_nncl_rank_membership(self: Case) -> None:
    self.init()
    group = dist.new_group(ranks=[1])
    stranger = dist.ProcessGroup(self.rank, self.world_size)
    for find, known, unknown in ((dist.get_group_rank, 1, 0), (dist.get_global_rank, 0, 1)):
        assert find(group, known) == unknown
        raises(ValueError, functools.partial(find, group, unknown), "not part of group")
        raises(ValueError, functools.partial(find, stranger, 0), "not registered")
    assert dist.get_process_group_ranks(group) == [1]


def case_tensor_dtype_mismatch(self: Case) -> None:
    self.init()
    for call in calls_of_mixed_types(ones(self, 2, 2, times=7), [ones(self, 2, 2) for _ in range(self.world_size)]):
        raises(ValueError, call, "tensors with different dtypes")


def case_tensor_dtype_complex(self: Case) -> None:
    self.init()
    tensor = torch.rand(2, device=self.device)
    tensors = [torch.rand(2, device=self.device) for _ in range(self.world_size)]
    mixed = [tensors[0], torch.view_as_complex(tensors[1])]
    for outputs, own in itertools.product((tensors, mixed), (tensor, torch.view_as_complex(tensor))):
        dist.all_gather(outputs, own)


def case_collectives(self: Case) -> None:
    self.init()
    tensor = ones(self, 10, 10)
    gathered = [[torch.zeros_like(tensor) for _ in range(self.world_size)]]
    for call in (
        lambda: dist.broadcast(tensor, src=0),
        lambda: dist.all_reduce(tensor),
        lambda: dist.reduce(tensor, dst=0),
        lambda: dist.reduce_scatter(tensor, [tensor.clone()]),
        lambda: dist.all_gather(gathered[0], tensor),
        lambda: dist.scatter(tensor, [tensor.clone()] if self.rank == 0 else None, src=0),
        lambda: dist.all_to_all([torch.zeros_like(tensor)], [tensor.clone()]),
        dist.barrier,
    ):
        call()
    assert same(tensor, 1)
    assert same(gathered[0][0], 1)


def case_allreduce_coalesced(self: Case) -> None:
    self.init()
    tensors = [ones(self, 10, 10) for _ in range(10)]
    dist.all_reduce_coalesced(tensors)
    assert all(same(each, 1) for each in tensors)


def case_all_to_all_single(self: Case) -> None:
    self.init()
    own = ones(self, 2, 2)
    output = ones(self, 2, 2, times=0)
    dist.all_to_all_single(output, own, [2], [2])
    assert torch.equal(output, own)


def case_allgather_base(self: Case) -> None:
    self.init()
    tensor, output = ones(self, 10, 10), ones(self, 10, 10, times=0)
    dist.all_gather_into_tensor(output, tensor)
    assert torch.equal(output, tensor)


def case_allgather_float8(self: Case) -> None:
    self.init()
    for dtype in FLOAT8:
        tensor, output = ones(self, 10, 16).to(dtype), ones(self, 10, 16, times=0).to(dtype)
        dist.all_gather_into_tensor(output, tensor)
        assert torch.equal(output.view(torch.float32), tensor.view(torch.float32))


def reported(self: Case, group: Any, source: int) -> None:
    """Broadcast a rank's number."""
    tensor = torch.full((1,), self.rank, device=self.device)
    dist.broadcast(tensor, source, group=group)
    assert tensor.item() == source


SIZES = {
    **dict.fromkeys(
        ("collectives", "allreduce_coalesced", "all_to_all_single", "allgather_base", "allgather_float8"), 1
    ),
    "sequence_num_incremented_nccl_subgroup": 4,
}
NO_REGISTRY = (
    "is about works that compiled code finds in C++'s registry, which is refused (tests/c10d/test_refusals.py)"
)
CASES = cases(globals())
LEFT_OUT = {"unwaited": NO_REGISTRY, "wait_tensor": NO_REGISTRY}
NEED_KERNELS = {
    "nccl_user_buffer_registration": "wants multicast memory of NVLink SHARP, and NCCL's log of it",
    "nccl_window_registration": "wants multicast memory of NVLink SHARP, and NCCL's log of it",
    "intra_node_comm_all_reduce": "wants torch's own kernels over symmetric memory",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_torchs_own(name: str, tmp_path: Path) -> None:
    devices = 4 if name == "nccl_barrier" else 0

    hold(play(globals()[f"case_{name}"], tmp_path, size=SIZES.get(name, 2), devices=devices))


def test_nine_tenths_of_torchs_tests_without_real_kernels_pass() -> None:
    require_most(CASES, LEFT_OUT)
    assert not NEED_KERNELS.keys() & {*CASES, *LEFT_OUT}
