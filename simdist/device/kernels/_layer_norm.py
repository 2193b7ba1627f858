"""Layer norm and group norm: the types that a GPU takes (native/cuda/layer_norm_kernel.cu, torch 2.13).

A GPU wants parameters of the input's type, where the CPU takes halves with parameters of single precision. It keeps the
statistics of layer norm in single precision, and the CPU only for such parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from simdist.device.kernels._batch_norm import HALVES, TYPE_WORDS, single
from simdist.device.kernels._deferred import launching
from simdist.inside.torch import find_operator

__all__ = ["KERNELS"]

Tensor = torch.Tensor
_aten = torch.ops.aten


def _layer_norm(input: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> object:
    _require_one_type(input, weight, bias)
    if input.dtype not in HALVES:
        return _aten.native_layer_norm(input, shape, weight, bias, eps)
    wide = torch.ones(tuple(shape)) if weight is None else weight.float()
    return _aten.native_layer_norm(input, shape, wide, single(bias), eps)


def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> object:
    op = _aten.native_layer_norm_backward
    if input.dtype not in HALVES:
        return op(grad_out, input, shape, mean, rstd, weight, bias, output_mask)
    # The CPU adds up the gradients of parameters in the type of the input, which loses those of long batches.
    wide = [single(each) for each in (weight, bias)]
    made = op(grad_out.float(), input.float(), shape, mean.float(), rstd.float(), *wide, output_mask)
    return tuple(None if each is None else each.to(input.dtype) for each in made)


def _group_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, *sizes: object) -> object:
    made = _aten.native_group_norm(input, weight, bias, *sizes)  # refuses most mixtures in the words of a GPU
    _require_one_type(input, weight, bias)
    return made


def _require_one_type(input: Tensor, *parameters: Tensor | None) -> None:
    for each in parameters:
        if each is not None and input.numel() and each.dtype is not input.dtype:
            wanted, found = (TYPE_WORDS.get(kind, str(kind)) for kind in (input.dtype, each.dtype))
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")


KERNELS: dict[str, Callable[..., object]] = {
    f"aten::{name}": launching(find_operator(f"aten::{name}"), function)
    for name, function in (
        ("native_layer_norm", _layer_norm),
        ("native_layer_norm_backward", _layer_norm_backward),
        ("native_group_norm", _group_norm),
    )
}
