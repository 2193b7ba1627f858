"""Calls that a GPU's kernels take and the CPU's refuse or round away: what is computed in place of the CPU's operator.

In doubt: read in torch's sources and in its list of operators, not measured on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simdist.device.kernels._deferred import launching
from simdist.inside.torch import Operator, calling, find_operator, full_name

__all__ = ["KERNELS", "extended", "types_beyond"]

Tensor = torch.Tensor
Call = Callable[..., Any]
_check_errors = calling(find_operator("aten::_linalg_check_errors"))
_COMPLEX = (torch.complex64, torch.complex128)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_ALL_FLOATS = (torch.float32, torch.float64, *_COMPLEX)


def _into(out: Tensor, made: Tensor) -> Tensor:
    if out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)


def _abs(call: Call) -> Call:
    def absolute(self: Tensor, *, out: Tensor) -> Tensor:
        """Return truth values as they are (AbsKernel.cu)."""
        return _into(out, self)

    return absolute


def _trace(call: Call) -> Call:
    def trace(self: Tensor) -> Tensor:
        """Count truth values: a GPU's trace is the sum of the diagonal (TriangularOps.cu)."""
        result: Tensor = self.diagonal().sum() if self.dim() == 2 else call(self)
        return result

    return trace


def _nansum(call: Call) -> Call:
    def nansum(
        self: Tensor,
        dim: list[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        made = self.masked_fill(self.isnan(), 0).sum(dim, keepdim, dtype=dtype)
        return made if out is None else _into(out, made)

    return nansum


def _exponential(call: Call) -> Call:
    def exponential(self: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw no number below the least one of a GPU, which draws in single precision (TransformationHelper.h)."""
        call(self, lambd, generator=generator)
        return self.masked_fill_(self == 0, torch.finfo(torch.float32).eps / 2 / lambd)

    return exponential


def _by_zero(call: Call, *, remains: bool) -> Call:
    """Divide whole numbers by zero without an error: all bits of the results are ones.

    But the remainders of numbers of 64 bits that are not negative have zeros in the upper half (torch's test
    `test_fmod_remainder_by_zero_integral`).

    In doubt: quotients, of which torch's tests say nothing.
    """

    def divide(self: Any, other: Any, **kwargs: Any) -> object:
        dtype = torch.result_type(self, other)
        if dtype not in _WHOLE or kwargs.get("rounding_mode", "") is None:
            return call(self, other, **kwargs)
        zeros = torch.as_tensor(other) == 0
        if not zeros.any():
            return call(self, other, **kwargs)
        ones = 255 if dtype is torch.uint8 else -1
        wanted = torch.full_like(zeros, ones, dtype=dtype)
        if remains and dtype is torch.int64:
            wanted = torch.where(torch.as_tensor(self) >= 0, (1 << 32) - 1, wanted)
        result = call(self, torch.where(zeros, 1, other) if isinstance(other, Tensor) else 1, **kwargs)
        return result.copy_(torch.where(zeros, wanted, result))

    return divide


def _factors(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return both factors in one matrix, pivots that exchange nothing, and where a pivot is zero first."""
    rows, columns = matrix.shape[-2:]
    least = min(rows, columns)
    made = matrix.mT.contiguous().mT.clone()  # column by column, as cuSOLVER has it
    for place in range(least):
        rest = slice(place + 1, None)
        made[..., rest, place] /= made[..., place, place, None]
        made[..., rest, rest] -= made[..., rest, place, None] * made[..., place, None, rest]
    zeros = made.diagonal(dim1=-2, dim2=-1) == 0
    first = zeros.int().argmax(-1) + 1 if least else torch.zeros(matrix.shape[:-2], dtype=torch.int64)
    pivots = torch.arange(1, least + 1, dtype=torch.int32).expand(*matrix.shape[:-2], least).contiguous()
    return made, pivots, torch.where(zeros.any(-1), first, 0).int()


def _lu_factor(call: Call) -> Call:
    def factor(A: Tensor, *, pivot: bool = True, check_errors: bool = False, **out: Tensor) -> object:
        if pivot:
            return call(A, pivot=pivot, check_errors=check_errors, **out)
        made = _factors(A)
        if check_errors:
            _check_errors(made[2], "torch.linalg.lu_factor_ex", is_matrix=A.dim() == 2)
        return tuple(map(_into, out.values(), made)) if out else made

    return factor


def _lu(call: Call) -> Call:
    def lu(A: Tensor, *, pivot: bool = True, **out: Tensor) -> object:
        if pivot:
            return call(A, pivot=pivot, **out)
        factors = _factors(A)[0]
        least = min(factors.shape[-2:])
        lower = factors[..., :, :least].tril(-1)
        lower.diagonal(dim1=-2, dim2=-1).fill_(1)
        made = factors.new_empty(0), lower, factors[..., :least, :].triu()
        return tuple(map(_into, out.values(), made)) if out else made

    return lu


def _gradients_of_convolution(call: Call) -> Call:
    """Leave out two kernels of oneDNN (torch 2.13).

    One destroys the process's memory: it computes gradients of weights of one by one pixel for few channels, where
    these come last and pixels are skipped. The other adds up the bias's gradient one by one, so that of a large picture
    three digits are right; for a GPU torch calls `sum`.
    """

    def gradients(
        grad: Tensor, input: Tensor, weight: Tensor, sizes: object, stride: list[int], *rest: Any
    ) -> tuple[Tensor | None, ...]:
        *settings, wanted = rest
        found: tuple[Tensor | None, ...] = (None, None)
        if wanted[0] or wanted[1]:
            settings.append([*wanted[:2], False])
            if max(stride) == 1 or weight.shape[1] >= _FEW_CHANNELS or weight.shape[2:].numel() > 1:
                found = call(grad, input, weight, sizes, stride, *settings)
            else:
                usual = [each.clone(memory_format=torch.contiguous_format) for each in (grad, input, weight)]
                found = tuple(
                    each if each is None or each.stride() == like.stride() else torch.empty_like(like).copy_(each)
                    for each, like in zip(call(*usual, sizes, stride, *settings), (input, weight), strict=False)
                )
        return *found[:2], grad.sum([0, *range(2, grad.dim())]) if wanted[2] else None

    return gradients


_FEW_CHANNELS = 16
# By operator: the types of its first tensor for which it differs, and how the CPU's call is extended.
_CALLS: dict[str, tuple[tuple[torch.dtype, ...], Callable[[Call], Call]]] = {
    "aten::abs.out": ((torch.bool,), _abs),
    "aten::trace": ((torch.bool,), _trace),
    "aten::nansum": (_COMPLEX, _nansum),
    "aten::nansum.out": (_COMPLEX, _nansum),
    "aten::exponential_": ((torch.float16,), _exponential),
    "aten::convolution_backward": ((torch.float32, torch.float16, torch.bfloat16), _gradients_of_convolution),
    **{
        f"aten::{base}{form}": (_WHOLE, functools.partial(_by_zero, remains=True))
        for base in ("remainder", "fmod")
        for form in (".Tensor", "_.Tensor", ".Tensor_out")
    },
    "aten::remainder.Scalar_Tensor": (_WHOLE, functools.partial(_by_zero, remains=True)),
    **{
        f"aten::{name}": (_WHOLE, functools.partial(_by_zero, remains=False))
        for name in (
            *("floor_divide", "floor_divide_.Tensor", "floor_divide.out"),
            *("div.Tensor_mode", "div_.Tensor_mode", "div.out_mode"),
        )
    },
    "aten::linalg_lu_factor_ex": (_ALL_FLOATS, _lu_factor),
    "aten::linalg_lu_factor_ex.out": (_ALL_FLOATS, _lu_factor),
    "aten::linalg_lu": (_ALL_FLOATS, _lu),
    "aten::linalg_lu.out": (_ALL_FLOATS, _lu),
}


def types_beyond(name: str) -> tuple[torch.dtype, ...]:
    """Return the types of an operator's first tensor for which it is not just the CPU's."""
    return _CALLS[name][0] if name in _CALLS else ()


def extended(op: Operator, call: Call) -> Call:
    """Return a call on CPU tensors that takes what a GPU takes."""
    name = full_name(op)
    if name not in _CALLS:
        return call
    types, extend = _CALLS[name]
    more = extend(call)

    def either(*args: Any, **kwargs: object) -> object:
        first = next(each for each in args if isinstance(each, Tensor))
        return (more if first.dtype in types else call)(*args, **kwargs)

    return either


# -- operators that only a build with cuDNN has -----------------------------------------------------------------------


def _convolution(
    input: Tensor, weight: Tensor, padding: list[int], stride: list[int], dilation: list[int], groups: int, *_: bool
) -> Tensor:
    return torch.convolution(input, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _transposed_convolution(
    input: Tensor,
    weight: Tensor,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    *_: bool,
) -> Tensor:
    return torch.convolution(input, weight, None, stride, padding, dilation, True, output_padding, groups)


KERNELS: dict[str, Callable[..., object]] = {
    name: launching(find_operator(name), function)
    for name, function in (
        ("aten::cudnn_convolution", _convolution),
        ("aten::cudnn_convolution_transpose", _transposed_convolution),
    )
}
