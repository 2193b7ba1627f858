"""NVIDIA's management library, as programs load it by ctypes and by pynvml."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from tests.device.worlds import values

LIBRARY = "libnvidia-ml.so.1"


class Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def begun() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    assert library.nvmlInit_v2() == 0
    return library


def handle(library: ctypes.CDLL, index: int) -> ctypes.c_void_p:
    found = ctypes.c_void_p()
    assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(found)) == 0
    return found


def text(call: Any, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(96)
    assert call(*arguments, buffer, ctypes.c_uint(96)) == 0
    return buffer.value.decode()


def number(call: Any, *arguments: Any) -> int:
    result = ctypes.c_uint()
    assert call(*arguments, ctypes.byref(result)) == 0
    return result.value


def test_devices_are_those_of_the_host_with_their_names() -> None:
    def look() -> Any:
        library = begun()
        device = handle(library, 1)
        name = text(library.nvmlDeviceGetUUID, device)
        again = ctypes.c_void_p()
        assert library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(again)) == 0
        return (
            number(library.nvmlDeviceGetCount_v2),
            text(library.nvmlDeviceGetName, device) == torch.cuda.get_device_name(1),
            name == f"GPU-{torch.cuda.get_device_properties(1).uuid}",
            number(library.nvmlDeviceGetIndex, again),
            number(library.nvmlSystemGetCudaDriverVersion_v2),
        )

    assert values(look, devices=2) == [(2, True, True, 1, 13000)]


def test_devices_of_two_hosts_have_names_of_their_own() -> None:
    def look() -> str:
        return str(torch.cuda.get_device_properties(0).uuid)

    result = simdist.run(look, world_size=2, cluster=build(2, hosts=2, devices_per_host=1))
    result.raise_for_failure()
    assert len(set(result.values)) == 2


def test_a_process_that_sees_one_device_finds_all_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Any:
        library = begun()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        return torch.cuda.device_count(), number(library.nvmlDeviceGetCount), uuid[-1]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")

    assert values(look) == [(1, 4, "2")]


def test_memory_and_processes_are_what_the_allocators_hold() -> None:
    def look() -> Any:
        kept = torch.ones(1 << 20, device="cuda")
        library = begun()
        device = handle(library, 0)
        memory, count = Memory(), ctypes.c_uint(0)
        assert library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
        too_small = library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
        records = (Process * 3)()
        room = ctypes.c_uint(3)
        assert library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(room), records) == 0
        assert (too_small, count.value, room.value) == (7, 1, 1)
        del kept
        return memory.total >> 30, memory.used >> 20, memory.total - memory.free - memory.used, records[0].used >> 20

    assert values(look) == [(80, 4, 0, 4)]


def test_a_device_is_used_while_a_stream_has_work() -> None:
    def look() -> list[int]:
        library = begun()
        device, rates = handle(library, 0), Rates()
        found = []
        for step in (lambda: None, lambda: torch.cuda._sleep(1_000_000), torch.cuda.synchronize):
            step()
            assert library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)) == 0
            found.append(rates.gpu)
        return found

    assert values(look) == [[0, 100, 0]]


def test_what_is_wrong_gets_the_codes_of_the_library() -> None:
    def look() -> Any:
        library = ctypes.CDLL(LIBRARY)
        found, short = ctypes.c_void_p(), ctypes.create_string_buffer(4)
        before = library.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))
        library.nvmlInit()
        codes = (
            before,
            library.nvmlDeviceGetHandleByIndex(9, ctypes.byref(found)),
            library.nvmlDeviceGetHandleByUUID(b"GPU-none", ctypes.byref(found)),
            library.nvmlDeviceGetName(ctypes.c_void_p(), short, 4),
            library.nvmlDeviceGetName(handle(library, 0), short, 4),
            library.nvmlShutdown(),
            library.nvmlShutdown(),
        )
        return codes, library.nvmlErrorString(7), hasattr(library, "nvmlDeviceGetFanSpeed")

    assert values(look) == [((1, 2, 6, 2, 7, 0, 1), b"Insufficient Size", False)]


def test_a_host_without_devices_has_no_library() -> None:
    def look() -> str:
        with pytest.raises(OSError, match="cannot open shared object file") as caught:
            ctypes.CDLL(LIBRARY)
        return str(caught.value)

    assert values(look, devices=0)[0].startswith(LIBRARY)


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that keeps what it loads as pynvml does; all ranks share it, as it was imported before."""
    module: Any = types.ModuleType("pynvml")
    module.nvmlLib, module._nvmlLib_refcount, module._nvmlGetFunctionPointer_cache = None, 0, {}

    def begin(flags: int) -> None:
        if module.nvmlLib is None:
            module.nvmlLib = ctypes.CDLL(LIBRARY)
        module._nvmlGetFunctionPointer_cache["begin"] = module.nvmlLib.nvmlInitWithFlags
        module._nvmlGetFunctionPointer_cache["begin"](flags)
        module._nvmlLib_refcount += 1

    module.nvmlInitWithFlags = begin
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_each_rank_begins_pynvml_for_itself_and_the_host_keeps_its_own(pynvml: Any) -> None:
    def look() -> Any:
        dist.init_process_group("gloo")
        for _ in range(dist.get_rank() + 1):
            pynvml.nvmlInitWithFlags(0)
        dist.barrier()
        return pynvml._nvmlLib_refcount, number(pynvml.nvmlLib.nvmlDeviceGetCount_v2)

    pynvml._nvmlGetFunctionPointer_cache["of the host"] = print

    assert values(look, world_size=2) == [(1, 4), (2, 4)]
    assert (pynvml.nvmlLib, pynvml._nvmlLib_refcount) == (None, 0)
    assert pynvml._nvmlGetFunctionPointer_cache == {"of the host": print}
