"""Argument checks of ProcessGroupGloo, with its error texts (torch 2.13)."""

from __future__ import annotations

from collections.abc import Generator, Sequence, Set
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from simdist.c10d.surface._arguments import row_counts
from simdist.c10d.surface._memory import as_bytes
from simdist.inside.torch import Place
from simdist.native import uniform

if TYPE_CHECKING:
    from simdist.c10d.surface._arguments import Tensors

__all__ = ["alike", "check", "check_dtype", "coalesced_gather_arguments", "coalesced_reduce_arguments"]
__all__ += ["exchange_arguments", "exchanged_parts", "gather_arguments", "gather_single_arguments"]
__all__ += ["require_contiguous", "require_contiguous_input", "require_peer", "rooted_list", "rooted_tensors"]
__all__ += ["scatter_arguments", "scatter_single_arguments", "single", "split_sizes"]

Tensor = torch.Tensor

_DTYPES = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
}


_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")  # in the order of c10d::ReduceOp


def _fail(operation: str, message: str) -> NoReturn:
    raise RuntimeError(f"ProcessGroupGloo::{operation}: {message}")


def check(name: str, reduction: str, dtype: torch.dtype) -> None:
    """Refuse an operation that the backend has no function for.

    Raises:
        RuntimeError: with Gloo's text.
    """
    check_dtype(dtype)
    if reduction == "premul_sum":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if dtype.is_complex and reduction not in ("", "sum", "avg"):
        # Gloo prints the enum's number as a character.
        said = "reduce" if name == "reduce" else "all_reduce"
        raise RuntimeError(f"{said} does not support{chr(_REDUCTIONS.index(reduction))}on complex tensors")
    if reduction in ("band", "bor", "bxor") and dtype.is_floating_point:
        raise RuntimeError(f"Cannot use ReduceOp.{reduction.upper()} with non-integral dtype")
    if dtype.is_complex and name == "gather":
        raise RuntimeError("Invalid scalar type")


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a type that Gloo has no functions for (`ProcessGroupGloo.hpp`, GENERATE_ALL_TYPES)."""
    if dtype not in _DTYPES:
        raise RuntimeError("Invalid scalar type")


def single(kind: str, tensors: Tensors) -> Tensor:
    """Return the one tensor of a send or receive, which takes a list of one or a bare tensor."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise RuntimeError("ProcessGroupGloo::send takes a single tensor")  # receives say so, too
    tensor: Tensor = tensors[0]
    return tensor


def alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors of an allreduce: at least one, all of one layout, type and shape."""
    operation = "allreduce"
    _require_layout(operation, tensors)
    _same_as(operation, tensors[1:], tensors[0])
    return list(tensors)


def coalesced_reduce_arguments(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that allreduce_coalesced does not take."""
    operation = "allreduce_coalesced"
    _require_layout(operation, tensors)
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        _fail(operation, "tensors must all have the same type")
    if tensors[0].layout is not torch.strided:
        _fail(operation, "unsupported layout")


def rooted_tensors(operation: str, tensors: Tensors, root: int, root_tensor: int, size: int) -> list[Tensor]:
    """Return the tensors of a broadcast, or the one of a reduce."""
    if isinstance(tensors, Tensor):
        tensors = [tensors]
    _require_root(operation, root, size)
    if not 0 <= root_tensor < len(tensors):
        _fail(operation, f"invalid root tensor: {root_tensor}")
    if operation == "reduce" and len(tensors) != 1:
        _fail(operation, "requires a single-element tensor list")
    _require_dense(operation, tensors[0])
    _same_as(operation, tensors[1:], tensors[0])
    return list(tensors)


def _require_layout(operation: str, tensors: Sequence[Tensor]) -> None:
    if not tensors:
        _fail(operation, "requires non-empty tensor list")
    expected = tensors[0].layout
    for index, tensor in enumerate(tensors):
        if tensor.layout is not expected:
            said = f"(expected {_layout(expected)}, got {_layout(tensor.layout)})"
            _fail(operation, f"invalid tensor layout at index {index} {said}")


def _require_dense(operation: str, tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        _fail(operation, "only supports dense tensors")


def _require_root(operation: str, root: int, size: int) -> None:
    if not 0 <= root < size:
        _fail(operation, f"invalid root rank: {root}")


def require_contiguous(tensor: Tensor) -> None:
    """Refuse a tensor that is not contiguous: Gloo's point-to-point operations take no others."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise RuntimeError("input tensor has to be contiguous")


def require_peer(kind: str, peer: int | None, rank: int, size: int) -> None:
    """Refuse a peer that is the rank itself, or outside the group."""
    if peer is None:
        return
    if peer == rank:
        raise RuntimeError(
            f"[enforce fail at {Place.PAIR_IS_ITSELF.path}] state_ >= CONNECTED. 1 vs 4. Pair is not connected "
            f"([127.0.0.1]:{40000 + rank}${rank} <--> [none])"
        )
    if not 0 <= peer < size:
        # Real Gloo reads past the end of its list of pairs here, and the process dies.
        raise RuntimeError(f"{kind}: rank {peer} is not in the group of {size} ranks")


def gather_arguments(outputs: Any, inputs: Any, size: int) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Return the output lists and the inputs of an allgather, given as lists or as one output list and one input."""
    operation = "allgather"
    if isinstance(inputs, Tensor):
        outputs, inputs = [outputs], [inputs]
    if not inputs:
        _fail(operation, "requires non-empty input tensor list")
    if len(outputs) != len(inputs):
        _fail(operation, "requires input/output tensor lists to have the same length")
    expected = len(inputs) * size
    for index, part in enumerate(outputs):
        if len(part) != expected:
            said = f"(expected length {expected}, got {len(part)})"
            _fail(operation, f"invalid output tensor list at index {index} {said}")
    _require_dense(operation, inputs[0])
    for tensors in (inputs, *outputs):
        _same_as(operation, tensors, inputs[0])
    return [list(part) for part in outputs], list(inputs)


def _same_as(operation: str, tensors: Sequence[Tensor], reference: Tensor) -> None:
    if uniform([reference, *tensors]):
        return
    for index, tensor in enumerate(tensors):
        if tensor.dtype != reference.dtype or tensor.layout is not reference.layout:
            _fail(
                operation,
                f"invalid tensor type at index {index} (expected {_options(reference)}, got {_options(tensor)})",
            )
        if tensor.shape != reference.shape:
            _fail(
                operation,
                f"invalid tensor size at index {index} "
                f"(expected {_shape(reference.shape)}, got {_shape(tensor.shape)})",
            )


def gather_single_arguments(output: Tensor, tensor: Tensor, size: int) -> list[Tensor]:
    """Return the parts of the output of an all_gather_into_tensor: Gloo cuts it along its first dimension."""
    parts = list(output.chunk(size))
    _, [_] = gather_arguments([parts], [tensor], size)
    return parts


def coalesced_gather_arguments(outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int) -> None:
    """Refuse tensors that allgather_coalesced does not take."""
    operation = "allgather_coalesced"
    if not inputs:
        _fail(operation, "requires non-empty input tensor list")
    if len(outputs) != size:
        _fail(operation, "output lists should be equal to world size")
    for part in outputs:
        if len(part) != len(inputs):
            _fail(operation, f"invalid output size: (expected length {len(inputs)}, got {len(part)})")
        for index, (given, expected) in enumerate(zip(part, inputs, strict=True)):
            if given.shape != expected.shape:
                said = f"(expected length {_shape(expected.shape)}, got {_shape(given.shape)})"
                _fail(operation, f"invalid size of output tensor at index {index} {said}")
            if given.dtype != expected.dtype or given.layout is not expected.layout:
                said = f"(expected {expected.type()}, got {given.type()})"
                _fail(operation, f"invalid tensor type at index {index} {said}")
    _require_dense(operation, inputs[0])


def scatter_arguments(outputs: Any, inputs: Any, rank: int, size: int) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the input list of a reduce_scatter, given in lists of one or bare."""
    if isinstance(outputs, Tensor):
        outputs, inputs = [outputs], [inputs]
    if len(outputs) != 1:
        raise RuntimeError("reduce_scatter only supports 1 output")
    if len(inputs) != 1:
        raise RuntimeError("requires input/output tensor lists to have the same length")
    output, parts = outputs[0], inputs[0]
    if len(parts) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    own = parts[rank]
    if output.dtype != own.dtype:
        kinds = f"({_kind(output)} vs. {_kind(own)})"
        raise RuntimeError(f"Check failed: outputs[0].dtype() == inputs[0][i].dtype() {kinds}. \n")
    if output.shape != own.shape:
        shapes = f"({' '.join(map(str, output.shape))} vs. {' '.join(map(str, own.shape))})"
        raise RuntimeError(f"Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() {shapes}. \n")
    return output, list(parts)


def scatter_single_arguments(output: Tensor, tensor: Tensor, size: int) -> None:
    """Refuse tensors that reduce_scatter_tensor does not take."""
    if output.dtype != tensor.dtype:
        kinds = f"({_kind(output)} vs. {_kind(tensor)})"
        raise RuntimeError(f"Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() {kinds}. \n")
    if not output.dim() or tensor.dim() < output.dim():
        # Real Gloo reads past the end of a list of sizes here, with unpredictable results.
        raise RuntimeError(
            f"reduce_scatter_tensor: the output has shape {tuple(output.shape)}, the input {tuple(tensor.shape)}; "
            "both need a first dimension, the input's of the output's size times the world size"
        )
    counts = output.shape[0] * size, tensor.shape[0]
    if counts[0] != counts[1]:
        said = f"({counts[0]} vs. {counts[1]})"
        raise RuntimeError(f"Check failed: outputShape[0] * worldSize == inputShape[0] {said}. \n")
    for one, other in zip(output.shape[1:], tensor.shape[1:], strict=False):
        if one != other:
            raise RuntimeError(f"Check failed: outputShape[i] == inputShape[i] ({one} vs. {other}). \n")


def exchange_arguments(outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
    """Refuse lists that all_to_all does not take."""
    for name, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != size:
            _fail("alltoall", f"{name} tensor list size {len(tensors)} does not match world size {size}")
    for tensors in (inputs, outputs):
        _same_as("alltoall", tensors, tensors[0])
    if inputs[0].shape != outputs[0].shape:
        _fail("alltoall", "input and output tensors must have the same size")


def require_contiguous_input(tensor: Tensor) -> None:
    """Refuse an input of all_to_all_single that is not contiguous; its output need not be."""
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")


def exchanged_parts(
    output: Tensor,
    tensor: Tensor,
    output_sizes: Sequence[int] | None,
    input_sizes: Sequence[int] | None,
    rank: int,
    size: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parts that an all_to_all_single receives and sends, as bytes: one part for each rank.

    Without sizes, the parts have equal bytes, and may end inside an element.
    """
    received, sent = as_bytes(output), as_bytes(tensor)
    if not output_sizes and not input_sizes:
        if len(sent) % size:
            raise RuntimeError(f"[enforce fail at {Place.PARTS_ARE_UNEVEN.path}] in->size % context->size == 0. ")
        if len(sent) != len(received):
            raise RuntimeError(f"[enforce fail at {Place.PARTS_DIFFER.path}] in->size == out->size. ")
        each = len(sent) // size
        return _cut(received, [each] * size), _cut(sent, [each] * size)
    input_bytes = _part_bytes(tensor, input_sizes, size)
    output_bytes = _part_bytes(output, output_sizes, size)
    if input_bytes[rank] != output_bytes[rank]:
        text = "inLengthPerRank[myRank] == outLengthPerRank[myRank]. "
        raise RuntimeError(f"[enforce fail at {Place.OWN_PART_DIFFERS.path}] {text}")
    return _cut(received, output_bytes), _cut(sent, input_bytes)


def split_sizes(sizes: object) -> list[int] | None:
    """Return the sizes as C++ takes them: any sequence, set or generator of whole numbers; None if it refuses them."""
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Sequence | Set | Generator | np.ndarray):
        return None
    whole = [_whole(size) for size in sizes]
    return None if None in whole else [size for size in whole if size is not None]


def _whole(value: Any) -> int | None:
    if isinstance(value, float | str | bytes | bytearray):
        return None
    try:
        whole = int(value)  # C++ also takes a tensor that holds a float
    except (TypeError, ValueError, RuntimeError):
        return None
    return whole if -(2**63) <= whole < 2**63 else None


def _part_bytes(tensor: Tensor, sizes: Sequence[int] | None, size: int) -> list[int]:
    counts, row = row_counts(tensor, sizes, size)
    return [count * row * tensor.element_size() for count in counts]


def _cut(data: Tensor, sizes: list[int]) -> list[Tensor]:
    return list(torch.split_with_sizes(data, sizes))


def rooted_list(
    operation: str, name: str, own: Any, listed: Any, root: int, rank: int, size: int
) -> tuple[Tensor, list[Tensor] | None]:
    """Return the rank's own tensor of a gather or scatter, and on the root the list of all tensors."""
    _require_root(operation, root, size)
    if isinstance(own, Tensor):
        own, listed = [own], [listed] if len(listed) else []
    if len(own) != 1:
        other = "output" if name == "input" else "input"
        _fail(operation, f"requires a single-element {other} tensor list")
    tensor: Tensor = own[0]
    _require_dense(operation, tensor)
    if rank != root:
        if listed:
            _fail(operation, f"requires empty {name} on non-root")
        return tensor, None
    if len(listed) != 1:
        _fail(operation, f"requires a single-element {name} list containing a list with {size} tensors.")
    if len(listed[0]) != size:
        _fail(
            operation,
            f"Incorrect {name} list size {len(listed[0])}. {name.capitalize()} list size should be {size}, "
            "same as size of the process group.",
        )
    _same_as(operation, listed[0], tensor)
    return tensor, list(listed[0])


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(str(n) for n in shape)})"


def _layout(layout: torch.layout) -> str:
    return "Strided" if layout is torch.strided else "Sparse"


_TYPE_NAMES = {torch.float32: "float", torch.float64: "double", torch.int32: "int", torch.int64: "long int"}


def _kind(tensor: Tensor) -> str:
    return _TYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def _options(tensor: Tensor) -> str:
    return (
        f"TensorOptions(dtype={_kind(tensor)}, device=cpu, layout={_layout(tensor.layout)}, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )
