"""Calls that a GPU's kernels take and the CPU's refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simdist.device.kernels._beyond import extended
from simdist.inside.torch import find_operator
from tests.device.worlds import cuda, on_devices

Tensor = torch.Tensor


@on_devices
def test_truth_values_have_absolute_values_and_traces() -> None:
    truths = torch.tensor([[True, False], [True, True]], device=cuda(1))

    assert truths.abs().tolist() == truths.tolist()
    assert torch.abs(truths, out=torch.empty(0, dtype=torch.bool, device=cuda(1))).tolist() == truths.tolist()
    assert truths.trace().item() == 2
    assert truths.trace().dtype is torch.int64


@on_devices
def test_sums_leave_out_complex_numbers_that_are_none() -> None:
    numbers = torch.tensor([[1 + 2j, complex("nan")], [complex(0, float("nan")), 3j]], device=cuda(1))

    assert numbers.nansum().item() == 1 + 5j
    assert torch.nansum(numbers, 1, out=torch.empty(0, dtype=torch.complex64, device=cuda(1))).tolist() == [1 + 2j, 3j]
    assert numbers.nanmean().item() == 0.5 + 2.5j


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@on_devices
def test_the_gradient_of_a_bias_is_as_precise_as_a_sum(transposed: bool, channels_last: bool) -> None:
    made = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = made(4, 8, 3, device=cuda(1))
    picture = torch.randn(2, 4, 300, 300, device=cuda(1))
    if channels_last:
        picture = picture.to(memory_format=torch.channels_last)
    model(picture).mean().backward()

    assert model.bias is not None
    assert model.bias.grad is not None
    assert model.bias.grad.tolist() == pytest.approx([0.125] * 8, rel=1e-6)


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")])
@on_devices
def test_a_convolution_has_the_gradients_that_are_wanted(frozen: tuple[str, ...]) -> None:
    model = torch.nn.Conv2d(4, 8, 3)
    picture = torch.randn(2, 4, 9, 9)
    here, there = picture.clone().requires_grad_(), picture.to(cuda(1)).requires_grad_()
    copied = torch.nn.Conv2d(4, 8, 3, device=cuda(1))
    copied.load_state_dict(model.state_dict())
    for each, given in ((model, here), (copied, there)):
        for name in frozen:
            each.get_parameter(name).requires_grad_(False)
        each(given).square().sum().backward()

    torch.testing.assert_close(there.grad, here.grad, check_device=False)
    for name in ("weight", "bias"):
        torch.testing.assert_close(copied.get_parameter(name).grad, model.get_parameter(name).grad, check_device=False)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (2, 3, 4)])
@on_devices
def test_matrices_are_factored_without_pivoting(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, device=cuda(1))

    permutation, lower, upper = torch.linalg.lu(matrix, pivot=False)
    _, pivots = torch.linalg.lu_factor(matrix, pivot=False)

    assert torch.allclose(lower @ upper, matrix)
    assert permutation.shape == (0,)
    assert pivots.tolist() == torch.arange(1, 4).expand(*shape[:-2], 3).tolist()
    with pytest.raises(RuntimeError, match="U\\[1,1\\] is zero"):
        torch.linalg.lu_factor(torch.zeros(2, 2, device=cuda(1)), pivot=False)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@on_devices
def test_whole_numbers_are_divided_by_zero(dtype: torch.dtype) -> None:
    numbers, zeros = torch.arange(1, 4, dtype=dtype, device=cuda(1)), torch.tensor([0, 2, 0], device=cuda(1)).to(dtype)
    ones = 255 if dtype is torch.uint8 else -1
    left = (1 << 32) - 1 if dtype is torch.int64 else ones

    assert (numbers % zeros).tolist() == numbers.fmod(zeros).tolist() == [left, 0, left]
    assert (numbers % 0).tolist() == (3 % (zeros * 0)).tolist() == [left] * 3
    assert (numbers // zeros).tolist() == torch.div(numbers, zeros, rounding_mode="trunc").tolist() == [ones, 1, ones]
    assert numbers.remainder_(zeros).tolist() == [left, 0, left]


def test_drawn_halves_are_never_zero() -> None:
    def draw(drawn: Tensor, *_: object, **__: object) -> Tensor:
        return drawn.copy_(torch.tensor([1e-9, 2.0]))

    made: Any = extended(find_operator("aten::exponential_"), draw)(torch.ones(2, dtype=torch.float16))

    assert made.tolist() == [2**-24, 2.0]


@on_devices
def test_composites_whose_kernels_a_build_for_the_cpu_lacks() -> None:
    numbers = torch.tensor([[1, 2, 2], [3, 3, 1]], device=cuda(1))
    values, places = torch.empty_like(numbers[0, :0]), torch.empty_like(numbers[:, 0])
    turned = torch.tensor([1 + 2j], device=cuda(1))

    torch.mode(numbers, out=(values, places))
    turned.conj_physical_()

    assert values.tolist() == [2, 3]
    assert places.tolist() == numbers.mode().indices.tolist()
    assert turned.tolist() == [1 - 2j]


@on_devices
def test_convolutions_of_cudnn_are_those_of_the_cpu() -> None:
    image, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    there: list[Any] = [image.to(cuda(1)).requires_grad_(), weight.to(cuda(1))]
    turned = there[0].detach(), weight.transpose(0, 1).contiguous().to(cuda(1))
    convolve: Any = torch.cudnn_convolution

    made = convolve(*there, (1, 1), (2, 2), (1, 1), 1, False, False, False)
    back = torch.cudnn_convolution_transpose(*turned, (1, 1), (0, 0), (2, 2), (1, 1), 1, False, False, False)
    made.sum().backward()

    assert torch.allclose(made.cpu(), torch.conv2d(image, weight, None, 2, 1), atol=1e-5)
    assert torch.allclose(back.cpu(), torch.conv_transpose2d(image, turned[1].cpu(), None, 2, 1), atol=1e-5)
    assert there[0].grad.shape == image.shape


@pytest.mark.parametrize("last", [True, False])
@on_devices
def test_gradients_of_one_by_one_pixel_with_a_stride_are_computed(last: bool) -> None:
    """oneDNN destroys the memory of a process that computes them for channels that come last."""
    layout = torch.channels_last if last else torch.contiguous_format
    input, weight = torch.randn(2, 3, 224, 224), torch.randn(48, 3, 1, 1)
    there = [each.to("cuda").to(memory_format=layout).requires_grad_() for each in (input, weight)]
    here = [each.double().requires_grad_() for each in (input, weight)]

    for data, kernel in (here, there):
        torch.nn.functional.conv2d(data, kernel, stride=2).square().sum().backward()

    for each, expected in zip(there, here, strict=True):
        assert each.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(each.grad.cpu().double(), expected.grad, rtol=1e-3, atol=1e-2)
        assert each.grad.stride() == each.stride()
