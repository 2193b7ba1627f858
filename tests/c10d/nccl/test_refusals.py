"""Calls that ProcessGroupNCCL refuses, in its words (torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simdist.inside.torch import Place
from tests.builds import NCCL, VERSION
from tests.c10d.nccl.worlds import join, of, results, said

_premul: Any = _c._make_nccl_premul_sum


def strided() -> torch.Tensor:
    """Return a view of every other element of a tensor."""
    return torch.ones(4, device="cuda")[::2]


def group() -> Any:
    """Return the default group."""
    return dist.group.WORLD


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "a CPU tensor": (
        lambda: dist.all_reduce(torch.ones(1)),
        "RuntimeError: No backend type associated with device type cpu",
    ),
    "a CPU message": (
        lambda: dist.isend(torch.ones(1), 1),
        "RuntimeError: No backend type associated with device type cpu",
    ),
    "a strided tensor": (lambda: dist.all_reduce(strided()), "ValueError: Tensors must be contiguous"),
    "a strided message": (
        lambda: dist.isend(strided(), 1),
        "ValueError: Tensors for P2P must be non-overlapping and dense",
    ),
    "a type": (
        lambda: dist.all_reduce(of(1, dtype=torch.int16)),
        "TypeError: Input tensor data type is not supported for NCCL process group: Short",
    ),
    "a type of a gather": (
        lambda: dist.gather(of(1, dtype=torch.int16), [of(1, dtype=torch.int16)]),
        "RuntimeError: Unconvertible NCCL type Short",
    ),
    "BAND": (
        lambda: dist.all_reduce(of(1, dtype=torch.int32), dist.ReduceOp.BAND),
        "ValueError: Cannot use ReduceOp.BAND with NCCL",
    ),
    "AVG of booleans": (
        lambda: dist.all_reduce(of(1, dtype=torch.bool), dist.ReduceOp.AVG),
        "TypeError: Cannot use ReduceOp.AVG with boolean inputs",
    ),
    "a scaled sum of integers": (
        lambda: dist.all_reduce(of(1, dtype=torch.int32), _premul(2.0)),
        "TypeError: PreMulSum Data type must be half, float, bfloat16 or double",
    ),
    "a gather's output type": (
        lambda: group()._allgather_base(of(1), of(1, dtype=torch.int32)),
        "TypeError: output tensor must have the same type as input tensor",
    ),
    "a gather's output size": (
        lambda: group()._allgather_base(of(1, 2), of(1)),
        "ValueError: output tensor size must be equal to world_size times input tensor size",
    ),
    "a scatter's input type": (
        lambda: group()._reduce_scatter_base(of(1), of(1, dtype=torch.int32)),
        "TypeError: input tensor must be the same type as the output tensor.",
    ),
    "a scatter's input size": (
        lambda: group()._reduce_scatter_base(of(1), of(1, 2)),
        "ValueError: input tensor must be the same size as output size times world size",
    ),
    "splits": (
        lambda: dist.all_to_all_single(of(1, 2), of(1, 2), [1, 1], [1, 1]),
        "RuntimeError: Number of tensor splits not equal to group size",
    ),
    "the sum of splits": (
        lambda: dist.all_to_all_single(of(1, 2), of(1, 2), [2], [1]),
        "RuntimeError: Split sizes doesn't match total dim 0 size",
    ),
    "several tensors": (
        lambda: group().allreduce([of(1), of(2)]),
        "RuntimeError: Expecting one tensor only but got multiple. You are probably using multiple devices under one "
        "thread. The support for such usage has been deprecated. For details, please refer to "
        "https://pytorch.org/docs/stable/distributed.html#multi-gpu-collective-functions. ProcessGroupNCCL continues "
        "supporting multi-process and multi-thread modes.",
    ),
    "an empty list": (lambda: group().allreduce_coalesced([]), "ValueError: Tensor list must be nonempty"),
    "types in a list": (
        lambda: group().allreduce_coalesced([of(1), of(1, dtype=torch.int32)]),
        "TypeError: Tensors must have identical type",
    ),
    "a gather's list": (
        lambda: group().gather([of(1), of(2)], of(1), 0),
        "ValueError: ProcessGroupNCCL::gather: Incorrect output list size 2. Output list size should be 1, same as "
        "size of the process group.",
    ),
    "a root": (
        lambda: group().broadcast(of(1), 3),
        f"DistBackendError: NCCL error in: {Place.CALL_FAILED.path_for_cuda}, invalid argument (run "
        f"with NCCL_DEBUG=WARN for details), NCCL version {NCCL}\n"
        "ncclInvalidArgument: Invalid value for an argument.\n"
        "Last error:\nBroadcast : invalid root 3 (root should be in the 0..1 range)",
    ),
    "from any source": (
        lambda: dist.recv(of(1)),
        "NotImplementedError: ProcessGroupNCCL does not support recvAnysource",
    ),
    "all_gather_coalesced": (
        lambda: group().allgather_coalesced([[of(1)]], [of(1)]),
        "NotImplementedError: ProcessGroupNCCL does not support allgather_coalesced",
    ),
    "monitored_barrier": (
        dist.monitored_barrier,
        "ValueError: monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO)."
        if VERSION >= (2, 14)
        else "ValueError: monitored_barrier is only implemented for GLOO backend.",
    ),
    "the end of no block": (
        lambda: group()._end_coalescing(torch.device("cuda")),
        "RuntimeError: Something went wrong. Did you call end_coalescing before start_coalescing?",
    ),
    "is_success": (
        lambda: group().allreduce([of(1)]).is_success(),
        "NotImplementedError: WorkNCCL::isSuccess() is deprecated",
    ),
}
if VERSION < (2, 15):  # torch 2.15 no longer asks for a device
    CASES["splitting"] = (
        lambda: dist.split_group(None, [[0]]),
        "RuntimeError: No device associated with the default pg, not safe to split any process groups",
    )


@pytest.fixture(scope="module")
def refused() -> dict[str, str]:
    """Return the error of each call, on the one rank of a world."""

    def body() -> dict[str, str]:
        join()
        return {name: said(call) for name, (call, _) in CASES.items()}

    found: dict[str, str] = results(body, 1)[0]
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_refused_in_torchs_words(name: str, refused: dict[str, str]) -> None:
    assert refused[name] == CASES[name][1]


def test_a_refusal_leaves_the_group_in_order() -> None:
    def body() -> list[float]:
        rank = join()
        said(lambda: dist.all_reduce(of(1, dtype=torch.int16)))
        tensor = of(rank)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert results(body) == [[1], [1]]


def test_a_group_without_a_communicator_does_not_shrink() -> None:
    def body() -> str:
        rank = join()
        return said(lambda: dist.shrink_group([1])) if rank == 0 else ""

    refused = "RuntimeError: Primary NCCL communicator for device cuda:0 (key: 0) is not initialized"
    assert results(body)[0] == refused


BEYOND = {
    "too few outputs": lambda: dist.all_gather([of(1)], of(1)),
    "outputs that are too large": lambda: dist.all_gather([of(1, 2), of(1, 2)], of(1)),
    "too many outputs of different sizes": lambda: dist.all_gather([of(1), of(1, 2), of(1)], of(1)),
    "too few inputs": lambda: dist.reduce_scatter(of(1), [of(1)]),
    "inputs that are too small": lambda: dist.reduce_scatter(of(1, 2), [of(1), of(1)]),
    "fewer inputs than outputs": lambda: dist.all_to_all([of(1), of(1)], [of(1)]),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_list_that_nccl_would_leave_is_refused_and_nothing_begins(name: str) -> None:
    def body() -> tuple[str, list[float]]:
        rank = join()
        text = said(BEYOND[name])
        tensor = of(rank)
        dist.all_reduce(tensor)
        return text.partition(" over NCCL")[0], tensor.tolist()

    collective = {"outputs": "all_gather", "inputs": "reduce_scatter"}["inputs" if "inputs" in name else "outputs"]
    collective = "all_to_all" if name == "fewer inputs than outputs" else collective
    assert results(body) == [(f"UnsupportedError: {collective}", [1])] * 2


def test_lists_longer_than_the_group_use_one_tensor_for_each_rank() -> None:
    def body() -> list[list[float]]:
        rank = join()
        gathered, reduced = [of(9), of(9), of(9)], of(0)
        dist.all_gather(gathered, of(rank))
        dist.reduce_scatter(reduced, [of(1), of(2), of(3)])
        return [torch.cat(gathered).tolist(), reduced.tolist()]

    assert results(body) == [[[0, 1, 9], [2]], [[0, 1, 9], [4]]]


def test_an_all_to_all_of_short_lists_leaves_out_the_ranks_behind() -> None:
    def body() -> list[float]:
        rank = join()
        dist.all_reduce(of(1))  # makes the communicator
        output = [of(9)]
        if rank == 0:
            dist.all_to_all(output, [of(3), of(4)])
        return output[0].tolist()

    assert results(body) == [[3], [9]]


def test_an_all_to_all_with_a_rank_too_many_is_an_invalid_argument() -> None:
    def body() -> str:
        join()
        lists = [of(1), of(2), of(3)]
        return said(lambda: dist.all_to_all(lists, lists))

    assert ["ncclInvalidArgument" in text for text in results(body)] == [True, True]
