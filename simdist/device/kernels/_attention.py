"""Attention: the fused kernels of GPUs, by that of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simdist.device.kernels._deferred import launching
from simdist.device.kernels._mixing import wrong_devices
from simdist.errors import UnsupportedError
from simdist.inside.torch import is_built_for_cuda

__all__ = ["COMPOSITES", "KERNELS"]

Tensor = torch.Tensor
_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_flash_enabled: Callable[[], bool] = torch.backends.cuda.flash_sdp_enabled
_efficient_enabled: Callable[[], bool] = torch.backends.cuda.mem_efficient_sdp_enabled
_math_enabled: Callable[[], bool] = torch.backends.cuda.math_sdp_enabled
_cudnn_enabled: Callable[[], bool] = torch.backends.cuda.cudnn_sdp_enabled
_MATH, _FLASH, _EFFICIENT = 0, 1, 2  # sdp::SDPBackend
_ALIGNED = 32  # kAlignLSE of the memory-efficient kernel: the logarithms of the sums have a multiple of so many rows


def _sdp_choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Choose flash attention for halves, the memory-efficient one for singles, as far as the CPU's kernel goes."""
    if (
        query.dim() != 4
        or not query.shape[:2] == key.shape[:2] == value.shape[:2]
        or query.shape[3] != value.shape[3]
        or not query.numel()
        or not key.numel()
        or dropout_p
        or enable_gqa
        or (attn_mask is not None and (is_causal or attn_mask.requires_grad or attn_mask.dtype is not query.dtype))
    ):
        return _MATH
    if query.dtype in _HALVES and attn_mask is None and _flash_enabled():
        return _FLASH
    if query.dtype in (*_HALVES, torch.float32) and _efficient_enabled():
        return _EFFICIENT
    return _MATH


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> object:
    """Make the choice that C++ makes by a table, which has no entry for CUDA in a CPU build."""
    if not query.device == key.device == value.device:  # aten/src/ATen/native/transformers/attention.cpp
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if not query.dtype is key.dtype is value.dtype:
        _require_fit(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    choice = _sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if choice == _FLASH:
        return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[0]
    if choice == _EFFICIENT:
        sums = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        efficient = _aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, sums, 0.0, is_causal, scale=scale)[0]
    if not _math_enabled():
        _require_attention(query.dtype, attn_mask)
    if is_built_for_cuda():
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _aten.scaled_dot_product_attention.default.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _math(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *given: object, **settings: object) -> object:
    """Call the kernel that takes everything; C++'s own choice would ask the driver of a CUDA build."""
    _require_fit(query, key, value, mask, *given, **settings)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    return _aten._scaled_dot_product_attention_math(query, key, value, mask, *given, **settings)[0]


def _require_fit(*given: object, **settings: object) -> None:
    """Refuse unfit arguments in torch's words."""
    _aten.scaled_dot_product_attention(
        *(each.to("meta") if isinstance(each, Tensor) else each for each in given), **settings
    )


def _require_attention(dtype: torch.dtype, mask: Tensor | None) -> None:
    """Refuse what a GPU's enabled kernels do not take (sdp_utils.cpp); what they do, others do here."""
    flash, efficient, cudnn = _flash_enabled(), _efficient_enabled(), _cudnn_enabled()
    if not (flash or efficient or cudnn):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the "
            "math kernel and the fused kernels."
        )
    halves = dtype in _HALVES and ((flash and mask is None) or cudnn)
    if not halves and not (efficient and dtype in (*_HALVES, torch.float32)):
        raise RuntimeError("No available kernel. Aborting execution.")


_on_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
_on_cpu_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _in_single(op: Callable[..., Any]) -> Callable[..., Any]:
    """Compute float16 in float32, as GPUs add it up: the CPU takes six times as long for the gradients."""

    def call(*args: Any, attn_mask: Tensor | None, scale: float | None) -> Any:
        if args[0].dtype is not torch.float16:
            return op(*args, attn_mask=attn_mask, scale=scale)
        mask = None if attn_mask is None else attn_mask.float()
        made = op(*(each.float() if isinstance(each, Tensor) else each for each in args), attn_mask=mask, scale=scale)
        return (made[0].half(), made[1]) if len(made) == 2 else tuple(each.half() for each in made)

    return call


_attend = launching(_on_cpu, _in_single(_on_cpu))
_attend_backward = launching(_on_cpu_backward, _in_single(_on_cpu_backward))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    dropout: float,
) -> Any:
    """Return the output, and the logarithms of the sums."""
    if dropout:
        raise UnsupportedError(
            "a fused attention kernel with dropout on a virtual device; "
            "torch.nn.functional.scaled_dot_product_attention chooses one that there is"
        )
    return _attend(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)


def _attention_backward(tensors: tuple[Tensor, ...], mask: Tensor | None, is_causal: bool, scale: float | None) -> Any:
    return _attend_backward(*tensors, 0.0, is_causal, attn_mask=mask, scale=scale)


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    if attn_bias is not None and attn_bias.device != query.device:
        op = _aten._scaled_dot_product_efficient_attention.default
        raise wrong_devices(op, (query, key, value, attn_bias), {})
    made, sums = _attention(query, key, value, attn_bias, is_causal, scale, dropout_p)
    length = query.shape[2]
    aligned = -(-length // _ALIGNED) * _ALIGNED if compute_log_sumexp else 0
    kept = sums.new_full((*query.shape[:2], aligned), torch.inf)
    if compute_log_sumexp:
        kept[..., :length] = sums
    laid_out = made.transpose(1, 2).contiguous().transpose(1, 2)  # the kernel's order is batch, row, head
    return laid_out, kept, *(query.new_zeros((), dtype=torch.int64) for _ in ("seed", "offset"))


def _efficient_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> object:
    tensors = grad_out, query, key, value, out, logsumexp[..., : query.shape[2]]
    return (*_attention_backward(tensors, attn_bias, is_causal, scale), None)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> object:
    made, sums = _attention(query, key, value, None, is_causal, scale, dropout_p)
    state, unused = query.new_zeros(2, dtype=torch.uint64), query.new_zeros((), dtype=torch.uint64)
    return made, sums.contiguous(), None, None, query.shape[2], key.shape[2], state, unused, query.new_empty(0)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> object:
    tensors = grad_out, query, key, value, out, logsumexp
    gradients = _attention_backward(tensors, None, is_causal, scale)
    return tuple(_laid_out_like(of, made) for of, made in zip((query, key, value), gradients, strict=True))


def _laid_out_like(of: Tensor, gradient: Tensor) -> Tensor:
    made = torch.empty_like(of)
    return gradient if made.stride() == gradient.stride() else made.copy_(gradient)


# Kernels of operators that torch decomposes otherwise: above autograd, as the decomposition is.
COMPOSITES: dict[str, Callable[..., object]] = {"aten::scaled_dot_product_attention": _sdpa}
KERNELS: dict[str, Callable[..., object]] = {
    "aten::_fused_sdp_choice": _sdp_choice,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
}
