"""`context_parallel`: each rank's attention uses its own mesh, and the settings end with the context."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.device.worlds import values

attention: Any = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, 16, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def attended(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the gradient of the queries."""
    query, key, value = leaves = [each.detach().clone().requires_grad_() for each in batch]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output.float().square().sum().backward()
    assert leaves[0].grad is not None
    return output.detach(), leaves[0].grad


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_attention_over_a_shared_context_is_that_over_the_whole(method: str) -> None:
    usual = F.scaled_dot_product_attention

    def body() -> list[bool]:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        context = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "context"))["context"]
        whole, buffers = tensors(), tensors()
        expected = attended(whole)
        attention.set_rotate_method(method)
        with attention.context_parallel(context, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            assert buffers[0].shape[2] == 8
            shares = attended(buffers)
            dist.barrier()
        found = attention.context_parallel_unshard(context, list(shares), [2, 2])
        attended(whole)  # no longer distributed
        return [torch.allclose(one, other, atol=0.05) for one, other in zip(found, expected, strict=True)]

    assert values(body, world_size=4, backend="nccl") == [[True, True]] * 4
    assert F.scaled_dot_product_attention is usual
    assert attention._replaced_functions == {}


def test_a_rank_that_is_done_does_not_take_it_from_the_others() -> None:
    def body() -> bool:
        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        context = init_device_mesh("cuda", (2,))
        usual = F.scaled_dot_product_attention
        with attention.context_parallel(context, buffers=tensors(), buffer_seq_dims=[2, 2, 2]):
            inside = F.scaled_dot_product_attention is not usual
            if rank == 0:
                dist.barrier()  # the other rank leaves its context before this one goes on
        if rank == 1:
            assert F.scaled_dot_product_attention is usual
            dist.barrier()
        return inside

    assert values(body, world_size=2, backend="nccl") == [True, True]


def test_ways_of_rotation_are_each_ranks_own() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            attention.set_rotate_method("alltoall")
        dist.barrier()
        return str(attention._cp_options.rotate_method.name)

    assert values(body, world_size=2) == ["ALL_TO_ALL", "ALL_GATHER"]
    assert attention._cp_options.rotate_method.name == "ALL_GATHER"
