"""PyTorch's own tests of NCCL with groups of two among four ranks, with one rank and with eight, by name.

As in `test_torch_suite.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.builds import NOT_A_MEMBER
from tests.c10d.nccl.suite import Case, cases, dist, hold, ones, play, raises, same
from tests.c10d.nccl.test_torch_suite_groups import FLOAT8, reported


def case_new_group_local_sync(self: Case) -> None:
    self.init()
    inside = sorted([self.rank, (self.rank + 2) % 4])
    outside = [rank for rank in range(4) if rank not in inside]
    assert dist.new_group(outside, use_local_synchronization=True) is NOT_A_MEMBER
    group = dist.new_group(inside, use_local_synchronization=True)
    assert dist.get_group_rank(group, self.rank) == inside.index(self.rank)
    assert dist.get_process_group_ranks(group) == inside


def case_new_group_local_sync_sanity_check(self: Case, groups: int = 1) -> None:
    self.init()
    half = self.rank // 2
    ranks = [half * 2, half * 2 + 1]
    for group in [dist.new_group(ranks, use_local_synchronization=True) for _ in range(groups)]:
        outputs = [torch.tensor([-1, -1], device=self.device) for _ in range(2)]
        dist.all_gather(outputs, torch.tensor([half, self.rank], device=self.device), group=group)
        assert [each.tolist() for each in outputs] == [[half, rank] for rank in ranks]


def case_new_group_local_sync_duplicated_pg(self: Case) -> None:
    case_new_group_local_sync_sanity_check(self, groups=2)


def case_new_group_ordered(self: Case) -> None:
    self.init()
    reverse = [3, 2, 1, 0]
    group = dist.new_group(reverse, sort_ranks=False)
    assert dist.get_group_rank(group, self.rank) == reverse.index(self.rank)
    assert dist.get_process_group_ranks(group) == reverse
    outputs = [torch.tensor([-1], device=self.device) for _ in range(4)]
    dist.all_gather(outputs, torch.tensor([self.rank], device=self.device), group=group)
    assert [each.item() for each in outputs] == reverse


def half_group(self: Case) -> tuple[Any, int, bool]:
    """Return the group of the first or last two of four ranks, its first rank, and True on that rank."""
    self.init()
    torch.cuda.set_device(self.rank)
    both = dist.new_group([0, 1]), dist.new_group([2, 3])
    return both[self.rank // 2], self.rank // 2 * 2, self.rank % 2 == 0


def peers(name: str, first: int, index: int) -> list[dict[str, int]]:
    """Return both ways to name a rank of the group."""
    return [{f"group_{name}": index}, {name: first + index}]


def case_gather_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    own = ones(self, 10, times=self.rank)
    for root in peers("dst", first, 0):
        outputs = [torch.empty_like(own) for _ in range(2)] if leads else None
        dist.gather(own, gather_list=outputs, group=group, **root)
        assert not leads or all(same(each, first + index) for index, each in enumerate(outputs or ()))


def case_gather_object_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for root in peers("dst", first, 0):
        outputs: Any = [{}, {}] if leads else None
        dist.gather_object({"rank": self.rank}, object_gather_list=outputs, group=group, **root)
        assert not leads or outputs == [{"rank": first}, {"rank": first + 1}]


def case_reduce_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for root in peers("dst", first, 0):
        tensor = ones(self, 10, times=self.rank)
        dist.reduce(tensor, group=group, **root)
        assert not leads or same(tensor, first + first + 1)


def case_send_recv_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for later in (False, True):
        for source, target in zip(peers("src", first, 1), peers("dst", first, 0), strict=True):
            tensor = ones(self, 10, times=self.rank)
            if leads:
                call, settings = (dist.irecv if later else dist.recv), source
            else:
                call, settings = (dist.isend if later else dist.send), target
            work = call(tensor, group=group, **settings)
            if later:
                work.wait()
            assert same(tensor, first + 1)


def case_batch_send_recv_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for by_group in (True, False):
        tensor = ones(self, 10, times=self.rank)
        index = 1 if leads else 0
        peer = {"group_peer": index} if by_group else {"peer": first + index}
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv if leads else dist.isend, tensor, group=group, **peer)]
        ):
            work.wait()
        assert same(tensor, first + 1)


def case_broadcast_subgroup(self: Case) -> None:
    group, first, _ = half_group(self)
    for root in peers("src", first, 1):
        tensor = ones(self, 10, times=self.rank)
        dist.broadcast(tensor, group=group, **root)
        assert same(tensor, first + 1)


def case_send_recv_object_list_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for device in (None, self.device):
        for source, target in zip(peers("src", first, 1), peers("dst", first, 0), strict=True):
            objects = [{"rank": self.rank}]
            if leads:
                dist.recv_object_list(objects, group=group, device=device, **source)
            else:
                dist.send_object_list(objects, group=group, device=device, **target)
            assert objects == [{"rank": first + 1}]


def case_broadcast_object_list_subgroup(self: Case) -> None:
    group, first, _ = half_group(self)
    for device in (None, self.device):
        for root in peers("src", first, 1):
            objects = [{"rank": self.rank}]
            dist.broadcast_object_list(objects, group=group, device=device, **root)
            assert objects == [{"rank": first + 1}]


def case_scatter_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for root in peers("src", first, 1):
        tensor = torch.empty(10, device=self.device)
        inputs = None if leads else [ones(self, 10, times=first), ones(self, 10, times=first + 1)]
        dist.scatter(tensor, scatter_list=inputs, group=group, **root)
        assert same(tensor, self.rank)


def case_scatter_object_list_subgroup(self: Case) -> None:
    group, first, leads = half_group(self)
    for root in peers("src", first, 1):
        outputs: list[Any] = [None]
        inputs = None if leads else [{"rank": first}, {"rank": first + 1}]
        dist.scatter_object_list(outputs, inputs, group=group, **root)
        assert outputs == [{"rank": self.rank}]


def case_broadcast_float8(self: Case) -> None:
    self.init()
    for dtype in FLOAT8:
        expected = torch.arange(8, device=self.device).float().to(dtype)
        tensor = expected if self.rank == 0 else torch.empty(8, device=self.device, dtype=dtype)
        dist.broadcast(tensor, src=0)
        assert torch.equal(tensor.float(), torch.arange(8, device=self.device).float())


class Words(nn.Module):
    """An embedding with sparse gradients, followed by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 10, sparse=True)
        self.linear = nn.Linear(10, 1)

    def forward(self, data: torch.Tensor) -> Any:
        """Apply the layer to the mean of the words."""
        return self.linear(self.embedding(data).mean(dim=1))


def case_ddp_set_sparse_metadata(self: Case) -> None:
    self.init()
    model: Any = DistributedDataParallel(Words().to(self.device))
    model._set_sparse_metadata({"embedding.weight": torch.arange(5.0)})

    def step() -> None:
        model(torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0]], device=self.device)).sum().backward()

    raises(RuntimeError, step, "NCCL does not support all_reduce with sparse tensors")


def case_reduce_scatter(self: Case) -> None:
    self.init(device_id=self.device)
    own = torch.randn(8193, dtype=torch.bfloat16, device=self.device)

    def coalesced(output: torch.Tensor, tensor: torch.Tensor, op: Any) -> None:
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(output, tensor, op)

    for call in (
        lambda output, tensor, op: dist.reduce_scatter(output, [tensor], op),
        dist.reduce_scatter_tensor,
        coalesced,
    ):
        output = torch.zeros_like(own)
        call(output, own, dist.ReduceOp.AVG)
        torch.testing.assert_close(output, own)


def case_comm_split_group_larger_scale(self: Case) -> None:
    group = self.init(pg_options=dist.ProcessGroupNCCL.Options(), device_id=self.device)
    backend = group._get_backend(self.device)
    first = dist.split_group(group, [[0, 1], [2, 3, 4, 5, 6, 7]])
    assert backend.comm_split_count() == 1
    reported(self, first, 0 if self.rank < 2 else 2)
    second = dist.split_group(group, [[5, 6, 7]])
    assert backend.comm_split_count() == 2
    if self.rank >= 5:
        reported(self, second, 7)
    else:
        assert second is NOT_A_MEMBER
    dist.barrier(group)
    torch.cuda.synchronize()
    dist.destroy_process_group()


def case_comm_recursive_split_group(self: Case) -> None:
    group = self.init(pg_options=dist.ProcessGroupNCCL.Options(), device_id=self.device)
    backend = group._get_backend(self.device)
    first = dist.split_group(group, [[0, 1, 2, 3], [4, 5, 6, 7]])
    first_backend = first._get_backend(self.device)
    reported(self, first, self.rank // 4 * 4)
    assert (backend.comm_split_count(), first_backend.comm_split_count()) == (1, 0)
    second = dist.split_group(first, [[0, 1], [2, 3]])
    counts = [each.comm_split_count() for each in (backend, first_backend, second._get_backend(self.device))]
    assert counts == [1, 1, 0]
    reported(self, second, {0: 1, 1: 2, 2: 5, 3: 6}[self.rank // 2])
    whole = dist.new_group(list(range(8)), device_id=self.device)
    options = whole._get_backend(self.device).options
    assert len(options.global_ranks_in_group) == 8
    dist.split_group(whole, [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert len(options.global_ranks_in_group) == 8
    dist.barrier(group)
    torch.cuda.synchronize()
    dist.destroy_process_group()


SIZES = {
    **dict.fromkeys(("ddp_set_sparse_metadata", "reduce_scatter"), 1),
    **dict.fromkeys(("comm_split_group_larger_scale", "comm_recursive_split_group"), 8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(globals()))
def test_torchs_own(name: str, tmp_path: Path) -> None:
    hold(play(globals()[f"case_{name}"], tmp_path, size=SIZES.get(name, 4)))
