"""The functions that a CUDA build has in `torch._C` and a CPU build lacks; torch's own Python code calls them.

So `torch.cuda` and `torch.accelerator` stay as they are: initialisation on first use, queued seeds, checks of arguments
and error texts are torch's. A thread that is no rank finds no device.
"""

from __future__ import annotations

import functools
import os
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from simdist.device._absent import BINDINGS
from simdist.device._cuda_build import refused_bindings
from simdist.device._history import allocation_traceback, record, recorded
from simdist.device._memory import Account
from simdist.device._pools import snapshot
from simdist.device._state import account_of, count, invalid_device, is_in_bad_fork, present, present_or_none
from simdist.device._streams import CYCLES_PER_SECOND, torch_streams
from simdist.device._torch_core import core
from simdist.device.kernels._kernels import also_wrap
from simdist.inside.torch import begin_cuda, compiled_base, cuda_variables, is_built_for_cuda
from simdist.process import current_process

__all__ = ["CUDA_VERSION", "NAME", "DeviceProperties", "Markers", "bindings", "exchanging", "finding"]
__all__ += ["count_by_nvml", "runtime_library"]

NAME = "simdist virtual GPU"
CUDA_VERSION = "13.0"
_BLAS_WORKSPACE = 4096 * 8 * 1024  # bytes, on devices of compute capability 9.0 (torch: CublasHandlePool.cpp)
_CAPABILITY = (9, 0)
_PROCESSORS = 132
_CUDA = 1


class DeviceProperties:
    """The result of `torch.cuda.get_device_properties`: those of a large GPU, with the memory size of this device."""

    name = NAME
    major, minor = _CAPABILITY
    multi_processor_count = _PROCESSORS
    max_threads_per_multi_processor = 2048
    max_threads_per_block = 1024
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 << 10
    shared_memory_per_block_optin = 227 << 10
    shared_memory_per_multiprocessor = 228 << 10
    warp_size = 32
    L2_cache_size = 50 << 20
    clock_rate = CYCLES_PER_SECOND // 1000
    is_integrated = 0
    is_multi_gpu_board = 0
    gcnArchName = NAME
    pci_bus_id = pci_device_id = pci_domain_id = 0

    def __init__(self, account: Account, uuid: str) -> None:
        self.total_memory = account.device.capacity
        self.uuid = uuid

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id=0, pci_device_id=0, pci_domain_id=0, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


# -- devices ---------------------------------------------------------------------------------------------------------


def _init() -> None:
    devices = present()
    devices.start()
    cuda_variables.update(default_generators=devices.generators, _get_device_properties=_properties)


def _properties(index: int) -> DeviceProperties:
    devices = present()
    account = devices.accounts[index]
    return DeviceProperties(account, devices.uuid(devices.of_host.index(account.device)))


def _set_device(index: int) -> None:
    begin_cuda()
    if not 0 <= index < count():
        raise invalid_device()
    present().chosen.add(index)
    core().select(index)


def _has_context(index: int) -> bool:
    """True for a device that the program has chosen, or has used for memory."""
    devices = present()
    return bool(devices.generators) and (index in devices.chosen or account_of(index).allocated > 0)


def _exchange_device(index: int) -> int:
    if index < 0:
        return -1
    if not cuda_variables["_initialized"]:  # hot
        begin_cuda()
    before = core().device().index
    if index != before:
        _set_device(index)
    return before


def exchanging(original: Callable[[int], int]) -> Callable[[int], int]:
    """Wrap the function that `torch.cuda.device` calls on entry and exit. Hot, hence not `_exchange_device` alone."""

    @functools.wraps(original)
    def exchange(index: int) -> int:
        if current_process() is None:
            return original(index)
        before = core().device().index
        return before if index == before and cuda_variables["_initialized"] else _exchange_device(index)

    return exchange


def finding(original: Callable[[], bool]) -> Callable[[], bool]:
    """Wrap `torch.cuda.is_available`, which asks the driver. Hot: torch calls it to find the current device."""

    @functools.wraps(original)
    def is_available() -> bool:
        devices = present_or_none()
        if devices is None:
            return original()
        if not devices.has_asked_driver and os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
            devices.has_asked_driver = True
        return bool(devices.accounts)

    return is_available


def count_by_nvml() -> int:
    """What `torch.cuda.device_count` tries first, without the driver; -1, its failure, on threads of the host."""
    return -1 if present_or_none() is None else count()


def _count_by_driver() -> int:
    devices = present_or_none()
    if devices is not None:
        devices.has_asked_driver = True
    return count()


def _can_access_peer(device: int, other: int) -> bool:
    for index in (device, other):
        account_of(index)
    return device != other


# -- streams ---------------------------------------------------------------------------------------------------------


def _current_stream(index: int) -> tuple[int, int, int]:
    account_of(index)
    return core().stream(index), index, _CUDA


def _default_stream(index: int) -> tuple[int, int, int]:
    account_of(index)
    return 0, index, _CUDA


def _external_stream(handle: int, index: int) -> tuple[int, int, int]:
    return handle, index, _CUDA


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    if core().device().index != device_index:
        _set_device(device_index)
    present().streams.select(device_index, stream_id)


def _sleep(cycles: int) -> None:
    index = core().device().index
    present().streams.enqueue(index, core().stream(index), cycles * 1_000_000_000 // CYCLES_PER_SECOND)


def _synchronize() -> None:
    present().streams.synchronize_device(core().device().index)


def _stream_of(index: int | None) -> torch.Stream:
    return torch.cuda.current_stream(index)


def _set_stream_object(stream: torch.Stream) -> None:
    _set_stream(stream.stream_id, stream.device_index, _CUDA)


def _synchronize_device(index: int) -> None:
    account_of(index)
    present().streams.synchronize_device(index)


# -- memory ----------------------------------------------------------------------------------------------------------


def _allocate_raw(size: int, stream: int) -> int:
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    present().raw[tensor.data_ptr()] = tensor
    return tensor.data_ptr()


def _delete_raw(address: int) -> None:
    del present().raw[address]


def _empty_cache() -> None:
    devices = present()
    for account in devices.accounts:
        account.release_unused()
        if devices.history is not None:
            devices.history.released(account)


def _record_history(*settings: Any) -> None:
    if record(*settings) is not None:
        also_wrap(recorded)


def _record_history_as_before(enabled: bool, keeps: bool, most: int, traces: bool, *more: Any) -> None:
    context = "alloc" if traces else "state" if keeps else None
    _, clear, *others = more
    _record_history("all" if enabled else None, context, "python", most, clear, *others)


def _host_statistics() -> dict[str, object]:
    figures = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    names = ("allocations", "segments", "allocated_bytes", "reserved_bytes", "host_alloc_time", "host_free_time")
    return {"num_host_alloc": 0, "num_host_free": 0} | dict.fromkeys(names, figures)


def _memory_info(index: int) -> tuple[int, int]:
    device = account_of(index).device
    return device.free, device.capacity


def _set_sync_debug_mode(mode: int) -> None:
    if mode not in (0, 1, 2):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    present().streams.sync_debug_mode = mode


def _nothing(*_: object) -> None: ...


def _counted(index: int) -> Account:
    """Return the account on a device, as the caching allocator finds it or refuses it (CUDACachingAllocator.cpp)."""
    try:
        return account_of(index)
    except torch.AcceleratorError:  # C++ prints the number as a character
        raise RuntimeError(f"Invalid device argument {chr(index)}: did you call init?") from None


class Markers:
    """Replaces `torch._C._nvtx`: marks for a profiler that does not run."""

    def rangePushA(self, message: str) -> int:
        """Begin a range."""
        return _UNSEEN

    def rangePop(self) -> int:
        """End the innermost range."""
        return _UNSEEN

    def rangeStartA(self, message: str) -> int:
        """Begin a range; returns its number."""
        return 0

    def rangeEnd(self, number: int) -> None:
        """End the range with that number."""

    def markA(self, message: str) -> None:
        """Mark an instant."""


_UNSEEN = -2  # NVTX_NO_PUSH_POP_TRACKING, as without a profiler


class _Error(int):
    """`cudaError_t`."""

    success = 0


_ERROR_TEXTS = {  # of CUDA 13
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    35: "CUDA driver version is insufficient for CUDA runtime version",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    98: "invalid device function",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    214: "uncorrectable ECC error encountered",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch",
    710: "device-side assert triggered",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}


def runtime_library() -> object:
    """Return the result of `torch.cuda.cudart()`."""
    return types.SimpleNamespace(
        cudaError=_Error,
        cudaGetErrorString=lambda code: _ERROR_TEXTS.get(code, "unrecognized error code"),
        cudaMemGetInfo=_memory_info,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaHostRegister=lambda *_: 0,
        cudaHostUnregister=lambda *_: 0,
        cudaStreamCreate=lambda *_: 0,
        cudaStreamDestroy=lambda *_: 0,
    )


def _blas_workspace() -> int:
    said = present().workspaces.get("blas")
    if said is not None:
        return said
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(kib) * int(count) for kib, count in pairs) * 1024 or _BLAS_WORKSPACE


def _set_workspace(kind: str, size: int) -> None:
    present().workspaces[kind] = size


def _reset_workspace(kind: str) -> None:
    present().workspaces.pop(kind, None)


def _attach_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Call `observer` when an allocation fails, with the device, the bytes asked for, the limit and the free bytes."""
    for account in present().accounts:
        account.observers = (*account.observers, observer)


_AS_BUILT = ("_cuda_getArchFlags", "_cuda_getCompiledVersion")  # a CUDA build has its own


def bindings() -> dict[str, Callable[..., object]]:
    """Return the functions, by their names in `torch._C`."""
    streams = torch_streams()
    made: dict[str, Callable[..., object]] = {
        "_CudaStreamBase": compiled_base(streams.Stream),
        "_CudaEventBase": compiled_base(streams.Event),
        "_CudaDeviceProperties": DeviceProperties,
        "_cuda_init": _init,
        "_cuda_getDeviceCount": _count_by_driver,
        "_cuda_isInBadFork": is_in_bad_fork,
        "_cuda_getDevice": lambda: core().device().index,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_canDeviceAccessPeer": _can_access_peer,
        "_cuda_getArchFlags": lambda: "sm_80 sm_90",
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_getCurrentStream": _current_stream,
        "_cuda_getCurrentRawStream": lambda index: core().stream(index),
        "_cuda_getDefaultStream": _default_stream,
        "_cuda_getStreamFromExternal": _external_stream,
        "_cuda_setStream": _set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_sleep": _sleep,
        "_cuda_synchronize": _synchronize,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_getCublasWorkspaceSize": _blas_workspace,
        "_cuda_setCublasWorkspaceSize": functools.partial(_set_workspace, "blas"),
        "_cuda_getCublasLtWorkspaceSize": lambda: min(
            present().workspaces.get("blaslt", _BLAS_WORKSPACE), _blas_workspace()
        ),
        "_cuda_setCublasLtWorkspaceSize": functools.partial(_set_workspace, "blaslt"),
        "_cuda_getCurrentSolverHandle": lambda: 0,
        "_cuda_clearCublasWorkspaces": _nothing,
        "_cuda_ipc_collect": _nothing,
        "_cuda_set_sync_debug_mode": _set_sync_debug_mode,
        "_cuda_get_sync_debug_mode": lambda: present().streams.sync_debug_mode,
        "_cuda_memoryStats": lambda index: _counted(index).statistics(),
        "_cuda_resetPeakMemoryStats": lambda index: _counted(index).reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda index: _counted(index).reset_totals(),
        "_cuda_hostMemoryStats": _host_statistics,
        "_cuda_resetPeakHostMemoryStats": _nothing,
        "_cuda_resetAccumulatedHostMemoryStats": _nothing,
        "_cuda_setMemoryFraction": lambda fraction, index: _counted(index).limit_to(fraction),
        "_cuda_getMemoryFraction": lambda index: _counted(index).fraction,
        "_cuda_emptyCache": _empty_cache,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_memorySnapshot": snapshot,
        "_cuda_attach_out_of_memory_observer": _attach_observer,
        "_cuda_record_memory_history": _record_history,
        "_cuda_record_memory_history_legacy": _record_history_as_before,
        "_cuda_allocationTraceback": allocation_traceback,
        "_cuda_cudaCachingAllocator_raw_alloc": _allocate_raw,
        "_cuda_cudaCachingAllocator_raw_delete": _delete_raw,
        "_cuda_cudaCachingAllocator_enable": _nothing,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_hasPrimaryContext": _has_context,
        # Functions for accelerators of any kind that C++ can't answer with the guard of torch's tests.
        "_accelerator_setDeviceIndex": _set_device,
        "_accelerator_exchangeDevice": _exchange_device,
        "_accelerator_maybeExchangeDevice": _exchange_device,
        "_accelerator_getStream": _stream_of,
        "_accelerator_setStream": _set_stream_object,
        "_accelerator_synchronizeDevice": _synchronize_device,
        "_accelerator_isAllocatorInitialized": lambda: bool(present().generators),
        "_accelerator_emptyCache": _empty_cache,
        "_accelerator_emptyHostCache": _nothing,
        "_accelerator_getDeviceStats": lambda index: _counted(index).statistics(),
        "_accelerator_resetPeakStats": lambda index: _counted(index).reset_peaks(),
        "_accelerator_resetAccumulatedStats": lambda index: _counted(index).reset_totals(),
        "_accelerator_getMemoryInfo": _memory_info,
        **BINDINGS,
    }
    if is_built_for_cuda():
        for name in _AS_BUILT:
            del made[name]
        made.update(
            _cuda_resetCublasWorkspaceSize=functools.partial(_reset_workspace, "blas"),
            _cuda_resetCublasLtWorkspaceSize=functools.partial(_reset_workspace, "blaslt"),
            _cuda_isHistoryEnabled=lambda: present().history is not None,
        )
        made.update(refused_bindings(set(made)))
    return made
