"""Batch norm on devices: types that a GPU takes and the CPU does not, and SyncBatchNorm with empty batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.device.worlds import on_devices, values

HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32


def batch(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.arange(48.0).reshape(*(shape or (2, 3, 8))).sin().to("cuda", dtype)


def normed(input: torch.Tensor, parameters: torch.dtype, statistics: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return the result, the weight, and the updated statistics."""
    weight = torch.full((3,), 1.5, device="cuda", dtype=parameters, requires_grad=True)
    mean, var = (torch.full((3,), each, device="cuda", dtype=statistics) for each in (0.25, 1.0))
    return F.batch_norm(input, mean, var, weight, torch.zeros_like(weight), training=True), weight, mean, var


@pytest.mark.parametrize("half", [HALF, BFLOAT])
@pytest.mark.parametrize(("parameters", "statistics"), [("half", SINGLE), (SINGLE, "half")])
@on_devices
def test_halves_are_normed_with_parameters_and_statistics_of_either_type(
    half: torch.dtype, parameters: Any, statistics: Any
) -> None:
    kinds = [half if each == "half" else each for each in (parameters, statistics)]
    found, _, mean, var = normed(batch(half), *kinds)
    expected, _, mean_in_single, var_in_single = normed(batch(half).float(), SINGLE, SINGLE)

    assert [found.dtype, mean.dtype, var.dtype] == [half, kinds[1], kinds[1]]
    torch.testing.assert_close(found, expected.to(half))
    torch.testing.assert_close(mean, mean_in_single.to(kinds[1]))
    torch.testing.assert_close(var, var_in_single.to(kinds[1]))


@pytest.mark.parametrize(
    ("half", "parameters", "statistics", "said"),
    [
        (HALF, HALF, SINGLE, "Expected running_mean to have type Half but got Float"),
        (BFLOAT, BFLOAT, SINGLE, "Expected running_mean to have type BFloat16 but got Float"),
        (HALF, SINGLE, HALF, "Expected running_mean to have type Float but got Half"),
    ],
)
@on_devices
def test_backward_refuses_statistics_of_another_type(
    half: torch.dtype, parameters: torch.dtype, statistics: torch.dtype, said: str
) -> None:
    result, *_ = normed(batch(half).requires_grad_(), parameters, statistics)

    with pytest.raises(RuntimeError, match=said):
        result.sum().backward()


@on_devices
def test_backward_of_rows_takes_them() -> None:
    input = batch(HALF, 16, 3).requires_grad_()
    result, weight, *_ = normed(input, HALF, SINGLE)
    result.square().sum().backward()

    assert [weight.grad.dtype, input.grad.dtype] == [HALF, HALF]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "said"),
    [((2, 3, 8), "Expected weight to have type Float but got Half"), ((16, 3), "expected scalar type Float but found")],
)
@on_devices
def test_singles_want_parameters_of_their_type(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        normed(batch(SINGLE, *shape), HALF, SINGLE)


def synchronized(sizes: list[int]) -> Callable[[], list[Any]]:
    def body() -> list[Any]:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        norm = nn.SyncBatchNorm(2, momentum=1.0).cuda()
        rows = torch.full((sizes[rank], 2, 3), rank + 1.0, device="cuda", requires_grad=True)
        result = norm(rows)
        result.sum().backward()
        return [tuple(result.shape), norm.running_mean.tolist()]  # type: ignore[union-attr]

    return body


def test_sync_batch_norm_takes_an_empty_batch_from_one_rank_and_from_all() -> None:
    one = values(synchronized([0, 4]), world_size=2, backend="nccl")
    none = values(synchronized([0, 0]), world_size=2, backend="nccl")

    assert [each[0] for each in one] == [(0, 2, 3), (4, 2, 3)]
    assert [each[1] for each in one] == [[2.0, 2.0]] * 2
    assert [each[0] for each in none] == [(0, 2, 3)] * 2


@on_devices
def test_statistics_of_equal_counts_are_those_of_counts() -> None:
    there = batch(SINGLE)
    means, spreads = torch.rand(2, 3, device="cuda"), torch.rand(2, 3, device="cuda")
    counts = torch.full((2,), 16.0, device="cuda")

    one = torch.batch_norm_gather_stats(there, means, spreads, None, None, 0.1, 1e-5, 16)
    other = torch.batch_norm_gather_stats_with_counts(there, means, spreads, None, None, 0.1, 1e-5, counts)

    assert [each.tolist() for each in one] == [each.tolist() for each in other]


@pytest.mark.parametrize("size", [0, 3])
@on_devices
def test_results_are_written_where_a_program_wants_them(size: int) -> None:
    there = batch(BFLOAT)
    statistics = torch.zeros(3, device="cuda", dtype=BFLOAT), torch.ones(3, device="cuda", dtype=BFLOAT)
    wanted = torch.ops.aten._native_batch_norm_legit(there, None, None, *statistics, True, 0.0, 1e-5)
    outputs = [torch.empty(0, device="cuda", dtype=BFLOAT), *(torch.empty(size, device="cuda") for _ in range(2))]

    names: Any = dict(zip(("out", "save_mean", "save_invstd"), outputs, strict=True))
    torch.ops.aten._native_batch_norm_legit.out(there, None, None, *statistics, True, 0.0, 1e-5, **names)

    assert [each.tolist() for each in outputs] == [each.tolist() for each in wanted]


@pytest.mark.parametrize("half", [HALF, BFLOAT])
@on_devices
def test_statistics_are_kept_in_single_precision(half: torch.dtype) -> None:
    input, running = batch(half), torch.ones(3, device="cuda", dtype=half)
    ones = torch.ones(8, device="cuda", dtype=half)

    found = [
        torch.ops.aten.native_batch_norm(input, None, None, None, None, True, 0.1, 1e-5),
        torch.ops.aten.native_batch_norm(input, running, running, running, running, False, 0.1, 1e-5),
        torch.ops.aten._native_batch_norm_legit(input, None, None, True, 0.1, 1e-5),
        torch.ops.aten._batch_norm_with_update(input, running, running, running, running, 0.1, 1e-5)[:3],
    ]
    of_rows = [torch.native_layer_norm(input, (8,), weight, weight, 1e-5) for weight in (None, ones)]

    assert [each.dtype for each, *_ in (*found, *of_rows)] == [half] * 6
    assert {(each.dtype, each.shape) for _, *saved in found for each in saved} == {(SINGLE, (3,))}
    assert {(each.dtype, each.shape) for _, *saved in of_rows for each in saved} == {(SINGLE, (2, 3, 1))}


@pytest.mark.parametrize(
    ("input", "parameters", "said"),
    [
        (HALF, SINGLE, "expected scalar type Half but found Float"),
        (BFLOAT, SINGLE, "expected scalar type BFloat16 but found Float"),
        (SINGLE, HALF, "expected scalar type Float but found Half"),
    ],
)
@on_devices
def test_norms_of_rows_want_parameters_of_their_type(input: torch.dtype, parameters: torch.dtype, said: str) -> None:
    rows, weight = batch(input, 6, 8), torch.ones(8, device="cuda", dtype=parameters)

    with pytest.raises(RuntimeError, match=said):
        F.layer_norm(rows, (8,), weight)
    if input is not SINGLE:
        with pytest.raises(RuntimeError, match=said):
            F.group_norm(rows, 2, weight)


@pytest.mark.parametrize(
    "read",
    [
        lambda row, many: F.layer_norm(torch.zeros(len(many), 8).to(row), (8,), None, row[0]),
        lambda row, many: F.embedding(many, row),
        lambda row, many: row[many],
    ],
    ids=["layer norm", "embedding", "index"],
)
@on_devices
def test_gradients_of_many_rows_are_added_up_in_single_precision(read: Callable[..., torch.Tensor]) -> None:
    row = torch.ones(1, 8, device="cuda", dtype=BFLOAT, requires_grad=True)

    read(row, torch.zeros(2048, device="cuda", dtype=torch.int64)).sum().backward()

    assert row.grad is not None
    assert row.grad.tolist() == [[2048.0] * 8]
