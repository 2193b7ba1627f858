"""Tensors on different devices in one operation: the operators that take them, and torch's error from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simdist.inside.torch import Operator, full_name, has_kernel, schema_of

__all__ = ["MAY_MIX", "check_mixed", "on_one_device", "wrong_devices"]

Tensor = torch.Tensor
_SAME = "Expected all tensors to be on the same device, but "

# Operators with arguments that may be on the CPU while others are not.
MAY_MIX = frozenset(
    (
        "aten.index.Tensor",
        "aten._unsafe_index.Tensor",
        "aten.index_put_.default",
        "aten.index_put.default",
        "aten._index_put_impl_.default",
        "aten._foreach_copy_.default",
        "aten.is_set_to.default",
        "aten.fill_.Tensor",
        *(f"aten._fused_{name}_.tensor_lr" for name in ("adam", "adamw", "sgd", "adagrad")),
    )
)
# Operators of several tensors whose wrappers for CUDA check the device of each, be it without dimensions, too: those
# whose `device_check` is not NoCheck in native_functions.yaml (2.13).
_ON_ONE_DEVICE = frozenset(
    (
        *("_cdist_forward", "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only", "_prelu_kernel"),
        *("_weight_norm_interface", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bincount", "bucketize.Tensor"),
        *("clamp.Tensor", "clamp_max.Tensor", "clamp_min.Tensor", "complex", "dot", "embedding_renorm", "equal"),
        *("gather", "gcd", "huber_loss", "igamma", "igammac", "index_add", "index_copy", "index_reduce"),
        *("index_select", "isin.Tensor_Tensor", "lcm", "linalg_cross", "logaddexp", "logaddexp2", "masked_scatter"),
        *("masked_select", "mm", "multi_margin_loss", "multilabel_margin_loss_forward", "native_batch_norm"),
        *("native_group_norm", "native_layer_norm", "nextafter", "nll_loss2d_forward", "nll_loss_forward"),
        *("normal.Tensor_Tensor", "polar", "put", "scatter", "scatter_add", "scatter_reduce", "searchsorted.Tensor"),
        *("segment_reduce", "take", "vdot"),
    )
)
# Not `pointwise`, and yet written with TensorIterator.
_ITERATING = ("aten::where",)


def on_one_device(name: str) -> bool:
    """True if an operator refuses tensors of the CPU without dimensions beside those of a device.

    Its name is without the namespace.
    """
    base, _, overload = name.partition(".")
    base = base.rstrip("_")
    return base in _ON_ONE_DEVICE or f"{base}.{overload.removesuffix('_out')}" in _ON_ONE_DEVICE


def check_mixed(name: str, args: Sequence[Any]) -> None:
    """Refuses tensors of several devices that an operator of `MAY_MIX` does not take (TensorAdvancedIndexing.cpp).

    An assignment takes indices from any device, but values only from its own, or a number.

    Raises:
        RuntimeError: it has them.
    """
    if name in ("aten::index.Tensor", "aten::_unsafe_index.Tensor"):
        here = args[0].device
        if any(each is not None and each.is_cuda and each.device != here for each in args[1]):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({here})")
    elif name == "aten::_index_put_impl_":
        here, there, accumulates = args[0].device, args[2].device, len(args) > 3 and args[3]
        masks = [each for each in args[1] if each is not None]
        one_number = not accumulates and args[2].numel() == 1 and there.type == "cpu" and len(masks) == 1
        if here == there or args[2].dim() == 0:
            return
        if one_number and masks[0].dtype in (torch.bool, torch.uint8) and masks[0].device == here:
            return
        if here.type == "cuda" and (accumulates or torch.are_deterministic_algorithms_enabled()):
            raise RuntimeError(f"expected device {here} but got device {there} for value tensor")
        first, second = (here, there) if here.type == "cuda" else (there, here)
        raise RuntimeError(f"{_SAME}found at least two devices, {first} and {second}!")


def wrong_devices(op: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> RuntimeError:
    """Return torch's error: in TensorIterator's words for element-wise operations, else in the CUDA wrappers'."""
    schema = schema_of(op)
    tensors = []
    for place, argument in enumerate(schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        values = value if isinstance(value, (list, tuple)) else [value]
        tensors += [(argument.name, each) for each in values if isinstance(each, Tensor)]
    if schema.name == "aten::masked_fill_":
        if not tensors[0][1].is_cuda and schema.overload_name == "Tensor":
            return RuntimeError("masked_fill_: Expected inputs to be on same device")
        here, there = tensors[0][1].device, tensors[1][1].device
        if here != there:
            return RuntimeError(
                f"expected self and mask to be on the same device, but got mask on {there} and self on {here}"
            )
    if schema.name == "aten::mode":
        here = tensors[0][1].device
        name, there = next((name, tensor.device) for name, tensor in tensors[1:] if tensor.device != here)
        return RuntimeError(f"expected device '{here}' but got '{there}' for {name} output")
    iterates = torch.Tag.pointwise in op.tags or schema.name in _ITERATING
    if iterates and not on_one_device(full_name(op).removeprefix("aten::")):
        first = next(tensor for _, tensor in tensors if tensor.is_cuda)
        others = [tensor for _, tensor in tensors if tensor.device != first.device]
        other = next((tensor for tensor in others if tensor.is_cuda or tensor.dim()), others[0])
        return RuntimeError(f"{_SAME}found at least two devices, {first.device} and {other.device}!")
    first = tensors[0][1]
    name, other = next((name, tensor) for name, tensor in tensors if tensor.device != first.device)
    return RuntimeError(
        f"{_SAME}got {name} is on {other.device}, different from other tensors on {first.device} "
        f"(when checking argument in method wrapper_CUDA_{_wrapped(op)})"
    )


def _wrapped(op: Operator) -> str:
    """Return the operator's name in torch's generated code, which names structured operators differently."""
    schema = schema_of(op)
    name, overload = schema.name.removeprefix("aten::"), schema.overload_name
    if has_kernel(full_name(op), "CompositeExplicitAutogradNonFunctional"):
        return f"{name}_{overload}" if overload else name
    return f"{overload}_{name}"
