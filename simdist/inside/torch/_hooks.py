"""The hooks of CUDA, by which C++ asks if there is an accelerator, how many devices, and for pinned memory.

The object exists in every build; its table of functions is replaced by a copy with our functions. A CUDA build's own
hooks call the driver, so there the copy is made of the base class's table, which a CPU build uses. C++ remembers in
`at::globalContext()` and in a flag of Python's that CUDA was initialised; both are reset.

Memory is freed on any thread, and while an exception passes through the frames that held it, which code in Python
would replace. So what C++ calls to free pinned memory is a function in C that releases a lock. The next call that pins
memory, asks whether it is pinned or turns the hooks off finds the lock released, and frees the memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from simdist.errors import UnsupportedError
from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings
from simdist.inside.torch._cuda import is_built_for_cuda
from simdist.inside.torch._cxx import (
    BeforeTable,
    Pointer,
    address_of,
    copy_table,
    keep_for_ever,
    library,
    stand_in,
    table_of,
    unknown,
)
from simdist.inside.torch._guard import CUDA_TYPE, DeviceGuard, device_guard
from simdist.inside.torch._timers import hide_timer

__all__ = ["DeviceHooks", "device_hooks"]

# Indices in the table of `CUDAHooksInterface`, whose first two words are destructors.
_IS_BUILT, _IS_AVAILABLE, _HAS_CONTEXT, _INIT, _COUNT, _SET_CURRENT, _GET_CURRENT = 2, 3, 4, 5, 6, 7, 8
_IS_PINNED, _PINNED_ALLOCATOR, _HAS_CUDA = 11, 12, 16
_WORDS = 64
# Indices in the table of `Allocator`.
_ALLOCATE, _ALLOCATOR_WORDS = 2, 6
# Of `at::Context`, which begins with a flag (device initialised) and a lock for each type of device.
_CONTEXT_BYTES = 1024

_REQUIRE_INIT = "_ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb"
_CONTEXT = "_ZN2at13globalContextEv"
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_PLAIN_TABLE = "_ZTVN2at18CUDAHooksInterfaceE"
_CPU_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"

_new_lock: Any = ctypes.PYFUNCTYPE(Pointer)(("PyThread_allocate_lock", ctypes.pythonapi))
_acquire: Any = ctypes.PYFUNCTYPE(ctypes.c_int, Pointer, ctypes.c_int)(("PyThread_acquire_lock", ctypes.pythonapi))
_RELEASE = address_of(ctypes.pythonapi.PyThread_release_lock)


class DeviceHooks:
    """The devices as C++ finds them. `count` returns how many there are, on any thread.

    Raises:
        UnsupportedError: this torch has another layout.
    """

    def __init__(self, guard: DeviceGuard) -> None:
        self.count: Callable[[], int] = lambda: 0
        self._pinned: dict[int, tuple[int, int]] = {}  # address -> what frees it, a lock released when it may
        self._locks: list[int] = []  # acquired, of no memory
        self._unchecked = 0  # how many of `_pinned` what was allocated since the last look is worth
        self._guard = guard
        self._require_init: Any = library("libtorch_python.so")[_REQUIRE_INIT]
        self._require_init.argtypes = (ctypes.c_int8, ctypes.c_bool)
        self._require_init.restype = None
        self._globals = _found_by(_CONTEXT)
        self._begun_at = 0  # known once the hooks have been checked
        self._hooks: Any = Pointer.from_address(_found_by(_HOOKS))
        self._old_table = self._hooks.value
        # The table of a CPU build, in a CUDA build too.
        self._plain_table = (_plain_table() if is_built_for_cuda() else self._old_table) or 0
        self._new_table = self._make_table()
        try:
            self._check()
        finally:
            guard.give_back()

    def switch(self, *, on: bool) -> None:
        """Let C++ find our devices, or those that it found before."""
        if on:
            self._guard.put()
        if is_built_for_cuda():
            hide_timer(hidden=on)
        self._hooks.value = self._new_table if on else self._old_table
        self._require_init(CUDA_TYPE, True)
        if not on:
            self._free_released()
        if not on and self._begun_at:
            # Have C++ initialise CUDA again when it is next needed, and not only once in a process.
            ctypes.c_uint8.from_address(self._begun_at).value = 0

    @contextmanager
    def begun(self) -> Iterator[None]:
        """A context in which torch takes CUDA as initialised, and does not initialise it."""
        self._require_init(CUDA_TYPE, False)
        try:
            yield
        finally:
            self._require_init(CUDA_TYPE, True)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """A context in which C++ finds no devices, as on a CPU build."""
        before, self._hooks.value = self._hooks.value, self._plain_table
        try:
            yield
        finally:
            self._hooks.value = before

    # -- making it -----------------------------------------------------------------------------------------------

    def _make_table(self) -> int:
        allocator = self._make_allocator()
        guard, yes = self._guard, self._guard.answer_one
        answers: dict[int, Any] = {
            _IS_BUILT: yes,
            _IS_AVAILABLE: ctypes.CFUNCTYPE(ctypes.c_bool, Pointer)(lambda _: self.count() > 0),
            _HAS_CONTEXT: yes,
            _INIT: yes,
            _COUNT: ctypes.CFUNCTYPE(ctypes.c_int8, Pointer)(lambda _: self.count()),
            _SET_CURRENT: ctypes.CFUNCTYPE(None, Pointer, ctypes.c_int8)(lambda _, index: guard.select(index)),
            _GET_CURRENT: ctypes.CFUNCTYPE(ctypes.c_int8, Pointer)(lambda _: guard.device().index),
            _IS_PINNED: ctypes.CFUNCTYPE(ctypes.c_bool, Pointer, Pointer)(lambda _, data: self._is_pinned(data)),
            _PINNED_ALLOCATOR: ctypes.CFUNCTYPE(Pointer, Pointer)(lambda _: allocator),
            _HAS_CUDA: yes,
        }
        address, table = copy_table(ctypes.cast(self._plain_table, ctypes.POINTER(Pointer)), _WORDS, answers)
        keep_for_ever(table, answers)
        return address

    def _make_allocator(self) -> int:
        """An allocator of pinned memory: the CPU's, with a record of its allocations."""
        plain = _found_by(_CPU_ALLOCATOR, "libc10.so")
        old = table_of(plain)
        make = ctypes.CFUNCTYPE(Pointer, Pointer, Pointer, ctypes.c_size_t)
        allocate_plain = make(old[_ALLOCATE])

        words = (Pointer * 4)()
        allocate_plain(ctypes.addressof(words), plain, 64)
        if not words[0] or words[2] != words[0] or not words[1]:
            raise unknown("lays out its pointers to data otherwise")
        ctypes.CFUNCTYPE(None, Pointer)(words[1])(words[0])

        def allocate(result: int, _: int, size: int) -> int:
            """Make a `DataPtr`: the data, the function that frees it, and its argument, which is the data again."""
            # A large allocation costs so much that more of the others may be looked at.
            self._unchecked += 64 + (size >> 12)
            if self._unchecked > len(self._pinned):
                self._free_released()
            allocate_plain(result, plain, size)
            words = (Pointer * 3).from_address(result)
            data = words[0]
            if data is not None:
                lock = self._locks.pop() if self._locks else _new_lock()
                _acquire(lock, 0)
                self._pinned[data] = words[1] or 0, lock
                words[1], words[2] = _RELEASE, lock
            return result

        allocating = make(allocate)
        table_address, table = copy_table(old, _ALLOCATOR_WORDS, {_ALLOCATE: allocating})
        address, allocator = stand_in(table_address)
        keep_for_ever(table, allocator, allocating)
        return address

    def _is_pinned(self, data: int) -> bool:
        """Whether memory is pinned, which is freed here if C++ has released it."""
        free, lock = self._pinned.get(data, (0, 0))
        if not free or not _acquire(lock, 0):
            return free != 0
        del self._pinned[data]  # before its address can be that of other memory
        self._locks.append(lock)
        ctypes.CFUNCTYPE(None, Pointer)(free)(data)
        return False

    def _free_released(self) -> None:
        self._unchecked = 0
        for data in tuple(self._pinned):
            self._is_pinned(data)

    def _check(self) -> None:
        self.count = lambda: 2
        self.switch(on=True)
        try:
            get: Any = core_bindings._accelerator_getAccelerator
            if get() != torch.device("cuda") or core_bindings._get_accelerator(True) != torch.device("cuda"):
                raise unknown("does not take its accelerator from the CUDA hooks")
            before = self._context()
            pinned = torch.empty(3, pin_memory=True, device="cpu")
            self._begun_at = self._place_of_begun(before, self._context())
            if not pinned.is_pinned() or torch.empty(3, device="cpu").is_pinned() or len(self._pinned) != 1:
                raise unknown("pins memory otherwise")
            del pinned
            self._free_released()
            if self._pinned:
                raise unknown("frees pinned memory otherwise")
        finally:
            self.count = lambda: 0
            self.switch(on=False)

    def _context(self) -> bytes:
        """The beginning of `at::globalContext()`."""
        return ctypes.string_at(self._globals, _CONTEXT_BYTES)

    def _place_of_begun(self, before: bytes, after: bytes) -> int:
        """The address of the flag that CUDA is initialised, which the first pinned memory of a process sets."""
        places = [place for place, (was, now) in enumerate(zip(before, after, strict=True)) if was == 0 and now == 1]
        if len(places) != 1:
            raise unknown("remembers elsewhere that a device was initialised")
        return self._globals + places[0]


def _found_by(symbol: str, of: str = "libtorch_cpu.so") -> int:
    """Call a C++ function without arguments that returns the address of a singleton."""
    get = library(of)[symbol]
    get.restype = Pointer
    return int(get())


def _plain_table() -> int:
    """The address of the function table of `at::CUDAHooksInterface`, which a CPU build uses."""
    words = (Pointer * BeforeTable).in_dll(library("libtorch_cpu.so"), _PLAIN_TABLE)
    return ctypes.addressof(words) + ctypes.sizeof(words)  # after the offset and the type


@functools.cache
def device_hooks() -> DeviceHooks:
    """The hooks of this interpreter, made on first use: CUDA must not have been initialised."""
    return DeviceHooks(device_guard())


@fact(
    "torch.devices.hooks",
    what="C++ asks a table of functions whether there are CUDA devices, and pins memory by an allocator that it names",
    source="aten/src/ATen/detail/CUDAHooksInterface.h, aten/src/ATen/Context.h, c10/core/Allocator.h",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _hooks_are_known() -> str:
    for name, symbols in {
        "libtorch_python.so": (_REQUIRE_INIT,),
        "libtorch_cpu.so": (_CONTEXT, _HOOKS, _PLAIN_TABLE),
        "libc10.so": (_CPU_ALLOCATOR,),
    }.items():
        held = library(name)
        for symbol in symbols:
            Pointer.in_dll(held, symbol)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
        return ""  # more must not be touched
    try:
        device_hooks()
    except UnsupportedError as error:
        return str(error)
    return ""
