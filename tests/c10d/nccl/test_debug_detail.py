"""TORCH_DISTRIBUTED_DEBUG=DETAIL over NCCL: ranks compare what they call, over Gloo, before they call it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.c10d.nccl.worlds import join, of, results, run, said

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_calls_that_agree_go_through(backend: str) -> None:
    def body() -> list[Any]:
        rank = join(backend)
        tensor = of(rank, 1)
        dist.all_reduce(tensor)
        dist.barrier(device_ids=[rank])
        group = dist.new_group([0, 1])
        dist.broadcast(tensor, 1, group=group)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[rank])
        model(tensor).sum().backward()
        dist.destroy_process_group()
        return tensor.tolist()

    assert results(body, env=DETAIL) == [[1, 2]] * 2


def test_calls_that_differ_are_refused_and_name_the_device() -> None:
    def body() -> None:
        rank = join()
        dist.all_reduce(torch.ones(2 + rank, device="cuda"))

    result = run(body, env=DETAIL)

    options = (
        "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )
    prints = [
        f"CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[{size}], TensorDtypes=Float, "
        f"TensorDeviceTypes={options})"
        for size in (2, 3)
    ]
    assert str(result.ranks[0].exception) == (
        f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {prints[0]}, but Rank 1 is "
        f"running collective: {prints[1]}.Collectives differ in the following aspects:   Tensor Tensor shapes: 2vs 3"
    )


def test_a_missing_rank_is_named() -> None:
    def body() -> None:
        if join() == 0:
            dist.all_reduce(of(1))

    result = run(body, env=DETAIL)

    assert "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 600000 ms" in str(result.ranks[0].exception)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_wrapper_says_what_the_wrapped_group_can_do(backend: str) -> None:
    def body() -> list[Any]:
        join(backend)
        device = torch.device("cuda" if backend == "nccl" else "cpu", 0)
        wrapper: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
        names = ("supports_splitting", "supports_coalescing", "supports_shrinking", "supports_time_estimate")
        groups = wrapper, wrapper.wrapped_pg
        able = [[getattr(group, name) for name in names] for group in groups]
        allocates = [
            (group.supports_tensor_alloc(device), said(functools.partial(getattr, group, "mem_allocator")))
            for group in groups
        ]
        return [able[0] == able[1], able[0], allocates[0] == allocates[1], allocates[0], said(wrapper.get_error)]

    found = results(body, 1, env=DETAIL)[0]

    no_memory = {"nccl": "DistBackendError: NCCL mem allocator is not supported in this NCCL version"}
    lacks = "RuntimeError: Backend gloo does not support "
    assert found == [
        *(True, [True, *[backend == "nccl"] * 3]),
        *(True, (False, no_memory.get(backend, f"{lacks}getMemAllocator"))),
        "nothing" if backend == "nccl" else f"{lacks}getError",
    ]
