"""Kernels written in Triton run on virtual devices, by Triton's interpreter."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import simdist
from tests.device.worlds import cuda, on_devices, values

triton: Any = pytest.importorskip("triton", reason="the extra 'programs' has Triton")
tl: Any = pytest.importorskip("triton.language")
pytestmark = pytest.mark.filterwarnings("ignore")
HALF = torch.bfloat16


def _plus(one, other):  # type: ignore[no-untyped-def]  # Triton reads annotations its own way
    return one + other


def _add(one, other, into, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    here = at < count
    tl.store(into + at, plus(tl.load(one + at, mask=here), tl.load(other + at, mask=here)), mask=here)


def _products(one, other, product, mixed, sums, chosen, converted, size: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.arange(0, size)
    at = row[:, None] * size + row[None, :]
    a, b = tl.load(one + at), tl.load(other + at)
    tl.store(product + at, tl.dot(a, b, tl.zeros((size, size), dtype=tl.float32)))
    tl.store(mixed + at, a * b - a)
    tl.store(sums + row, tl.sum(a, axis=1))
    tl.store(chosen + at, tl.where(a > b, a, b))
    tl.store(converted + at, (row[:, None] + a.to(tl.float32) * 3).to(tl.bfloat16))


plus: Any = triton.jit(_plus)
configurations = [triton.Config({"block": 32}), triton.Config({"block": 64})]
add: Any = triton.autotune(configs=configurations, key=["count"])(triton.jit(_add))
products: Any = triton.jit(_products)


@on_devices
def test_a_kernel_computes_what_it_says() -> None:
    one, other = (torch.randn(100, device=cuda(1)) for _ in range(2))
    into = torch.empty_like(one)

    add[lambda meta: (triton.cdiv(100, meta["block"]),)](one, other, into, 100)

    assert torch.equal(into, one + other)
    assert add.best_config.kwargs == {"block": 32}  # the first one: there is no timing


@on_devices
def test_bfloat16_is_computed_in_single_precision() -> None:
    a, b = (torch.randn(16, 16, device=cuda(1), dtype=HALF) for _ in range(2))
    product = torch.empty(16, 16, device=cuda(1))
    mixed, chosen, converted = (torch.empty(16, 16, device=cuda(1), dtype=HALF) for _ in range(3))
    sums = torch.empty(16, device=cuda(1), dtype=HALF)

    products[(1,)](a, b, product, mixed, sums, chosen, converted, 16, num_warps=4)

    assert torch.allclose(product, a.float() @ b.float(), atol=1e-5)
    assert torch.equal(mixed, a * b - a)
    assert torch.allclose(sums, a.sum(1), rtol=1e-2, atol=1e-2)
    assert torch.equal(chosen, torch.maximum(a, b))
    assert torch.equal(converted, (torch.arange(16, device=cuda(1))[:, None] + a.float() * 3).to(HALF))


def test_a_kernel_is_triton_s_own_again_after_the_world() -> None:
    runs = sys.modules["triton.runtime.jit"].JITFunction.run

    def body() -> bool:
        assert sys.modules["triton.runtime.jit"].JITFunction.run is not runs
        with pytest.raises(RuntimeError, match="Cannot call @triton\\.jit'd outside of the scope of a kernel"):
            plus(1, 2)
        return True

    assert simdist.run(body, world_size=1).values == [True]
    assert sys.modules["triton.runtime.jit"].JITFunction.run is runs


def test_triton_finds_no_driver_on_ranks_with_devices() -> None:
    driver = pytest.importorskip("triton.backends.nvidia.driver").CudaDriver

    def body() -> tuple[bool, bool]:
        return torch.cuda.is_available(), driver.is_active()  # it asks for libcuda.so if torch has devices

    assert values(body) == [(True, False)]
