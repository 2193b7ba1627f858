"""Tensors on different devices in one operation: the operators that take them, and torch's error from the others."""

from __future__ import annotations

import torch

from simdist.inside.torch import Operator, full_name, has_kernel, schema_of

__all__ = ["MAY_MIX", "wrong_devices"]

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
        *(f"aten._fused_{name}_.tensor_lr" for name in ("adam", "adamw", "sgd", "adagrad")),
    )
)
# Not `pointwise`, and yet written with TensorIterator.
_ITERATING = ("aten::where",)


def wrong_devices(op: Operator, args: tuple[object, ...], kwargs: dict[str, object]) -> RuntimeError:
    """Return torch's error: in TensorIterator's words for element-wise operations, else in the CUDA wrappers'."""
    schema = schema_of(op)
    tensors = []
    for place, argument in enumerate(schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        values = value if isinstance(value, (list, tuple)) else [value]
        tensors += [(argument.name, each) for each in values if isinstance(each, Tensor)]
    if torch.Tag.pointwise in op.tags or schema.name in _ITERATING:
        first = next(tensor for _, tensor in tensors if tensor.is_cuda)
        other = next(
            tensor for _, tensor in tensors if tensor.device != first.device and (tensor.is_cuda or tensor.dim())
        )
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
