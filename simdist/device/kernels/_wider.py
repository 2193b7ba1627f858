"""Operators for types that a GPU has kernels for and the CPU has not: computed in a wider type, and rounded.

They were found by torch's own list of operators (`op_db`, which says what each takes on CUDA). Half-precision complex
numbers have few kernels on the CPU; only their Fourier transforms are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from simdist.inside.torch import Operator, schema_of

__all__ = ["KERNELS", "TYPES", "widened"]

Tensor = torch.Tensor
Kernel = Callable[..., object]
Types = Mapping[torch.dtype, torch.dtype]
_HALVES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_COMPLEX = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_WHOLE_NUMBERS = dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64)

TYPES: dict[str, Types] = {
    **dict.fromkeys(
        (
            *("aten::avg_pool3d", "aten::avg_pool3d_backward"),
            *("aten::_upsample_bilinear2d_aa", "aten::_upsample_bilinear2d_aa_backward"),
            *("aten::_upsample_bicubic2d_aa", "aten::_upsample_bicubic2d_aa_backward"),
            *("aten::multi_margin_loss", "aten::multi_margin_loss_backward"),
            *("aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward"),
            "aten::rrelu_with_noise",
        ),
        _HALVES,
    ),
    **dict.fromkeys(("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"), _COMPLEX),
    "aten::histc": _WHOLE_NUMBERS,
    "aten::trace": _HALVES,
}


def widened(op: Operator, usual: Kernel, types: Types) -> Kernel:
    """Wrap the kernel of an operator: it computes types that are keys of `types` in the wider types of those keys."""
    written = [place for place, each in enumerate(schema_of(op).arguments) if each.alias_info is not None]

    def widen(value: object) -> object:
        return value.to(types[value.dtype]) if isinstance(value, Tensor) and value.dtype in types else value

    def kernel(*args: Any, **kwargs: object) -> object:
        narrow = next((each.dtype for each in args if isinstance(each, Tensor) and each.dtype in types), None)
        if narrow is None:
            return usual(*args, **kwargs)
        back = {wide: each for each, wide in types.items() if each is narrow or each.is_complex != narrow.is_complex}
        given = [widen(each) for each in args]
        result = usual(*given, **{name: widen(each) for name, each in kwargs.items()})
        for place in written:
            if given[place] is not args[place]:
                args[place].copy_(given[place])
        if isinstance(result, tuple):
            return tuple(_narrowed(each, back) for each in result)
        return _narrowed(result, back)

    return kernel


def _narrowed(value: object, types: Types) -> object:
    return value.to(types[value.dtype]) if isinstance(value, Tensor) and value.dtype in types else value


# Products whose sums are kept in a wider type (cuBLAS).
def _mm(one: Tensor, other: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.mm(one.to(out_dtype), other.to(out_dtype))


def _bmm(one: Tensor, other: Tensor, out_dtype: torch.dtype) -> Tensor:
    return torch.bmm(one.to(out_dtype), other.to(out_dtype))


def _addmm(added: Tensor, one: Tensor, other: Tensor, out_dtype: torch.dtype, **factors: Any) -> Tensor:
    return torch.addmm(added.to(out_dtype), one.to(out_dtype), other.to(out_dtype), **factors)


def _baddbmm(added: Tensor, one: Tensor, other: Tensor, out_dtype: torch.dtype, **factors: Any) -> Tensor:
    return torch.baddbmm(added.to(out_dtype), one.to(out_dtype), other.to(out_dtype), **factors)


def _into(make: Callable[..., Tensor]) -> Kernel:
    def kernel(*args: object, out: Tensor, **kwargs: object) -> Tensor:
        return out.copy_(make(*args, **kwargs))

    return kernel


_PRODUCTS: dict[str, Callable[..., Tensor]] = {"mm": _mm, "bmm": _bmm, "addmm": _addmm, "baddbmm": _baddbmm}
KERNELS: dict[str, Kernel] = {
    **{f"aten::{name}.dtype": product for name, product in _PRODUCTS.items()},
    **{f"aten::{name}.dtype_out": _into(product) for name, product in _PRODUCTS.items()},
}
