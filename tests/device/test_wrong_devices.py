"""Texts are those of torch 2.13: TensorIterator's for element-wise operators, the CUDA wrappers' for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.device.worlds import cuda, on_devices

SAME = "Expected all tensors to be on the same device, but "


def on(index: int) -> torch.Tensor:
    return torch.randn(3, 4, device=cuda(index))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: on(1) + torch.ones(3, 4), f"{SAME}found at least two devices, cuda:1 and cpu!"),
        (lambda: torch.ones(3, 4) + on(1), f"{SAME}found at least two devices, cuda:1 and cpu!"),
        (lambda: on(0) * on(1), f"{SAME}found at least two devices, cuda:0 and cuda:1!"),
        (lambda: on(1).add_(torch.ones(3, 4)), f"{SAME}found at least two devices, cuda:1 and cpu!"),
        (
            lambda: nn.Linear(4, 2)(on(1)),
            f"{SAME}got mat1 is on cuda:1, different from other tensors on cpu "
            "(when checking argument in method wrapper_CUDA_addmm)",
        ),
        (
            lambda: on(1) @ torch.ones(4, 2),
            f"{SAME}got mat2 is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA_mm)",
        ),
        (
            lambda: nn.BatchNorm1d(4)(on(1)),
            f"{SAME}got weight is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA__native_batch_norm)",
        ),
        (
            lambda: nn.LayerNorm(4).cuda(0)(on(1)),
            f"{SAME}got weight is on cuda:0, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA__native_layer_norm)",
        ),
        (
            lambda: nn.functional.scaled_dot_product_attention(on(1)[None], on(0)[None], on(1)[None]),
            "Expected query, key, and value to have the same device type, but got query.device: cuda:1 "
            "key.device: cuda:0 and value.device: cuda:1 instead.",
        ),
        (
            lambda: torch.sparse.mm(on(1).to_sparse(), torch.ones(4, 2)),
            f"{SAME}got mat1 is on cuda:1, different from other tensors on cpu "
            "(when checking argument in method wrapper_SparseCUDA_addmm)",
        ),
        (
            lambda: nn.functional.cross_entropy(on(1), torch.tensor([0, 1, 2])),
            f"{SAME}got target is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA_nll_loss_forward)",
        ),
        (
            lambda: nn.Embedding(4, 2).cuda(1)(torch.tensor([1])),
            f"{SAME}got index is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA__index_select)",
        ),
        (
            lambda: on(1)[0].index_select(0, torch.tensor(1)),
            f"{SAME}got index is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA__index_select)",
        ),
        (
            lambda: on(1).clamp(torch.tensor(1.0)),
            f"{SAME}got min is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA_clamp_Tensor)",
        ),
        (
            lambda: torch.tensor(1.0).add_(on(1)[0, 0]),
            f"{SAME}found at least two devices, cuda:1 and cpu!",
        ),
        (
            lambda: torch.mul(on(1), 2, out=torch.tensor(1.0)),
            f"{SAME}found at least two devices, cuda:1 and cpu!",
        ),
        (
            lambda: torch.ones(3).masked_fill_(torch.ones(3, dtype=torch.bool), on(1)[0, 0]),
            "masked_fill_: Expected inputs to be on same device",
        ),
        (
            lambda: on(1).masked_fill_(torch.ones(3, 4, dtype=torch.bool), 0.0),
            "expected self and mask to be on the same device, but got mask on cpu and self on cuda:1",
        ),
        (
            lambda: torch.mode(on(1), out=(on(1)[:, 0], torch.ones(3, dtype=torch.int64))),
            "expected device 'cuda:1' but got 'cpu' for indices output",
        ),
        (
            lambda: torch.ones(3)[torch.tensor([0], device=cuda(1))],
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        ),
        (
            lambda: on(1)[torch.tensor([0], device=cuda(2))],
            "indices should be either on cpu or on the same device as the indexed tensor (cuda:1)",
        ),
        (
            lambda: on(1).index_put_((torch.tensor([0]),), torch.ones(4)),
            f"{SAME}found at least two devices, cuda:1 and cpu!",
        ),
        (
            lambda: on(1).index_put_((torch.tensor([0]),), torch.ones(4), accumulate=True),
            "expected device cuda:1 but got device cpu for value tensor",
        ),
        (
            lambda: torch.ones(4).index_put_((torch.tensor([0]),), on(1)[0, :1]),
            f"{SAME}found at least two devices, cuda:1 and cpu!",
        ),
        (
            lambda: torch.cat([on(1), torch.ones(3, 4)]),
            f"{SAME}got tensors is on cpu, different from other tensors on cuda:1 "
            "(when checking argument in method wrapper_CUDA_cat)",
        ),
    ],
)
@on_devices
def test_tensors_on_different_devices_are_refused(function: Callable[[], Any], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        function()

    assert str(caught.value) == text


@on_devices
def test_a_number_may_be_on_another_device() -> None:
    tensor = torch.arange(3.0, device=cuda(1))

    assert (tensor * torch.tensor(2.0)).tolist() == [0, 2, 4]
    assert torch.zeros(2).fill_(tensor[2]).tolist() == [2, 2]
    assert torch.where(tensor > 1, torch.tensor(5.0), tensor).tolist() == [0, 1, 5]


@on_devices
def test_indices_may_be_on_the_cpu() -> None:
    tensor = torch.arange(4.0, device=cuda(1))

    tensor[torch.tensor([0])] = torch.tensor([9.0], device=cuda(1))
    tensor[torch.tensor([1])] = torch.tensor(7.0)
    tensor[tensor == 3] = torch.tensor([5.0])

    assert tensor[torch.tensor([0, 2])].tolist() == [9, 2]
    assert tensor.tolist() == [9, 7, 2, 5]


@on_devices
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_the_rate_of_a_fused_optimizer_may_be_a_tensor_on_the_cpu(optimizer: Any) -> None:
    found = []
    for device in ("cpu", "cuda:1"):
        weight = nn.Parameter(torch.ones(3, device=device))
        weight.grad = torch.ones_like(weight)
        optimizer([weight], lr=torch.tensor([0.1]), fused=True).step()
        found.append(weight.tolist())

    assert found[0] == found[1] != [1.0] * 3


@on_devices
def test_copies_go_between_any_devices() -> None:
    target = torch.zeros(2, device=cuda(1))

    target.copy_(torch.ones(2))
    one = target.tolist()
    target.copy_(torch.full((2,), 2.0, device=cuda(0)))

    assert one == [1, 1]
    assert target.tolist() == [2, 2]


@on_devices
def test_a_device_that_is_not_there_is_refused_in_cuda_s_words() -> None:
    for use in (
        lambda: torch.cuda.set_device(4),
        lambda: torch.ones(1, device="cuda:4"),
        lambda: torch.ones(1).to("cuda:7"),
    ):
        with pytest.raises(torch.AcceleratorError) as caught:
            use()

        assert str(caught.value).startswith(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        )
