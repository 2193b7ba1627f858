"""Internals of `torch.cuda`: variables of its modules, how it is initialised, and its functions in C++."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from types import ModuleType

import torch

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import c10d_bindings, core_bindings, missing

__all__ = ["CUDA_VARIABLES", "SymmetricMemory", "begin_cuda", "compiled_base", "core_names", "cuda_beginning"]
__all__ += ["cuda_variables", "cudnn_bindings", "cudnn_module", "exchange_beginning", "functions_of_driver"]
__all__ += ["is_built_for_cuda", "says_cuda", "visible_devices"]

CUDA_VARIABLES = ("_initialized", "_queued_calls", "_lazy_seed_tracker", "_cached_device_count", "default_generators")
"""The variables of `torch.cuda` that hold the state of the process, without `_cudart` and a driver's answers."""

cuda_variables: MutableMapping[str, object] = vars(torch.cuda)
core_names: MutableMapping[str, object] = vars(core_bindings)
"""The names of `torch._C`, shared."""

SymmetricMemory: type | None = getattr(c10d_bindings, "_SymmetricMemory", None)

_BUILT: bool = torch.version.cuda is not None


def is_built_for_cuda() -> bool:
    """True if this torch has kernels for real NVIDIA GPUs, no matter what ranks see."""
    return _BUILT


def says_cuda() -> tuple[str | None, bool]:
    """What torch says of its build: the version of CUDA, and `torch._C._has_cuda`; in a world, what ranks see."""
    return torch.version.cuda, bool(core_bindings._has_cuda)


def begin_cuda() -> None:
    """Initialise CUDA, in this process or for the calling rank, unless it is. Hot."""
    if not cuda_variables["_initialized"]:
        cuda_beginning()()


def cuda_beginning() -> Callable[[], None]:
    """The function by which `torch.cuda` initialises, `_lazy_init`."""
    found: Callable[[], None] = torch.cuda._lazy_init
    return found


def exchange_beginning(other: Callable[[], None]) -> None:
    """Let `torch.cuda` initialise by another function."""
    torch.cuda._lazy_init = other


def visible_devices() -> list[int] | list[str]:
    """What CUDA_VISIBLE_DEVICES says: numbers, or names of devices."""
    named: list[int] | list[str] = torch.cuda._parse_visible_devices()
    return named


def compiled_base(cls: type) -> type:
    """The C++ base of a class of `torch.cuda`; in a CPU build a dummy, which can't be instantiated."""
    return cls.__mro__[1]


def cudnn_bindings() -> ModuleType | None:
    """`torch._C._cudnn`: the library that a CUDA build was made with; None in a CPU build."""
    return getattr(core_bindings, "_cudnn", None)


def cudnn_module() -> ModuleType:
    """The module behind the object `torch.backends.cudnn`."""
    found: ModuleType = torch.backends.cudnn.m  # type: ignore[attr-defined]  # set by torch itself
    return found


_PREFIXES = ("_cuda_", "_gds_", "_nccl_", "_construct_CUDA_")
_HARMLESS = frozenset(  # they set or return a number of torch's own; none asks the driver
    (
        *("_cuda_isInBadFork", "_cuda_getCompiledVersion", "_cuda_getArchFlags", "_cuda_getHipblasltVersion"),
        *("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", "_cuda_get_conv_benchmark_empty_cache"),
        *("_cuda_tunableop_get_cublaslt_requested_algo_count", "_cuda_tunableop_set_cublaslt_requested_algo_count"),
        *("_cuda_memoryMetadataSupported", "_nccl_version", "_nccl_version_suffix"),
    )
)


def functions_of_driver(known: Collection[str]) -> list[str]:
    """The functions of `torch._C` that would ask the driver, except those that are `known`."""
    return [
        name
        for name, function in core_names.items()
        if name.startswith(_PREFIXES) and not (name in _HARMLESS or name in known or isinstance(function, type))
    ]


@fact(
    "torch.cuda.module",
    what="`torch.cuda` keeps its state in variables of its modules, and begins by one function of them",
    source="torch/cuda/__init__.py, graphs.py, memory.py, nvtx.py; torch/backends/cudnn/__init__.py",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _module_is_known() -> str:
    named = (
        "_is_in_bad_fork",
        "_lazy_init",
        "_parse_visible_devices",
        "_exchange_device",
        "_maybe_exchange_device",
        "_cudart",
    )
    pools = ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateToPool", "_cuda_endAllocateToPool")
    return (
        missing(torch.cuda, (*CUDA_VARIABLES, *named, "_device_count_nvml", "_CudaDeviceProperties"))
        or missing(torch.cuda.graphs, ("_cuda_isCurrentStreamCapturing", "_graph_pool_handle"))
        or missing(torch.cuda.memory, (*pools, "_cuda_releasePool"))
        or missing(torch.cuda.nvtx, ("_nvtx",))
        or missing(torch.UntypedStorage, ("_share_cuda_", "_new_shared_cuda", "_release_ipc_counter_cuda"))
        or missing(torch, ("_cufft_clear_plan_cache",))
        or missing(cudnn_module(), ("is_acceptable",))
        or missing(SymmetricMemory, ("rendezvous", "set_backend"))
    )


@fact(
    "torch.cuda.bindings",
    what="`torch.cuda` is Python over functions and classes of `torch._C`, for which a CPU build has dummies",
    source="torch/csrc/cuda/Module.cpp; torch/_utils.py, _dummy_type",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _bindings_are_known() -> str:
    bases = {
        compiled_base(cls).__name__
        for cls in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph, torch.cuda.MemPool)
    }
    if bases != {"_CudaStreamBase", "_CudaEventBase", "_CUDAGraph", "_MemPool"}:
        return f"the classes of torch.cuda have the bases {', '.join(sorted(bases))}"
    functions = ("_cuda_init", "_cuda_getDeviceCount", "_cuda_setDevice", "_cuda_setStream", "_cuda_memoryStats")
    return missing(core_bindings, ("_has_cuda", "_accelerator_setDeviceIndex", *(functions if _BUILT else ())))
