"""Refuses what only a GPU has, with errors that name another way; and replaces Triton's code.

Inductor makes Triton code for a GPU. For a virtual device, `torch.compile` compiles up to the code that Inductor would
be given, partitioner included; torch's own kernels run that code ("aot_eager"), without CUDA graphs.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch

from simdist.device._state import present
from simdist.errors import UnsupportedError
from simdist.inside.torch import (
    InductorWrapper,
    SymmetricMemory,
    compile_without_inductor,
    compiled_base,
    is_built_for_cuda,
)
from simdist.process import Patches, current_process, on_ranks, when_imported

__all__ = ["BINDINGS", "install", "refuse_symmetric_memory"]

_GRAPHS = "CUDA graphs are not simulated; run the step eagerly, without torch.cuda.graph and make_graphed_callables"
_GRAPHS_IN_CPP = (  # methods that torch.cuda.CUDAGraph has of the class under it alone (2.13)
    *("register_generator_state", "get_currently_capturing_graph"),
    *("begin_capture_to_if_node", "end_capture_to_conditional_node"),
)
_COMPILE_FX = "torch._inductor.compile_fx"
_JITERATOR = "torch.cuda.jiterator compiles CUDA C++, which is not simulated; write the function with torch's operators"
_TUNING = "TunableOp times kernels of a GPU, which are not simulated; leave torch.cuda.tunable off"
_RAW_NCCL = (
    "communicators of torch.cuda.nccl.init_rank are not simulated; use torch.distributed with the backend 'nccl'"
)
_SYMMETRIC = (
    "symmetric memory is not simulated: its kernels read and write other GPUs' memory by themselves; use the "
    "collectives of torch.distributed instead (all_reduce, all_gather_into_tensor, reduce_scatter_tensor, send and "
    "recv), and leave torch._inductor.config._micro_pipeline_tp off"
)
_OF_SYMMETRIC_MEMORY = ("empty_strided_p2p", "rendezvous", "get_mempool_allocator", "set_backend")


def _refusing(text: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(text)

    return refuse


def _of_class(replacement: Callable[..., object]) -> Callable[[Callable[..., object]], object]:
    def make(original: Callable[..., Any]) -> object:
        return staticmethod(on_ranks(replacement)(original))

    return make


# -- one process with several devices --------------------------------------------------------------------------------


# The checks and their texts are those of torch/csrc/cuda/comm.cpp (2.13).


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


def _wrapped(dim: int, tensor: torch.Tensor) -> int:
    tensor.size(dim)  # refuses what is no dimension, in torch's words
    return dim % tensor.dim()


def _require_on_devices(tensors: Sequence[torch.Tensor], many: str, one: str) -> None:
    for place, each in enumerate(tensors):
        _require(
            each.is_cuda,
            f"Expected all {many} tensors to be CUDA tensors, but {one} at index {place} has device '{each.device}'",
        )


def _on(index: int) -> torch.device:
    _require(index >= 0, f"Expected non-negative device index, but got {index}")
    return torch.device("cuda", index)


def _broadcast(tensor: torch.Tensor, devices: list[int]) -> list[torch.Tensor]:
    return [tensor.to(_on(index)) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: list[torch.Tensor]) -> list[torch.Tensor]:
    _require_on_devices(out, "output", "output tensor")
    for place, each in enumerate(out):
        _require(
            each.shape == tensor.shape,
            f"Expected all output tensors to have same shape as the source tensor {_said(tensor.shape)}, but output "
            f"tensor at index {place} has shape {_said(each.shape)}",
        )
    for each in out:
        each.copy_(tensor)
    return out


def _broadcast_coalesced(tensors: list[torch.Tensor], devices: list[int], _: int = 0) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device("cuda", index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor, devices: list[int], sizes: Sequence[int] | None = None, dim: int = 0, streams: object = None
) -> list[torch.Tensor]:
    _require(bool(devices), "Expected at least one device to scatter to")
    _require(
        sizes is None or len(sizes) == len(devices),
        "Expected devices and chunk_sizes to be of same length, but got "
        f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(sizes or ())}",
    )
    chunks = tensor.chunk(len(devices), dim) if sizes is None else torch.split_with_sizes(tensor, list(sizes), dim)
    return [chunk.to(_on(index)) for chunk, index in zip(chunks, devices, strict=False)]


def _scatter_out(
    tensor: torch.Tensor, out: list[torch.Tensor], dim: int = 0, streams: object = None
) -> list[torch.Tensor]:
    _require(bool(out), "Expected at least one output tensor to scatter to")
    _require_on_devices(out, "output", "output tensor")
    dim = _wrapped(dim, tensor)
    for place, each in enumerate(out):
        shape = [*each.shape[:dim], *tensor.shape[dim : dim + 1], *each.shape[dim + 1 :]]
        _require(
            each.dim() == tensor.dim() and shape == list(tensor.shape),
            f"Output tensor at index {place} has incorrect shape: {_said(each.shape)}. Expected same shape except for "
            f"scatter dim {dim} as the source tensor: at::IntArrayRef({_said(tensor.shape)})",
        )
    sizes = [each.size(dim) for each in out]
    _require(
        sum(sizes) == tensor.size(dim),
        f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim {dim}. "
        f"Expected {tensor.size(dim)}, but got total size {sum(sizes)}",
    )
    for each, chunk in zip(out, torch.split_with_sizes(tensor, sizes, dim), strict=True):
        each.copy_(chunk)
    return out


def _gathered_shape(tensors: list[torch.Tensor], dim: int) -> list[int]:
    _require(bool(tensors), "Expected at least one tensor to gather from")
    shape = list(tensors[0].shape)
    dim = _wrapped(dim, tensors[0])
    _require_on_devices(tensors, "input", "tensor")
    for place, each in enumerate(tensors):
        _require(
            each.dim() == len(shape),
            "Expected all input tensors to have the same number of dimensions, but tensor at index "
            f"{place} has {each.dim()} dimensions, (expected {len(shape)})",
        )
        shape[dim] = each.size(dim)
        _require(
            shape == list(each.shape),
            f"Input tensor at index {place} has invalid shape {_said(each.shape)}, but expected {_said(shape)}",
        )
    shape[dim] = sum(each.size(dim) for each in tensors)
    return shape


def _gather(tensors: list[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    _gathered_shape(tensors, dim)
    device = torch.device("cpu" if destination == -1 else "cuda" if destination is None else f"cuda:{destination}")
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _gather_out(tensors: list[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    shape = _gathered_shape(tensors, dim)
    _require(list(out.shape) == shape, f"Expected out tensor to have shape {_said(shape)}, but got {_said(out.shape)}")
    return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))


def _said(shape: Sequence[int]) -> str:
    return str(list(shape))


def _folded(inputs: list[torch.Tensor], op: int) -> torch.Tensor:
    fold = (torch.add, torch.mul, torch.maximum, torch.minimum)[op]
    total = inputs[0]
    for each in inputs[1:]:
        total = fold(total, each.to(total.device))
    return total


def _all_reduce(inputs: list[torch.Tensor], outputs: list[torch.Tensor], op: int = 0, *_: object) -> None:
    total = _folded(inputs, op)
    for output in outputs:
        output.copy_(total)


def _reduce(inputs: list[torch.Tensor], output: torch.Tensor, root: int = 0, op: int = 0, *_: object) -> None:
    output.copy_(_folded(inputs, op))


def _broadcast_from(inputs: list[torch.Tensor], root: int = 0, *_: object) -> None:
    for each in inputs:
        each.copy_(inputs[root])


def _all_gather(inputs: list[torch.Tensor], outputs: list[torch.Tensor], *_: object) -> None:
    for output in outputs:
        output.copy_(torch.cat([each.flatten().to(output.device) for each in inputs]).view(output.shape))


def _reduce_scatter(inputs: list[torch.Tensor], outputs: list[torch.Tensor], op: int = 0, *_: object) -> None:
    chunks = _folded(inputs, op).flatten().chunk(len(outputs))
    for output, chunk in zip(outputs, chunks, strict=True):
        output.copy_(chunk.view(output.shape))


def _unique_id() -> bytes:
    """Return 128 bytes that no other call returns, as `ncclGetUniqueId` does."""
    process = current_process()
    assert process is not None
    made = present().made_ids = present().made_ids + 1
    return hashlib.sha512(f"ncclUniqueId {process.rank} {made}".encode()).digest() * 2


def _only_off(enabled: bool = True) -> None:
    """Refuses to enable TunableOp, which does not exist here.

    Raises:
        UnsupportedError: it is to be there.
    """
    if enabled:
        raise UnsupportedError(_TUNING)


def refuse_symmetric_memory(*_: object, **__: object) -> NoReturn:
    """Return the kernel of operators that work on symmetric memory.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(_SYMMETRIC)


# Functions of `torch._C` in a CUDA build.
BINDINGS: dict[str, Callable[..., object]] = {
    "_broadcast": _broadcast,
    "_broadcast_out": _broadcast_out,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_scatter": _scatter,
    "_scatter_out": _scatter_out,
    "_gather": _gather,
    "_gather_out": _gather_out,
    "_cuda_jiterator_compile_and_launch_kernel": _refusing(_JITERATOR),
    "_nccl_all_reduce": _all_reduce,
    "_nccl_reduce": _reduce,
    "_nccl_broadcast": _broadcast_from,
    "_nccl_all_gather": _all_gather,
    "_nccl_reduce_scatter": _reduce_scatter,
    "_nccl_unique_id": _unique_id,
    "_nccl_init_rank": _refusing(_RAW_NCCL),
    "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),  # which `torch._dynamo.reset` imports
    "_cuda_tunableop_is_enabled": lambda: False,
    "_cuda_tunableop_enable": _only_off,
    "_cuda_tunableop_tuning_is_enabled": lambda: True,
    "_cuda_tunableop_tuning_enable": lambda enabled: None,
    "_cuda_record_untuned_is_enabled": lambda: False,
    "_cuda_record_untuned_enable": _only_off,
    "_cuda_tunableop_get_max_tuning_duration": lambda: 30,
    "_cuda_tunableop_set_max_tuning_duration": lambda milliseconds: None,
    "_cuda_tunableop_get_max_tuning_iterations": lambda: 100,
    "_cuda_tunableop_set_max_tuning_iterations": lambda iterations: None,
    "_cuda_tunableop_get_filename": lambda: "tunableop_results0.csv",
    "_cuda_tunableop_set_filename": lambda name, insert_device_ordinal=False: None,
    "_cuda_tunableop_get_results": lambda: (),
    "_cuda_tunableop_get_validators": lambda: (),
    "_cuda_tunableop_read_file": lambda name=None: False,
    "_cuda_tunableop_get_rotating_buffer_size": lambda: 0,
    "_cuda_tunableop_set_rotating_buffer_size": lambda size: None,
    "_cuda_tunableop_set_numerical_check_tolerances": lambda enable, atol=1e-5, rtol=1e-5: None,
}


# -- profilers and compilers -----------------------------------------------------------------------------------------


def _enter_nvtx(self: torch.autograd.profiler.emit_nvtx) -> object:
    if self.enabled:
        if self.entered:
            raise RuntimeError("NVTX annotation context manager is not reentrant")
        self.entered = True
        torch.cuda.synchronize()
        return self
    return None


def _leave_nvtx(self: torch.autograd.profiler.emit_nvtx, *_: object) -> object:
    if self.enabled:
        torch.cuda.synchronize()
    return False if self.enabled else None


def _with_cuda(original: Callable[[], set[torch.profiler.ProfilerActivity]]) -> Callable[[], object]:
    """Let a profiler be asked for the devices alone, as Kineto's of a CUDA build; it records what the host calls."""

    @functools.wraps(original)
    def supported() -> set[torch.profiler.ProfilerActivity]:
        known = original()
        return known if current_process() is None else {*known, torch.profiler.ProfilerActivity.CUDA}

    return supported


def _compiling(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def compile_with_inductor(
        self: object, model: torch.fx.GraphModule, inputs: list[torch.Tensor], **kwargs: object
    ) -> object:
        if current_process() is None or not _has_devices(model, inputs):
            return original(self, model, inputs, **kwargs)
        return compile_without_inductor(model, inputs)

    return compile_with_inductor


def _compiling_graphs(original: Callable[..., object]) -> Callable[..., object]:
    """As `_compiling`, for backends of programs that call Inductor."""

    @functools.wraps(original)
    def compile_fx(model: Any, inputs: Any, *args: object, **kwargs: object) -> object:
        exports = bool(args) or "inner_compile" in kwargs  # code for a file
        if exports or current_process() is None or not _has_devices(model, inputs):
            return original(model, inputs, *args, **kwargs)
        return compile_without_inductor(model, inputs)

    return compile_fx


when_imported(_COMPILE_FX, lambda patches: patches.wrap(sys.modules[_COMPILE_FX], "compile_fx", _compiling_graphs))


def _has_devices(model: object, inputs: Iterable[torch.Tensor]) -> bool:
    held = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    if any(each.is_cuda for each in (*inputs, *held) if isinstance(each, torch.Tensor)):
        return True
    # A graph names the devices of the tensors that it makes: torch.zeros(3, device="cuda").
    nodes = getattr(getattr(model, "graph", None), "nodes", ())
    devices = [str(node.kwargs.get("device", "")) for node in nodes]
    return any(device.startswith("cuda") for device in devices)


def install(patches: Patches) -> None:
    """Install everything where ranks find it."""
    graph: Any = torch.cuda.CUDAGraph
    if not is_built_for_cuda():
        graph = compiled_base(graph)  # a dummy, which refuses to be made
        for name in _GRAPHS_IN_CPP:  # programs test for them, for the abilities of a build of torch
            patches.replace(graph, name, _refusing(_GRAPHS))
    make = graph.__new__

    def new(cls: type, *args: object, **kwargs: object) -> object:
        if current_process() is None:
            return make(cls, *args, **kwargs)
        raise UnsupportedError(_GRAPHS)

    patches.replace(graph, "__new__", staticmethod(new))
    patches.wrap(torch, "_cufft_clear_plan_cache", on_ranks(lambda index: None))
    plans = vars(torch.backends.cuda.cuFFTPlanCache)  # of cuFFT, of which none is ever made
    patches.wrap(plans["size"], "getter", on_ranks(lambda index: 0))
    patches.wrap(plans["max_size"], "getter", on_ranks(lambda index: 4096))
    patches.wrap(plans["max_size"], "setter", on_ranks(lambda index, size: None))
    patches.wrap(torch.cuda.graphs, "_graph_pool_handle", on_ranks(_refusing(_GRAPHS)))
    patches.wrap(torch.autograd.profiler.emit_nvtx, "__enter__", on_ranks(_enter_nvtx))
    patches.wrap(torch.autograd.profiler.emit_nvtx, "__exit__", on_ranks(_leave_nvtx))
    for module in (torch.autograd, torch.autograd.profiler):
        patches.wrap(module, "_supported_activities", _with_cuda)
    for name in _OF_SYMMETRIC_MEMORY:
        patches.wrap(SymmetricMemory, name, _of_class(refuse_symmetric_memory))
    patches.wrap(InductorWrapper, "__call__", _compiling)
