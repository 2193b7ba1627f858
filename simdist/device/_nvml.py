"""NVIDIA's management library, libnvidia-ml, for ranks with devices: what `pynvml` and other callers by ctypes load.

A rank that loads the library by `ctypes.CDLL` gets one with functions in Python, which take the arguments of the
functions in C. `pynvml` stays as it is, and so do the functions of `torch.cuda` that use it (`utilization`,
`device_memory_used`, `list_gpu_processes`).

Invariants: devices have the numbers of their host, whatever CUDA_VISIBLE_DEVICES leaves, as with NVML; nothing of the
machine's own GPUs is seen.

In doubt: memory is what torch's allocators hold, without CUDA contexts; a device is used by 100 % while work is on one
of its streams, else by 0 %; temperature, power and clocks never change.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

from simdist.device._bindings import CUDA_VERSION, DeviceProperties
from simdist.device._memory import Account
from simdist.device._state import ProcessDevices, busy, present_or_none
from simdist.inside.system import nvml
from simdist.process import Patches, Slot, current_runtime, when_imported

__all__ = ["install"]

_P = ParamSpec("_P")
_Function = Callable[..., object]
_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_OK, _NOT_BEGUN, _INVALID, _NOT_FOUND, _TOO_SMALL = 0, 1, 2, 6, 7
_ERRORS = {  # nvml.h, `nvmlErrorString`
    _OK: b"Success",
    _NOT_BEGUN: b"Uninitialized",
    _INVALID: b"Invalid Argument",
    _NOT_FOUND: b"Not Found",
    _TOO_SMALL: b"Insufficient Size",
}
_DRIVER = "580.65.06"  # the first for CUDA 13.0
_CELSIUS, _MILLIWATTS, _MOST_MILLIWATTS, _MEMORY_MHZ = 40, 120_000, 700_000, 2619
_MEMORY_CLOCK = 2
_NO_INSTANCE = 0xFFFF_FFFF
_FUNCTIONS: dict[str, _Function] = {}


def _named(name: str, *endings: str) -> Callable[[_Function], _Function]:
    """Offer a function under a name that has one of `endings`."""

    def offer(function: _Function) -> _Function:
        for ending in endings or ("",):
            _FUNCTIONS[f"{name}{ending}"] = _of_caller(function)
        return function

    return offer


def _of_caller(function: _Function) -> _Function:
    @functools.wraps(function)
    def call(*arguments: object) -> object:
        devices = present_or_none()
        return _NOT_BEGUN if devices is None else function(devices, *arguments)  # none: the world has ended

    return call


def _answering(name: str, *endings: str) -> Callable[[Callable[..., int | None]], _Function]:
    """As `_named`, for a function that the library must have begun for; it returns the code of an error, or none."""

    def offer(function: Callable[..., int | None]) -> _Function:
        @_named(name, *endings)
        @functools.wraps(function)
        def call(devices: ProcessDevices, *arguments: object) -> int:
            return function(devices, *arguments) or _OK if devices.management_uses else _NOT_BEGUN

        return call

    return offer


def _about_one(name: str, *endings: str) -> Callable[[Callable[..., int | None]], _Function]:
    """As `_answering`, for a function that gets the number of a device in place of its handle."""

    def offer(function: Callable[..., int | None]) -> _Function:
        @_answering(name, *endings)
        @functools.wraps(function)
        def call(devices: ProcessDevices, handle: object, *results: object) -> int | None:
            place = nvml.handle_of(handle) - 1
            return function(devices, place, *results) if 0 <= place < len(devices.of_host) else _INVALID

        return call

    return offer


def _write(text: str, buffer: object, length: object) -> int:
    return _OK if nvml.give_text(buffer, length, text) else _TOO_SMALL


# -- the library and the system ----------------------------------------------------------------------------------------


@_named("nvmlInit", "", "_v2", "WithFlags")
def _begin(devices: ProcessDevices, *_flags: object) -> int:
    devices.management_uses += 1
    return _OK


@_answering("nvmlShutdown")
def _end(devices: ProcessDevices) -> None:
    devices.management_uses -= 1


@_named("nvmlErrorString")
def _error(devices: ProcessDevices, code: object) -> bytes:
    return _ERRORS.get(nvml.number_of(code), b"Unknown Error")


@_answering("nvmlSystemGetDriverVersion")
def _driver(devices: ProcessDevices, *text: Any) -> int:
    return _write(_DRIVER, *text)


@_answering("nvmlSystemGetNVMLVersion")
def _version(devices: ProcessDevices, *text: Any) -> int:
    return _write(f"{CUDA_VERSION.split('.')[0]}.{_DRIVER}", *text)


@_answering("nvmlSystemGetCudaDriverVersion", "", "_v2")
def _cuda_version(devices: ProcessDevices, result: object) -> None:
    major, minor = map(int, CUDA_VERSION.split(".")[:2])
    nvml.give(result, 1000 * major + 10 * minor)


# -- devices -----------------------------------------------------------------------------------------------------------


@_answering("nvmlDeviceGetCount", "", "_v2")
def _count(devices: ProcessDevices, result: object) -> None:
    nvml.give(result, len(devices.of_host))


@_answering("nvmlDeviceGetHandleByIndex", "", "_v2")
def _by_index(devices: ProcessDevices, index: object, handle: object) -> int | None:
    place = nvml.number_of(index)
    if not 0 <= place < len(devices.of_host):
        return _INVALID
    nvml.give_handle(handle, place + 1)
    return _OK


@_answering("nvmlDeviceGetHandleByUUID")
def _by_name(devices: ProcessDevices, name: Any, handle: object) -> int | None:
    names = [_name_of(devices, place) for place in range(len(devices.of_host))]
    said = getattr(name, "value", name).decode()
    if said not in names:
        return _NOT_FOUND
    nvml.give_handle(handle, names.index(said) + 1)
    return _OK


@_about_one("nvmlDeviceGet", "Index", "MinorNumber")
def _index(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.give(result, place)


@_about_one("nvmlDeviceGetName")
def _name(devices: ProcessDevices, place: int, *text: Any) -> int:
    return _write(DeviceProperties.name, *text)


@_about_one("nvmlDeviceGetUUID")
def _unique_name(devices: ProcessDevices, place: int, *text: Any) -> int:
    return _write(_name_of(devices, place), *text)


def _name_of(devices: ProcessDevices, place: int) -> str:
    return f"GPU-{devices.uuid(place)}"


@_about_one("nvmlDeviceGetCudaComputeCapability")
def _capability(devices: ProcessDevices, place: int, major: object, minor: object) -> None:
    nvml.give(major, DeviceProperties.major)
    nvml.give(minor, DeviceProperties.minor)


@_about_one("nvmlDeviceGetPciInfo", "", "_v2", "_v3")
def _pci(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.fill(
        result, nvml.PciPlace(b"0000:00:00.0", 0, 0, 0, 0, 0, b"00000000:00:00.0")
    )  # as `DeviceProperties` has it


@_about_one("nvmlDeviceGetMigMode")
def _mig(devices: ProcessDevices, place: int, now: object, next_: object) -> None:
    nvml.give(now, 0)
    nvml.give(next_, 0)


@_about_one("nvmlDeviceGetComputeMode")
def _mode(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.give(result, 0)  # several processes may use it


# -- what devices do ---------------------------------------------------------------------------------------------------


@_about_one("nvmlDeviceGetMemoryInfo")
def _memory(devices: ProcessDevices, place: int, result: object) -> None:
    device = devices.of_host[place]
    nvml.fill(result, nvml.Memory(device.capacity, device.free, device.capacity - device.free))


@_about_one("nvmlDeviceGetMemoryInfo_v2")
def _memory_of_v2(devices: ProcessDevices, place: int, result: object) -> None:
    device = devices.of_host[place]
    nvml.fill(
        result, nvml.MemoryOfV2(nvml.version_of(result), device.capacity, 0, device.free, device.capacity - device.free)
    )


@_about_one("nvmlDeviceGetUtilizationRates")
def _utilization(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.fill(result, nvml.Utilization(100 * busy(devices.of_host[place]), 0))


@_about_one("nvmlDeviceGetTemperature")
def _temperature(devices: ProcessDevices, place: int, sensor: object, result: object) -> None:
    nvml.give(result, _CELSIUS)


@_about_one("nvmlDeviceGetPowerUsage")
def _power(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.give(result, _MILLIWATTS)


@_about_one("nvmlDeviceGet", "EnforcedPowerLimit", "PowerManagementLimit")
def _power_limit(devices: ProcessDevices, place: int, result: object) -> None:
    nvml.give(result, _MOST_MILLIWATTS)


@_about_one("nvmlDeviceGet", "ClockInfo", "MaxClockInfo")
def _clock(devices: ProcessDevices, place: int, kind: object, result: object) -> None:
    nvml.give(result, _MEMORY_MHZ if nvml.number_of(kind) == _MEMORY_CLOCK else DeviceProperties.clock_rate // 1000)


@_about_one("nvmlDeviceGetComputeRunningProcesses")
def _processes_of_v1(devices: ProcessDevices, place: int, count: object, records: object) -> int | None:
    found = [nvml.ProcessOfV1(account.pid, account.reserved) for account in _users(devices, place)]
    return _list(found, count, records)


@_about_one("nvmlDeviceGetComputeRunningProcesses_v", "2", "3")
def _processes(devices: ProcessDevices, place: int, count: object, records: object) -> int | None:
    found = [
        nvml.ProcessOnDevice(each.pid, each.reserved, _NO_INSTANCE, _NO_INSTANCE) for each in _users(devices, place)
    ]
    return _list(found, count, records)


@_about_one("nvmlDeviceGetGraphicsRunningProcesses", "", "_v2", "_v3")
def _graphics(devices: ProcessDevices, place: int, count: object, records: object) -> int | None:
    return _list([], count, records)


def _users(devices: ProcessDevices, place: int) -> list[Account]:
    return [account for account in devices.of_host[place].accounts if account.reserved]


def _list(found: list[Any], count: object, records: object) -> int | None:
    room = nvml.number_of(count)
    nvml.give(count, len(found))
    if len(found) > room:
        return _TOO_SMALL
    if found:
        nvml.give_records(records, found)
    return _OK


# -- loading -----------------------------------------------------------------------------------------------------------


def _loading(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load(self: Any, name: Any = None, *args: object, **kwargs: object) -> None:
        devices = present_or_none() if name in _NAMES else None
        if devices is None:
            original(self, name, *args, **kwargs)
        elif not devices.of_host:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        else:
            nvml.become_library(self, name, _FUNCTIONS)

    return load


_State = tuple[object, int, dict[str, object]]


def _of_pynvml(patches: Patches) -> None:
    """Give each process its own library in `pynvml`, from when it begins one: torch and all ranks share the module."""
    module = sys.modules["pynvml"]
    variables = vars(module)
    if not {"nvmlLib", "_nvmlLib_refcount", "_nvmlGetFunctionPointer_cache"} <= variables.keys():
        return

    def save() -> _State:
        return variables["nvmlLib"], variables["_nvmlLib_refcount"], dict(variables["_nvmlGetFunctionPointer_cache"])

    def load(state: _State) -> None:
        variables["nvmlLib"], variables["_nvmlLib_refcount"], known = state
        variables["_nvmlGetFunctionPointer_cache"].clear()
        variables["_nvmlGetFunctionPointer_cache"].update(known)

    slot: Slot[_State] = Slot("the library of pynvml", save, load, lambda process, of_host: (None, 0, {}))

    def beginning(original: Callable[_P, object]) -> Callable[_P, object]:
        @functools.wraps(original)
        def begin(*args: _P.args, **kwargs: _P.kwargs) -> object:
            runtime = current_runtime()
            if runtime is not None:
                runtime.separate(slot)
            return original(*args, **kwargs)

        return begin

    patches.wrap(module, "nvmlInitWithFlags", beginning)


when_imported("pynvml", _of_pynvml)


def install(patches: Patches) -> None:
    """Let ranks load the library."""
    patches.wrap(nvml.dynamic_library, "__init__", _loading)
