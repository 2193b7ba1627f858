"""The device guard of CUDA, by which C++ knows a thread's current device and streams.

Torch has one for its own tests (`FakeGuardImpl`, for eight devices). `ensureCUDADeviceGuardSet` puts it in the registry
if the guard of a CUDA build counts no device. A stand-in that counts none makes it do so.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from simdist.errors import UnsupportedError
from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings
from simdist.inside.torch._cuda import is_built_for_cuda
from simdist.inside.torch._cxx import Pointer, Table, address_of, keep_for_ever, library, stand_in, table_of, unknown

__all__ = ["CUDA_TYPE", "CxxDevice", "DeviceGuard", "device_guard", "ensure_guard", "guards_go_with_threads"]
__all__ += ["physical_gpus"]

CUDA_TYPE = 1  # c10::DeviceType
_TYPES = 22  # words of the registry
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
# Indices in the table of `DeviceGuardImplInterface`.
_TYPE, _GET_DEVICE, _SET_DEVICE, _GET_STREAM, _EXCHANGE_STREAM = 0, 2, 3, 5, 9
_WORDS = 64  # more than its table has


class CxxDevice(ctypes.Structure):
    """`c10::Device`."""

    type: int
    index: int
    _fields_ = (("type", ctypes.c_int8), ("index", ctypes.c_int8))


class _Stream(ctypes.Structure):
    """`c10::Stream`: a device, which is two bytes, and a number."""

    _fields_ = (("device", ctypes.c_int16), ("number", ctypes.c_int64))


class DeviceGuard:
    """`FakeGuardImpl` in the place of CUDA's guard. "Current" always refers to the calling thread.

    Raises:
        UnsupportedError: this torch has another layout.
    """

    def __init__(self) -> None:
        self._registry = (Pointer * _TYPES).in_dll(library("libc10.so"), _REGISTRY)
        self._old = self._registry[CUDA_TYPE]  # of a CUDA build
        self._guard = self._make()
        table = table_of(self._guard)
        get = ctypes.CFUNCTYPE(CxxDevice, Pointer)(table[_GET_DEVICE])
        self.device: Callable[[], CxxDevice] = functools.partial(get, self._guard)
        """The current device. Hot, therefore no function of Python's."""
        self._set = ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int16)(table[_SET_DEVICE])
        self._get_stream = ctypes.CFUNCTYPE(_Stream, Pointer, ctypes.c_int16)(table[_GET_STREAM])
        self._set_stream = ctypes.CFUNCTYPE(_Stream, Pointer, _Stream)(table[_EXCHANGE_STREAM])
        try:
            self._check()
        finally:
            self.give_back()

    # -- the current device and stream ---------------------------------------------------------------------------

    def select(self, index: int) -> None:
        """Make a device the current one."""
        self._set(self._guard, CUDA_TYPE | index << 8)

    def stream(self, index: int) -> int:
        """The number of a device's current stream."""
        return int(self._get_stream(self._guard, CUDA_TYPE | index << 8).number)

    def select_stream(self, index: int, number: int) -> None:
        """Make a stream the current one of its device."""
        self._set_stream(self._guard, _Stream(CUDA_TYPE | index << 8, number))

    # -- on and off ----------------------------------------------------------------------------------------------

    def put(self) -> None:
        """From now on C++ asks this guard."""
        self._registry[CUDA_TYPE] = self._guard

    def give_back(self) -> None:
        """Put the guard of a CUDA build back in its place; if there was none, ours stays."""
        if self._old is not None:
            self._registry[CUDA_TYPE] = self._old

    @property
    def answer_one(self) -> int:
        """The address of a function without arguments that returns 1: `FakeGuardImpl<CUDA>::type()`."""
        return int(table_of(self._guard)[_TYPE])

    # -- making it -----------------------------------------------------------------------------------------------

    def _make(self) -> int:
        if self._old is not None and not is_built_for_cuda():
            raise unknown("has devices of its own in the place of CUDA's")
        # When autograd's engine first runs, it starts threads for the devices that it finds, and then refuses to run in
        # forked processes. Here it finds the devices of a real CUDA: none in a CPU build.
        self._registry[CUDA_TYPE] = self._counting(physical_gpus()) if is_built_for_cuda() else None
        torch.ones(1, device="cpu", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]  # of torch
        none = self._registry[CUDA_TYPE] = self._counting(0)
        _ensure()
        guard = self._registry[CUDA_TYPE]
        if guard is None or guard == none:
            self._registry[CUDA_TYPE] = self._old
            raise unknown("did not install its own device guard")
        address, kept = stand_in(_word_at(guard))  # torch's may end with its thread: see `ensure_guard`
        keep_for_ever(kept)
        return address

    def _counting(self, count: int) -> int:
        """A guard whose every function returns `count`."""
        answer = ctypes.CFUNCTYPE(ctypes.c_int8, Pointer)(lambda _: count)
        table: Table = (Pointer * _WORDS)(*[address_of(answer)] * _WORDS)
        address, guard = stand_in(ctypes.addressof(table))
        keep_for_ever(answer, table, guard)
        return address

    def _check(self) -> None:
        before = self.device().index
        for index in (3, before):
            self.select(index)
            if self.device().index != index:
                raise unknown("keeps the current device elsewhere")
        for number in (5, 0):
            self.select_stream(2, number)
            if self.stream(2) != number:
                raise unknown("keeps the current stream elsewhere")


_ensure: Callable[[], None] = core_bindings._ensureCUDADeviceGuardSet
_lasting: list[object] = []  # guards that stay


def _word_at(address: int) -> int:
    return int(ctypes.c_size_t.from_address(address).value)


def guards_go_with_threads() -> bool:
    """True if torch's guard for fake tensors lives only as long as the thread that first needed one, as in 2.11."""
    return is_built_for_cuda() and torch.__version__.startswith("2.11.")


def ensure_guard() -> None:
    """Do what `torch._C._ensureCUDADeviceGuardSet` does, with a guard that outlives the thread."""
    registry = (Pointer * _TYPES).in_dll(library("libc10.so"), _REGISTRY)
    before = registry[CUDA_TYPE]
    _ensure()
    after = registry[CUDA_TYPE]
    if after is not None and after != before:
        address, guard = stand_in(_word_at(after))
        _lasting.append(guard)
        registry[CUDA_TYPE] = address


@functools.cache
def device_guard() -> DeviceGuard:
    """The guard of this interpreter, made on first use: CUDA must not have been initialised."""
    return DeviceGuard()


def physical_gpus() -> int:
    """How many GPUs there are, without asking the driver."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


@fact(
    "torch.devices.guard",
    what="torch's own guard for tests takes the place of CUDA's, and keeps a thread's current device and streams",
    source="c10/core/impl/DeviceGuardImplInterface.h, c10/core/impl/FakeGuardImpl.h, torch/csrc/Module.cpp",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _guard_is_known() -> str:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        (Pointer * _TYPES).in_dll(library("libc10.so"), _REGISTRY)  # more must not be touched
        return ""
    try:
        guard = device_guard()
    except UnsupportedError as error:
        return str(error)
    return "" if ctypes.CFUNCTYPE(ctypes.c_int8, Pointer)(guard.answer_one)(None) == 1 else "its type is not 1"
