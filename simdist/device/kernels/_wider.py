"""Operators for types that a GPU has kernels for and the CPU has not: computed in a wider type, and rounded.

So are convolutions and products of matrices in float16, which take many processors 10 to 90 times as long as in
float32. A GPU adds them up in float32, too. So are gradients of rows that are read many times: the CPU adds them up in
the type of the rows, where a sum of bfloat16 stands still after a few hundred ones. The others were found by the
list of operators of torch (`op_db`, which says what each takes on CUDA).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from simdist.inside.torch import Operator, full_name, schema_of

__all__ = ["KERNELS", "widened", "wider_types"]

Tensor = torch.Tensor
Kernel = Callable[..., object]
Types = Mapping[torch.dtype, torch.dtype]
_HALVES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_FLOAT16 = {torch.float16: torch.float32}
_COMPLEX = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_COMPLEX_ONLY = {torch.complex32: torch.complex64}
_WHOLE_NUMBERS = dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64)

# Half-precision complex numbers: element by element, each also in place and with `out=`; and reductions.
_OF_ONE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "rsqrt", "sigmoid", "sin"),
    *("sinh", "sqrt", "tan", "tanh"),
)
_OF_MANY = (
    *("angle", "angle.out", "div.Tensor", "div_.Tensor", "div.out", "lerp.Scalar", "lerp_.Scalar", "lerp.Scalar_out"),
    *("lerp.Tensor", "lerp_.Tensor", "lerp.Tensor_out", "logaddexp", "logaddexp.out", "sigmoid_backward"),
    *("sigmoid_backward.grad_input", "tanh_backward", "tanh_backward.grad_input", "pow.Scalar", "pow.Scalar_out"),
    *(
        f"pow{kind}"
        for each in ("Scalar", "Tensor")
        for kind in (f".Tensor_{each}", f".Tensor_{each}_out", f"_.{each}")
    ),
    *("equal", "prod", "prod.dim_int", "prod.int_out", "sum.dim_IntList", "sum.IntList_out", "nansum", "nansum.out"),
)
_SLOW = (
    *("aten::convolution", "aten::convolution_backward"),
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
)
# Sums over the rows of equal indices (native/cuda/Embedding.cu, EmbeddingBag.cu, Indexing.cu, torch 2.13).
_ADDED = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward", "aten::_index_put_impl_")
_TYPES: dict[str, Types] = {
    **{f"aten::{name}{form}": _COMPLEX_ONLY for name in _OF_ONE for form in ("", "_", ".out")},
    **{f"aten::{name}": _COMPLEX_ONLY for name in _OF_MANY},
    **dict.fromkeys(("aten::angle", "aten::angle.out"), _COMPLEX),
    **dict.fromkeys(
        (
            *("aten::avg_pool3d", "aten::avg_pool3d_backward"),
            *("aten::_upsample_bilinear2d_aa", "aten::_upsample_bilinear2d_aa_backward"),
            *("aten::_upsample_bicubic2d_aa", "aten::_upsample_bicubic2d_aa_backward"),
            *("aten::multi_margin_loss", "aten::multi_margin_loss_backward"),
            *("aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward"),
            *("aten::rrelu_with_noise", "aten::binomial", "aten::_sample_dirichlet"),
            *("aten::_standard_gamma", "aten::_standard_gamma_grad"),  # native/cuda/Distributions.cu
        ),
        _HALVES,
    ),
    **dict.fromkeys(("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"), _COMPLEX),
    **dict.fromkeys(_SLOW, _FLOAT16),
    **dict.fromkeys(_ADDED, _HALVES),
    "aten::histc": _WHOLE_NUMBERS,
    "aten::trace": {**_HALVES, **_COMPLEX_ONLY},
}


def wider_types(name: str) -> Types:
    """Return the types that an operator computes in wider ones."""
    return _TYPES.get(name, {})


def widened(op: Operator, usual: Kernel) -> Kernel:
    """Wrap an operator's call on CPU tensors: it computes the types of `wider_types` in wider ones."""
    types = wider_types(full_name(op))
    if not types:
        return usual
    assigns, of_one_type = full_name(op) == "aten::_index_put_impl_", full_name(op) in _SLOW
    written = [(place, each.name) for place, each in enumerate(schema_of(op).arguments) if each.alias_info is not None]

    def widen(value: object) -> Any:
        return value.to(types[value.dtype]) if isinstance(value, Tensor) and value.dtype in types else value

    def kernel(*args: Any, **kwargs: Any) -> object:
        said = kwargs.get("dtype")
        if assigns and not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
            return usual(*args, **kwargs)
        for first in args:
            if isinstance(first, Tensor) and first.dtype in types:
                break
        else:
            if said not in types:
                return usual(*args, **kwargs)  # hot
        if of_one_type and any(isinstance(each, Tensor) and each.dtype is not first.dtype for each in args):
            return usual(*args, **kwargs)  # refuses it
        given = [widen(each) for each in args]
        named = {name: widen(each) for name, each in kwargs.items()}
        if said is not None:
            named["dtype"] = types.get(said, said)
        result = usual(*given, **named)
        for place, name in written:
            was, now = (args[place], given[place]) if place < len(args) else (kwargs[name], named[name])
            if was is not now:
                _fill(was, now)
        narrow = said or _result_type(first, [each for each in args if isinstance(each, Tensor)])
        back = {wide: each for each, wide in types.items() if each is narrow or each.is_complex != narrow.is_complex}
        if narrow not in types:
            return result
        return tuple(_narrowed(each, back) for each in result) if isinstance(result, tuple) else _narrowed(result, back)

    return kernel


def _fill(tensor: Tensor, made: Tensor) -> None:
    if tensor.shape != made.shape:
        tensor.resize_(made.shape)
    tensor.copy_(made)


def _result_type(first: Tensor, tensors: list[Tensor]) -> torch.dtype:
    """Return the type that the results of an operator with these tensors have."""
    return next(
        (kind for kind in (torch.result_type(first, each) for each in tensors) if kind is not first.dtype), first.dtype
    )


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
