"""Refusals of virtual devices, as on a GPU: types without a kernel, and nondeterministic results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.device.worlds import cuda, on_devices
from tools import gpu_limits

F = nn.functional


def said(call: Callable[[], Any]) -> str:
    """Return the type and the first line of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


@on_devices
def test_whole_numbers_are_not_multiplied_as_matrices() -> None:
    whole, layer = torch.ones(2, 2, dtype=torch.int64, device=cuda()), nn.Linear(2, 2).cuda()

    assert said(lambda: whole @ whole) == "NotImplementedError: \"addmm_cuda\" not implemented for 'Long'"
    assert said(lambda: torch.bmm(whole[None].int(), whole[None].int())) == (
        "NotImplementedError: \"baddbmm_cuda\" not implemented for 'Int'"
    )
    assert said(lambda: F.conv2d(whole[None, None], whole[None, None])) == (
        "RuntimeError: getCudnnDataTypeFromScalarType() not supported for Long"
    )
    assert (whole.float() @ whole.float()).tolist() == [[2, 2], [2, 2]]
    assert (whole[:0] @ whole).shape == (0, 2), "of no elements no type is asked"
    assert (whole.cpu() @ whole.cpu()).tolist() == [[2, 2], [2, 2]]
    assert layer(whole.float()).shape == (2, 2)


@on_devices
def test_a_type_without_a_kernel_is_refused_in_the_words_of_a_gpu() -> None:
    whole = torch.ones(2, 2, dtype=torch.int64, device=cuda())

    assert said(lambda: F.gelu(whole)) == "NotImplementedError: \"GeluCUDAKernelImpl\" not implemented for 'Long'"
    assert said(lambda: F.mse_loss(whole, whole)) == "NotImplementedError: \"mse_cuda\" not implemented for 'Long'"
    assert said(lambda: F.gelu(whole.cpu())) == "NotImplementedError: \"GeluKernelImpl\" not implemented for 'Long'"


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
@on_devices
def test_only_sums_are_scattered_of_types_without_atomic_products(dtype: torch.dtype) -> None:
    values, index = torch.ones(2, dtype=dtype, device=cuda()), torch.zeros(2, dtype=torch.int64, device=cuda())
    name = "Bool" if dtype is torch.bool else "ComplexFloat"
    refusal = f"NotImplementedError: \"cuda_scatter_gather_base_kernel_func\" not implemented for '{name}'"

    assert said(lambda: values.scatter_reduce(0, index, values, "prod")) == refusal
    assert said(lambda: values.scatter_(0, index, values, reduce="multiply")) == refusal
    assert said(lambda: values.scatter_(0, index, 2, reduce="multiply")) == (
        f"NotImplementedError: \"cuda_scatter_fill_base_kernel_reduce_multiply\" not implemented for '{name}'"
    )
    assert values.scatter_reduce(0, index[:0], values, "prod").tolist() == values.tolist()
    assert values.scatter_reduce(0, index, values, "sum")[0].item() == (True if dtype is torch.bool else 3)


@on_devices
def test_an_operator_that_no_gpu_has_is_not_there() -> None:
    values = torch.ones(3, device=cuda())

    assert said(lambda: torch.histogram(values, 3)).startswith(
        "NotImplementedError: Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend."
    )
    assert torch.histogram(values.cpu(), 3).hist.sum() == 3


@on_devices
def test_what_can_t_be_deterministic_raises_if_it_has_to_be() -> None:
    image = torch.ones(1, 2, 4, 4, device=cuda(), requires_grad=True)
    values, index = torch.arange(4.0, device=cuda()), torch.tensor([0, 1], device=cuda())
    torch.use_deterministic_algorithms(True)

    words = "does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."
    assert said(lambda: values.median(0)).startswith(f"RuntimeError: median CUDA with indices output {words}")
    assert said(F.adaptive_avg_pool2d(image, 2).sum().backward).startswith(
        f"RuntimeError: adaptive_avg_pool2d_backward_cuda {words}"
    )
    assert said(lambda: values.scatter_reduce(0, index, values, "prod")).startswith(
        f"RuntimeError: scatter_reduce_cuda_prod_ {words}"
    )
    assert said(lambda: torch.bincount(index, values[:2])).startswith(f"RuntimeError: _bincount_cuda {words}")
    # Only some calls of these are nondeterministic.
    assert values.median() == 1
    assert values.scatter_reduce(0, index, values, "amax").tolist() == [0, 1, 2, 3]
    assert torch.bincount(index).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("shape", "forward", "label"),
    [
        ((1, 2, 4), nn.ReplicationPad1d(1), "replication_pad1d_backward_cuda"),
        ((1, 2, 4, 4), nn.ReplicationPad2d(1), "replication_pad2d_backward_cuda"),
        ((1, 2, 4, 4), nn.Upsample(8, mode="bilinear"), "upsample_bilinear2d_backward_out_cuda"),
        ((1, 2, 4, 4, 4), nn.Upsample(8, mode="trilinear"), "upsample_trilinear3d_backward_out_cuda"),
        (
            (4, 3),
            lambda weight: F.embedding_bag(torch.tensor([[0, 1], [2, 2]], device="cuda"), weight, mode="max"),
            "embedding_bag_backward_cuda_max",
        ),
    ],
)
@on_devices
def test_a_backward_pass_can_not_be_made_deterministic_later(
    shape: tuple[int, ...], forward: Callable[[torch.Tensor], torch.Tensor], label: str
) -> None:
    made = forward(torch.ones(shape, device=cuda(), requires_grad=True))
    torch.use_deterministic_algorithms(True)

    assert said(made.sum().backward).startswith(f"RuntimeError: {label} does not have a deterministic implementation")


@on_devices
def test_an_alert_has_torch_s_own_words() -> None:
    values, place = torch.ones(2), torch.tensor([0])
    torch.use_deterministic_algorithms(True)

    def put(device: str) -> str:
        with pytest.raises(RuntimeError) as caught:
            values.to(device).put_(place.to(device), torch.ones(1).to(device))
        return str(caught.value)

    assert put("cuda") == put("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)

    def warned(device: str) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values.to(device).put_(place.to(device), torch.ones(1).to(device))
        return [str(each.message).partition(" (Triggered")[0] for each in caught]

    assert warned("cuda") == warned("cpu") != []


def test_what_a_gpu_refused_is_refused_here() -> None:
    # One test for all: torch's list of operators takes a second to import, in each process of the suite.
    kept = gpu_limits.kept()
    for name in ("mm", "median", "nn.functional.gelu", "nn.functional.adaptive_avg_pool2d"):
        here = gpu_limits.limits({name: gpu_limits.seen_simulated(name)})

        assert here["labels"] or here["alerts"], f"something is refused of {name}"
        for what, refused in here.items():
            for operator, said_here in refused.items():
                assert kept[what].get(operator) == said_here


def test_differences_are_named() -> None:
    real = {"labels": {"mm": "addmm_cuda"}, "beyond": {}, "alerts": {"put": "put_"}}
    virtual = {"labels": {"mm": "addmm_impl"}, "beyond": {}, "alerts": {}}

    assert gpu_limits.differences(real, real) == []
    assert gpu_limits.differences(real, virtual) == [
        "labels: mm: GPU addmm_cuda, virtual device addmm_impl",
        "alerts: put: GPU put_, virtual device None",
    ]


@pytest.mark.parametrize("halves_first", [True, False])
@on_devices
def test_factors_of_two_types_are_refused_in_the_words_of_a_gpu(halves_first: bool) -> None:
    one, other = torch.ones(4, 4, device=cuda(), dtype=torch.float16), torch.ones(4, 4, device=cuda())
    names, kinds = ["c10::Half", "float"], ["torch.cuda.HalfTensor", "torch.cuda.FloatTensor"]
    if not halves_first:
        one, other = other, one
        names, kinds = names[::-1], kinds[::-1]
    product = f"RuntimeError: expected mat1 and mat2 to have the same dtype, but got: {names[0]} != {names[1]}"
    convolution = f"RuntimeError: Input type ({kinds[0]}) and weight type ({kinds[1]}) should be the same"

    assert said(lambda: one @ other) == product
    assert said(lambda: F.linear(one, other)) == product
    assert said(lambda: F.linear(one, other, other[0])).startswith("RuntimeError: mat1 and mat2 must have the same")
    assert said(lambda: F.linear(one, one, other[0])).startswith("RuntimeError: self and mat2 must have the same")
    assert said(lambda: torch.bmm(one[None], other[None])).startswith("RuntimeError: expected scalar type")
    assert said(lambda: F.conv1d(one[None], other[:, :, None])) == convolution
    assert said(lambda: F.conv_transpose1d(one[None], other[:, :, None])) == convolution
    query, key = one[None, None], other[None, None]
    attention = said(lambda: F.scaled_dot_product_attention(query, key, key))
    assert attention.startswith("RuntimeError: Expected query, key, and value to have the same dtype")


@on_devices
def test_a_convolution_of_bfloat16_with_float32_is_refused_as_on_a_gpu() -> None:
    one, other = torch.ones(1, 4, 4, device=cuda(), dtype=torch.bfloat16), torch.ones(4, 4, 1, device=cuda())

    assert said(lambda: F.conv1d(one, other)) == (
        "RuntimeError: Input type (CUDABFloat16Type) and weight type (torch.cuda.FloatTensor) should be the same"
    )


@pytest.mark.parametrize(
    ("depth", "columns", "types", "refusal"),
    [
        (32, 16, ("float8_e4m3fn", "float8_e5m2"), "nothing"),
        (41, 16, ("float8_e4m3fn",) * 2, "RuntimeError: Expected trailing dimension of mat1 to be divisible by 16 but"),
        (32, 17, ("float8_e4m3fn",) * 2, "RuntimeError: mat2 shape (32x17) must be divisible by 16"),
        (32, 16, ("float8_e5m2",) * 2, "RuntimeError: Multiplication of two Float8_e5m2 matrices is not supported"),
    ],
)
@on_devices
def test_products_of_scaled_float8_have_the_limits_of_a_gpu(
    depth: int, columns: int, types: tuple[str, str], refusal: str
) -> None:
    one, other = torch.ones(3, depth, device=cuda()), torch.ones(columns, depth, device=cuda())
    narrow = [each.to(getattr(torch, name)) for each, name in zip((one, other), types, strict=True)]
    scale = torch.ones((), device=cuda())

    assert said(lambda: torch._scaled_mm(narrow[0], narrow[1].t(), scale, scale)).startswith(refusal)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "refusal"),
    [
        (17, 16, 8, "nothing"),
        (16, 16, 8, "RuntimeError: self.size(0) needs to be greater than 16, but got 16"),
        (17, 7, 8, "RuntimeError: self.size(1) needs to be greater than 0 and a multiple of 8, but got 7"),
        (17, 16, 9, "RuntimeError: mat2.size(1) needs to be greater than 0 and a multiple of 8, but got 9"),
    ],
)
@on_devices
def test_products_of_int8_have_the_limits_of_a_gpu(rows: int, depth: int, columns: int, refusal: str) -> None:
    one, other = (torch.ones(*shape, device=cuda(), dtype=torch.int8) for shape in ((rows, depth), (depth, columns)))

    assert said(lambda: torch._int_mm(one, other)) == refusal
