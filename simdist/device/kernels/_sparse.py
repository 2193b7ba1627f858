"""Sparse tensors (COO) of devices: kernels of the dispatch key SparseCUDA, over those that a CPU build has.

A sparse tensor is a C++ object over two dense ones, its indices and its values, which are ordinary tensors of the
device. So the CPU's kernels make sparse tensors of devices themselves, from given parts. Kernels that compute get
sparse CPU tensors over the same memory, and their results are put together again. As with dense tensors a kernel of the
CPU decides the values; streams and races are not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from simdist.device._aliases import host, raised
from simdist.device._memory import Account
from simdist.device._state import account_of
from simdist.device._torch_core import core
from simdist.device.kernels._mixing import wrong_devices
from simdist.device.kernels._special import account_on, memory_error, synchronize_current
from simdist.inside.torch import (
    SPARSE_CPU,
    Operator,
    Replacements,
    count_function_modes,
    find_operator,
    operators_with_kernel,
    redispatching,
    schema_of,
    without_functions,
)

__all__ = ["KERNELS", "assign", "host_of", "is_sparse", "raised_sparse", "register"]

Tensor = torch.Tensor
_aten = torch.ops.aten
# These make a tensor of parts, or ask one for them: the CPU's kernels take parts of any device.
_STRUCTURAL = (
    *("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "empty.memory_format"),
    *("_indices", "_values", "indices", "values", "_nnz", "_dimI", "_dimV", "sparse_dim", "dense_dim", "is_coalesced"),
    *("_coalesced_", "sparse_resize_", "sparse_resize_and_clear_", "resize_as_sparse_", "copy_sparse_to_sparse_"),
    *("is_pinned", "clone", "empty_like"),
)


def register(library: Replacements, is_ours: Callable[[str, str], bool]) -> None:
    """Register a kernel for every operator whose CPU kernels include one for sparse tensors."""
    for name in operators_with_kernel("SparseCPU"):
        if name.startswith("aten::") and is_ours(name, "SparseCUDA"):
            library.impl(name.removeprefix("aten::"), "SparseCUDA", _on_first_call(name.removeprefix("aten::")))


def _on_first_call(name: str) -> Callable[..., object]:
    made: list[Callable[..., object]] = []

    def kernel(*args: object, **kwargs: object) -> object:
        if not made:
            op = find_operator(f"aten::{name}")
            made.append(_structural(op) if name in _STRUCTURAL else _computing(op))
        if count_function_modes():  # as for dense tensors
            with without_functions():
                return made[0](*args, **kwargs)
        return made[0](*args, **kwargs)

    return kernel


def _structural(op: Operator) -> Callable[..., object]:
    redispatch = redispatching(op)

    def kernel(*args: object, **kwargs: object) -> object:
        # C++ makes the parts of a new tensor on the current device, which the CUDA kernels of torch select first.
        index, before = _index_of(args, kwargs), core().device().index
        if index in (before, None):
            return redispatch(SPARSE_CPU, *args, **kwargs)
        core().select(index)
        try:
            return redispatch(SPARSE_CPU, *args, **kwargs)
        finally:
            core().select(before)

    return kernel


def _index_of(args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None:
        return kwargs["device"].index
    return next((each.get_device() for each in args if isinstance(each, Tensor) and each.is_cuda), None)


def host_of(tensor: Tensor) -> Tensor:
    """Return a sparse CPU tensor over the memory of a sparse tensor of a device."""
    made: Tensor = _aten._sparse_coo_tensor_unsafe(
        host(tensor._indices()), host(tensor._values()), tensor.shape, is_coalesced=tensor.is_coalesced()
    )
    return made


def raised_sparse(tensor: Tensor, account: Account) -> Tensor:
    """Turn a sparse CPU tensor into one of a device, and account it there.

    Raises:
        OutOfMemoryError: the device has too little memory.
    """
    indices, values = raised(tensor._indices(), account), raised(tensor._values(), account)
    made: Tensor = _aten._sparse_coo_tensor_unsafe(
        indices, values, tensor.shape, device=indices.device, is_coalesced=tensor.is_coalesced()
    )
    return made


def is_sparse(tensor: Tensor) -> bool:
    """True for a tensor of indices and values."""
    return tensor.layout is torch.sparse_coo


class _Lowering:
    """The arguments of one call, as CPU tensors."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None  # the first dense tensor of a device, parts of sparse ones included
        self.index = -1

    def lower(self, value: object) -> Any:
        if isinstance(value, Tensor):
            if value.get_device() < 0:
                return value
            if self.seen is None:
                self.index = value.get_device()
                self.seen = value._values() if is_sparse(value) else value
            return host_of(value) if is_sparse(value) else host(value)
        if isinstance(value, (list, tuple)):
            return [self.lower(each) for each in value]
        return value


def _computing(op: Operator) -> Callable[..., object]:
    arguments, returns = schema_of(op).arguments, schema_of(op).returns
    written = [
        (place, each.name)
        for place, each in enumerate(arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]

    def kernel(*args: Any, **kwargs: Any) -> object:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if len({each.get_device() for each in tensors if each.is_cuda or each.dim()}) > 1:
            raise RuntimeError(str(wrong_devices(op, args, kwargs)).replace("wrapper_CUDA_", "wrapper_SparseCUDA_"))
        lowering = _Lowering()
        lowered = [lowering.lower(value) for value in args]
        named = {name: lowering.lower(value) for name, value in kwargs.items()}
        if named.get("device") is not None:
            named["device"] = "cpu"
        synchronize_current(max(lowering.index, 0))  # the number of entries is known on the host
        try:
            result = op(*lowered, **named)
        except NotImplementedError as error:
            narrow = _narrow_type((*lowered, *named.values()))
            if narrow is None or "not implemented for" not in str(error):
                raise
            lowered, named = [_widened(each) for each in lowered], {key: _widened(each) for key, each in named.items()}
            result = _narrowed(op(*lowered, **named), narrow)
        except RuntimeError as error:
            raise memory_error(error, account_of(max(lowering.index, 0))) from None
        account = account_on(lowering.seen, lowering.index)
        filled = []
        for place, name in written:
            was, now = (args[place], lowered[place]) if place < len(args) else (kwargs[name], named[name])
            if was.is_cuda and is_sparse(was):
                assign(was, now.to(was.dtype), account)
            elif now.dtype is not was.dtype:
                host(was).copy_(now)
            filled.append(was)
        if written and returns:
            return filled[0] if len(returns) == 1 else tuple(filled)
        return _raised(result, account)

    return kernel


# Halves, for which the CPU lacks kernels that a GPU has: computed in a wider type, and rounded.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def _narrow_type(values: Iterable[object]) -> torch.dtype | None:
    return next((each.dtype for each in values if isinstance(each, Tensor) and each.dtype in _WIDER), None)


def _widened(value: object) -> Any:
    return value.to(_WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _WIDER else value


def _narrowed(value: object, narrow: torch.dtype) -> object:
    return value.to(narrow) if isinstance(value, Tensor) and value.dtype is _WIDER[narrow] else value


def assign(tensor: Tensor, made: Tensor, account: Account) -> None:
    """Let a sparse tensor of a device become what a sparse CPU tensor is, in that tensor's memory."""
    tensor.data = raised_sparse(made, account)


def _raised(value: object, account: Account) -> object:
    if isinstance(value, Tensor):
        return raised_sparse(value, account) if is_sparse(value) else raised(value, account)
    if isinstance(value, (list, tuple)):
        return [_raised(each, account) for each in value]
    return value


def _dense_to_sparse(self: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Return a dense tensor of a device as a sparse one: `aten::_to_sparse`."""
    index = self.get_device()
    synchronize_current(index)
    return raised_sparse(_aten._to_sparse(host(self), *args, **kwargs), account_on(self, index))


def _bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> object:
    """Return the gradient of a bag's weights, sparse or dense (EmbeddingBag.cpp)."""
    bags = offset2bag
    if indices.numel() and not bags.numel():  # the CPU's forward pass left it out
        places = torch.arange(len(indices), dtype=offsets.dtype, device=offsets.device)
        bags = torch.searchsorted(offsets, places, right=True).to(offsets.dtype) - 1
    rest = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    if sparse:
        return _aten._embedding_bag_sparse_backward(grad, indices, offsets, bags, bag_size, *rest)
    return _aten._embedding_bag_dense_backward(grad, indices, bags, bag_size, maximum_indices, *rest)


KERNELS: dict[str, Callable[..., object]] = {  # of the key CUDA
    "aten::_embedding_bag_backward": _bag_backward,
    "aten::_to_sparse": _dense_to_sparse,
    "aten::_to_sparse.sparse_dim": _dense_to_sparse,
}
