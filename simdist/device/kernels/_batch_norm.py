"""Batch norm: the kernels of `torch.nn.SyncBatchNorm`, which only devices have, and the types that the usual ones take.

GPUs take halves with parameters and statistics of either type, where the CPU wants these to be alike; in backward they
refuse some combinations, in words of their own (native/cuda/Normalization.cu and .cuh, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from simdist.device.kernels._deferred import launching
from simdist.inside.torch import find_operator

__all__ = ["HALVES", "KERNELS", "TYPE_WORDS", "single"]

Tensor = torch.Tensor


def _wide(tensor: Tensor) -> Tensor:
    """Return half precision as single, in which it is added up."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """Return one value for each channel, in the shape of a batch."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _others(tensor: Tensor) -> list[int]:
    return [place for place in range(tensor.dim()) if place != 1]


def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    data = _wide(input)
    if data.numel():
        mean, variance = torch.batch_norm_update_stats(data, None, None, 0.0)  # the same bits in a third of the time
    else:
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
    average, spread = mean.new_zeros(mean.shape[1]), mean.new_zeros(mean.shape[1])
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


def _gather_equal(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """As `_gather_stats`, where all have counted the same number."""
    counts = mean.new_full(mean.shape[:1], count)
    return _gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _element(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    # In place from the first step on: batches are large, and fresh memory costs more than the arithmetic.
    found = (_wide(input) - _spread(mean, input)).mul_(_spread(invstd, input))
    if weight is not None:
        found = found.mul_(_spread(weight, input))
    if bias is not None:
        found = found.add_(_spread(bias, input))
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
    products = (_wide(input) - _spread(mean, input)).mul_(grad).sum(_others(grad))
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
    found = (_wide(input) - _spread(mean, input)).mul_(slope)
    found = torch.sub(_wide(grad), found, out=found).sub_(_spread(sums / number, input))
    scale = invstd if weight is None else invstd * weight
    return found.mul_(_spread(scale, input)).to(input.dtype)


HALVES = (torch.float16, torch.bfloat16)
TYPE_WORDS = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
_aten = torch.ops.aten


def single(tensor: Tensor | None) -> Tensor | None:
    """Return a tensor in single precision, or None for None."""
    return None if tensor is None else tensor.float()


def _is_mixed(others: list[Tensor | None]) -> bool:
    """True for parameters and statistics that are not of one type."""
    return len({each.dtype for each in others if each is not None}) > 1


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    given = [weight, bias, running_mean, running_var]
    for name, each in (("weight", weight), ("bias", bias)):
        if each is not None and input.dtype not in (*HALVES, each.dtype) and each.dtype in TYPE_WORDS:
            expected, found = TYPE_WORDS[input.dtype], TYPE_WORDS[each.dtype]
            if _channels_last(input):
                raise RuntimeError(f"expected scalar type {expected} but found {found}")
            raise RuntimeError(f"Expected {name} to have type {expected} but got {found}")
    wide = [single(each) for each in given] if input.dtype in HALVES else given
    if input.dtype in HALVES and weight is None:
        wide[0] = torch.ones(input.shape[1])  # the CPU keeps statistics in single precision for such parameters
    out, *saved = _aten.native_batch_norm(input, *wide, training, momentum, eps)
    if not training:  # a GPU returns those that it has used; the CPU's kernel has refused a call without them
        saved = [wide[2].clone(), torch.rsqrt(wide[3] + eps)]  # type: ignore[union-attr,operator,arg-type]
    for narrow, each in zip(given[2:], wide[2:], strict=True):
        if narrow is not None and each is not narrow and training:
            narrow.copy_(each)  # type: ignore[arg-type]  # neither is None
    return out, *saved


def _of_batches(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> object:
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)


def _with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> object:
    found = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, torch.empty(0, dtype=torch.uint8)  # cuDNN keeps something there


def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> object:
    op = _aten.native_batch_norm_backward
    given = [weight, running_mean, running_var]
    rest = train, eps, output_mask
    if input.dtype not in HALVES:
        return op(grad_out, input, *given, save_mean, save_invstd, *rest)
    first = next((each.dtype for each in given if each is not None), None)
    in_one_kernel = (
        _is_mixed(given)
        and output_mask[0]
        and (train or output_mask[1] or output_mask[2])
        and not _channels_last(input)
    )
    if in_one_kernel:
        expected = input.dtype if first is input.dtype else torch.float32
        for name, each in zip(("weight", "running_mean", "running_var"), given, strict=True):
            if each is not None and each.dtype is not expected:
                raise RuntimeError(
                    f"Expected {name} to have type {TYPE_WORDS[expected]} but got {TYPE_WORDS[each.dtype]}"
                )
    wide = [single(each) for each in (*given, save_mean, save_invstd)]
    if weight is None:
        wide[0] = torch.ones(input.shape[1])
    grad_input, *of_parameters = op(grad_out, input, *wide, *rest)
    kind = torch.float32 if weight is None else weight.dtype
    return grad_input, *(None if each is None else each.to(kind) for each in of_parameters)


def _channels_last(input: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()]):
        return True
    return input.is_contiguous() and input.stride(1) == 1


_FUNCTIONS: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {  # with the places of running statistics
    "native_batch_norm": (_batch_norm, (3, 4)),
    "_native_batch_norm_legit": (_batch_norm, (3, 4)),
    "_native_batch_norm_legit.no_stats": (_of_batches, ()),
    "_batch_norm_with_update": (_with_update, (3, 4)),
    "native_batch_norm_backward": (_batch_norm_backward, ()),
    "batch_norm_stats": (_stats, ()),
    "batch_norm_gather_stats_with_counts": (_gather_stats, (3, 4)),
    "batch_norm_gather_stats": (_gather_equal, (3, 4)),
    "batch_norm_elemt": (_element, ()),
    "batch_norm_backward_reduce": (_reduce, ()),
    "batch_norm_backward_elemt": (_backward, ()),
}
KERNELS: dict[str, Callable[..., object]] = {
    f"aten::{name}": launching(find_operator(f"aten::{name}"), function, writes=writes)
    for name, (function, writes) in _FUNCTIONS.items()
}


def _into(name: str) -> Callable[..., object]:
    """Return the kernel of a form with outputs: statistics are of another type than the CPU's kernel would write."""
    make = find_operator(f"aten::{name}")

    def kernel(*args: object, **outputs: Tensor) -> object:
        for output, made in zip(outputs.values(), make(*args), strict=True):
            output.resize_(made.shape).copy_(made)
        return tuple(outputs.values())

    return kernel


KERNELS.update(
    {
        "aten::native_batch_norm.out": _into("native_batch_norm"),
        "aten::_native_batch_norm_legit.out": _into("_native_batch_norm_legit"),
        "aten::_native_batch_norm_legit.no_stats_out": _into("_native_batch_norm_legit.no_stats"),
    }
)
