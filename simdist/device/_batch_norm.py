"""The kernels of `torch.nn.SyncBatchNorm`, which exist on devices only (native/cuda/Normalization.cuh, torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simdist.device._aliases import account_holding, host, raised
from simdist.device._state import account_of

__all__ = ["KERNELS"]

Tensor = torch.Tensor


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """On CPU tensors over the same memory; what it makes is put on the device."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        account = account_holding(first) or account_of(first.get_device())
        lowered = [host(each) if isinstance(each, Tensor) and each.is_cuda else each for each in args]
        named = {
            name: host(each) if isinstance(each, Tensor) and each.is_cuda else each for name, each in kwargs.items()
        }
        made = function(*lowered, **named)
        if isinstance(made, Tensor):
            return raised(made, account)
        return tuple(None if each is None else raised(each, account) for each in made)

    return kernel


def _wide(tensor: Tensor) -> Tensor:
    """Half precision is added up in single."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One value for each channel, in the shape of a batch."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _others(tensor: Tensor) -> list[int]:
    return [place for place in range(tensor.dim()) if place != 1]


def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    data = _wide(input)
    variance, mean = torch.var_mean(data, _others(data), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    average, spread = torch.zeros_like(mean[0]), torch.zeros_like(mean[0])
    number = 0.0
    for row, count in enumerate(counts.tolist()):
        factor = 1.0 / (number + count)
        squares = (1.0 / invstd[row] ** 2 - eps) * count
        spread = spread + squares + (average - mean[row]) ** 2 * (number * count * factor)
        average = number * factor * average + count * factor * mean[row]
        number += count
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * average)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * spread / (number - 1))
    return average, torch.rsqrt(spread / number + eps)


def _element(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    found = (_wide(input) - _spread(mean, input)) * _spread(invstd, input)
    if weight is not None:
        found = found * _spread(weight, input)
    if bias is not None:
        found = found + _spread(bias, input)
    return found.to(input.dtype)


def _reduce(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    grad = _wide(grad)
    sums = grad.sum(_others(grad))
    products = (grad * (_wide(input) - _spread(mean, input))).sum(_others(grad))
    kind = products.dtype if weight is None else weight.dtype
    return (
        sums if input_g else None,
        products if input_g else None,
        (products * invstd).to(kind) if weight_g else None,
        sums.to(kind) if bias_g else None,
    )


def _backward(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sums: Tensor,
    products: Tensor,
    counts: Tensor,
) -> Tensor:
    number = counts.sum()
    slope = _spread(products / number * invstd**2, input)
    found = _wide(grad) - _spread(sums / number, input) - (_wide(input) - _spread(mean, input)) * slope
    scale = invstd if weight is None else invstd * weight
    return (found * _spread(scale, input)).to(input.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::batch_norm_stats": _kernel(_stats),
    "aten::batch_norm_gather_stats_with_counts": _kernel(_gather_stats),
    "aten::batch_norm_elemt": _kernel(_element),
    "aten::batch_norm_backward_reduce": _kernel(_reduce),
    "aten::batch_norm_backward_elemt": _kernel(_backward),
}
