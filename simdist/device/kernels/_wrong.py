"""Kernels whose results are wrong: devices that compute wrongly, and report no error.

Kernels are wrapped from the first request to change their results on. One element of a result is multiplied, by a
kernel that no wrapper sees: it takes no time on a stream, and it is deferred until the result is there if that is not
computed yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from simdist.device._idle import is_idle
from simdist.device._state import kernel_changes
from simdist.device.kernels._kernels import also_wrap, unwrapped
from simdist.inside.torch import Operator, find_operator, without_functions, without_modes
from simdist.process import current_process

__all__ = ["change_kernels"]

Tensor = torch.Tensor
Kernel = Callable[..., object]


def change_kernels(place: Callable[[int, str, int], tuple[int, float] | None]) -> None:
    """After each kernel, ask `place(rank, name, size)` which element of its result is multiplied, and by what.

    `name` is the operator's, "mm", and `size` the number of elements of the first result that has floating-point
    numbers. If it returns None, no element is changed. This ends with the world.
    """
    kernel_changes().append(place)
    also_wrap(_changing)


def _changing(op: Operator, kernel: Kernel) -> Kernel:
    """Return a wrapper for `_kernels.also_wrap`: the kernel's result is changed."""
    if is_idle(op):
        return kernel
    name = op.overloadpacket.__name__

    def call(*args: object, **kwargs: object) -> object:
        made = kernel(*args, **kwargs)
        process = current_process()
        result = None if process is None else _first_numbers(made)
        if process is not None and result is not None:
            for place in kernel_changes():
                found = place(process.rank, name, result.numel())
                if found is not None:
                    _multiply(result, *found)
        return made

    return call


def _first_numbers(made: object) -> Tensor | None:
    """Return the first tensor of a device among results that has floating-point numbers."""
    for each in made if isinstance(made, (list, tuple)) else (made,):
        if isinstance(each, Tensor) and each.is_cuda and each.layout is torch.strided and _has_numbers(each):
            return each
    return None


def _has_numbers(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


def _multiply(result: Tensor, place: int, factor: float) -> None:
    """Multiply one element, counted in the logical order."""
    with torch.no_grad(), without_modes(), without_functions():
        element = result
        for size in reversed(result.shape):
            place, at = divmod(place, size)
            element = element.select(-1, at)
        _kernel_of_products()(element, torch.tensor(factor))


@functools.cache
def _kernel_of_products() -> Kernel:
    return unwrapped(find_operator("aten::mul_.Tensor"))
