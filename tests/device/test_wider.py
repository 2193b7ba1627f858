"""Operators of a GPU for types without a CPU kernel: the same numbers, computed in a wider type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.device.worlds import cuda, on_devices

Tensor = torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "compute"),
    [
        ((1, 2, 4, 4, 4), lambda data: F.avg_pool3d(data, 2)),
        ((1, 2, 8, 8), lambda data: F.interpolate(data, size=3, mode="bilinear", antialias=True)),
        ((1, 2, 8, 8), lambda data: F.interpolate(data, size=3, mode="bicubic", antialias=True)),
        ((4, 5), lambda data: F.multi_margin_loss(data, torch.arange(4, device=data.device))),
        ((2, 5), lambda data: F.multilabel_margin_loss(data, torch.arange(10, device=data.device).view(2, 5) % 5)),
        ((4, 5), lambda data: F.rrelu(data, 0.25, 0.25, training=True)),
    ],
    ids=["avg_pool3d", "bilinear", "bicubic", "multi_margin", "multilabel_margin", "rrelu"],
)
@on_devices
def test_halves_are_computed_in_single_precision(
    shape: tuple[int, ...], compute: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    data = torch.randn(shape).to(dtype)
    narrow, wide = data.to(cuda(1)).requires_grad_(), data.float().requires_grad_()

    made, expected = compute(narrow), compute(wide)
    made.sum().backward()
    expected.sum().backward()

    assert made.dtype is dtype
    assert torch.allclose(made.float().cpu(), expected, rtol=1e-2)
    assert narrow.grad is not None
    assert wide.grad is not None
    assert narrow.grad.dtype is dtype
    assert torch.allclose(narrow.grad.float().cpu(), wide.grad, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "compute",
    [
        lambda one, other: F.conv2d(one.view(4, 4, 8, 8), other.view(4, 4, 8, 8)[..., :3, :3], padding=1),
        lambda one, other: F.linear(one.view(32, 32), other.view(32, 32), other[:32]),
        lambda one, other: one.view(32, 32) @ other.view(32, 32),
        lambda one, other: torch.bmm(one.view(4, 16, 16), other.view(4, 16, 16)),
        lambda one, other: torch.baddbmm(one.view(4, 16, 16), one.view(4, 16, 16), other.view(4, 16, 16)),
    ],
    ids=["convolution", "addmm", "mm", "bmm", "baddbmm"],
)
@on_devices
def test_products_of_halves_are_those_of_floats_rounded(compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    halves = [torch.randn(1024).half() for _ in range(2)]
    narrow = [each.to(cuda(1)).requires_grad_() for each in halves]
    wide = [each.float().requires_grad_() for each in halves]

    made, expected = compute(*narrow), compute(*wide)
    made.sum().backward()
    expected.sum().backward()

    assert torch.equal(made.cpu(), expected.half())
    assert made.is_contiguous()
    for one, other in zip(narrow, wide, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad.float().cpu(), other.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@on_devices
def test_whole_numbers_are_counted(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0, 1, 1, 3, 7, 8, 7], dtype=dtype, device=cuda(1))

    counts = torch.histc(numbers, bins=8, min=0, max=8)

    assert counts.dtype is dtype
    assert counts.tolist() == [1, 2, 0, 1, 0, 0, 0, 3]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@on_devices
def test_fourier_transforms_of_halves() -> None:
    wave = torch.tensor([1.0, 0.0, -1.0, 0.0], device=cuda(1), dtype=torch.float16)

    spectrum = torch.fft.rfft(wave)

    assert spectrum.dtype is torch.complex32
    assert spectrum.to(torch.complex64).tolist() == [0, 2, 0]
    assert torch.fft.irfft(spectrum).tolist() == wave.tolist()
    assert torch.fft.fft(wave).dtype is torch.complex32


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@on_devices
def test_complex_numbers_of_half_precision() -> None:
    numbers = torch.tensor([[1 + 2j, -0.5j], [2, 0.25]], device=cuda(1), dtype=torch.complex32)
    wide = numbers.to(torch.complex64)
    made = torch.empty(0, dtype=torch.complex32, device=cuda(1))

    torch.exp(numbers, out=made)

    assert torch.equal(made, wide.exp().to(torch.complex32))
    assert torch.equal(numbers.clone().exp_(), made)
    assert torch.equal((wide / 4) ** 2, ((numbers / 4) ** 2).to(torch.complex64))
    assert numbers.angle().dtype is torch.float16
    assert numbers.sum().dtype is torch.complex32
    assert numbers.sum(dtype=torch.complex64).dtype is (numbers / wide).dtype is torch.complex64
    assert numbers.prod(0).tolist() == [2 + 4j, -0.125j]


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "remainder": lambda data: data % 5,
    "remainder in place": lambda data: data.clone().remainder_(5),
    "of a number": lambda data: 5 % (data + 1),
    "fmod": lambda data: data.fmod(5),
    "xor": lambda data: data ^ 5,
    "copysign": lambda data: data.float().copysign(-1.0),
    "xlogy": lambda data: torch.xlogy(data.double(), 2.7),
    "zeta": lambda data: torch.special.zeta(data.float() + 2, 2.5),
}


@pytest.mark.parametrize("name", NUMBERS)
@on_devices
def test_a_number_stands_for_a_tensor(name: str) -> None:
    data = torch.arange(10)

    made = NUMBERS[name](data.to(cuda(1)))

    assert made.dtype is NUMBERS[name](data).dtype
    assert torch.equal(made.cpu(), NUMBERS[name](data))


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
@on_devices
def test_products_can_keep_sums_in_a_wider_type(name: str) -> None:
    product: Any = getattr(torch, name)
    batch = (3,) if "bmm" in name else ()
    one, other = (torch.randn(*batch, 4, 4, device=cuda(1), dtype=torch.bfloat16) for _ in range(2))
    added = [torch.ones(*batch, 4, 4, device=cuda(1), dtype=torch.bfloat16)] if "add" in name else []

    made = product(*added, one, other, out_dtype=torch.float32)
    into = torch.empty_like(made)
    product(*added, one, other, out_dtype=torch.float32, out=into)

    assert made.dtype is torch.float32
    assert torch.equal(made, product(*(each.float() for each in (*added, one, other))))
    assert torch.equal(into, made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@on_devices
def test_halves_are_drawn_from_distributions(dtype: torch.dtype) -> None:
    given = torch.full((4,), 2.0, device=cuda(1), dtype=dtype, requires_grad=True)
    distributions = torch.distributions

    drawn = [
        distributions.Gamma(given, given).rsample(),
        distributions.Dirichlet(given.detach()).sample(),
        torch.binomial(given.detach(), given.detach() / 4),
    ]
    drawn[0].sum().backward()

    assert [each.dtype for each in drawn] == [dtype] * 3
    assert given.grad is not None
    assert given.grad.isfinite().all()
