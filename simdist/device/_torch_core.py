"""The few places inside torch's C++ that decide whether there are CUDA devices: looked for once, checked, switched.

A CPU build of torch has all that CUDA tensors need but three objects, and takes them as soon as they are there; in a
CUDA build they stand in the place of its own (`_cuda_build`):

- The *device guard* knows the current device and the current streams of each thread. Torch has one for its own tests
  (`FakeGuardImpl`, for eight devices; a host of a cluster may have no more), which `ensureCUDADeviceGuardSet` puts in
  the registry where the guard of a CUDA build counts no device. A stand-in that counts none makes it do so.
- The *hooks* say whether there is an accelerator, how many devices, and where pinned memory comes from. The object is
  there; its table of functions is replaced by a copy with our answers.
- A flag remembers that `torch.cuda._lazy_init` was called. It is taken back when a world ends.

Hooks and flag are switched on when a world with devices starts and off when it ends. The guard of a CPU build stays
where it is from the first such world on: tensors that outlive theirs are read with it, and nothing asks it how many
devices there are but autograd's engine, when it starts, for which it comes too late. In a CUDA build it stays as long
as there are such tensors.

In doubt: places in tables and the layout of a `DataPtr` are torch's own (2.13, 2.14). Each is tried out when it is
first installed, and a world is refused where something else answers.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from simdist.device._cuda_build import is_built_for_cuda, physical_gpus, plain_hooks, require_unused, without_timer
from simdist.errors import UnsupportedError

__all__ = ["Core", "core", "current_device", "current_stream", "select_stream", "why_no_devices"]

_CUDA = 1  # c10::DeviceType

# Places in the table of `DeviceGuardImplInterface`.
_EXCHANGE_DEVICE, _GET_DEVICE, _SET_DEVICE, _GET_STREAM, _EXCHANGE_STREAM = 1, 2, 3, 5, 9
# Places in the table of `CUDAHooksInterface`, of which the first two words are destructors.
_IS_BUILT, _IS_AVAILABLE, _HAS_CONTEXT, _INIT, _COUNT, _SET_CURRENT, _GET_CURRENT = 2, 3, 4, 5, 6, 7, 8
_IS_PINNED, _PINNED_ALLOCATOR, _HAS_CUDA = 11, 12, 16
_HOOKS_WORDS = 64
# Places in the table of `Allocator`.
_ALLOCATE, _ALLOCATOR_WORDS = 2, 6

# Of `at::Context`, which begins with the flags of devices that were initialised, one and a lock for each type.
_CONTEXT_BYTES = 1024

_pointer = ctypes.c_void_p


class _Stream(ctypes.Structure):
    """`c10::Stream`: a device, which is two bytes, and a number."""

    _fields_ = (("device", ctypes.c_int16), ("number", ctypes.c_int64))


def _library(name: str) -> Any:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _table_of(thing: int) -> Any:
    """The table of virtual functions of a C++ object."""
    return ctypes.cast(_pointer.from_address(thing).value or 0, ctypes.POINTER(_pointer))


def _address(function: Any) -> int:
    return ctypes.cast(function, _pointer).value or 0


class Core:
    """The devices as C++ sees them. Everything about "the current" one is the calling thread's.

    `count` is asked how many devices there are, on whatever thread.
    """

    def __init__(self) -> None:
        self.count: Callable[[], int] = lambda: 0
        self.pinned: dict[int, int] = {}  # address -> what frees it, of all pinned memory
        self._keep: list[Any] = []  # what C++ points at
        self._c10, self._cpu = _library("libc10.so"), _library("libtorch_cpu.so")
        self._registry = (_pointer * 22).in_dll(self._c10, "_ZN3c104impl26device_guard_impl_registryE")
        self._require_init: Any = _library("libtorch_python.so")[
            "_ZN5torch5utils24set_requires_device_initEN3c1010DeviceTypeEb"
        ]
        self._require_init.argtypes = (ctypes.c_int8, ctypes.c_bool)
        self._require_init.restype = None
        self._old_guard = self._registry[_CUDA]  # of a CUDA build
        self._guard = self._make_guard()
        table = _table_of(self._guard)
        self._get = ctypes.CFUNCTYPE(ctypes.c_int16, _pointer)(table[_GET_DEVICE])
        self._set = ctypes.CFUNCTYPE(None, _pointer, ctypes.c_int16)(table[_SET_DEVICE])
        self._get_stream = ctypes.CFUNCTYPE(_Stream, _pointer, ctypes.c_int16)(table[_GET_STREAM])
        self._set_stream = ctypes.CFUNCTYPE(_Stream, _pointer, _Stream)(table[_EXCHANGE_STREAM])
        try:
            self._check_guard()
        except UnsupportedError:
            self.give_back_guard()
            raise
        get_context = self._cpu._ZN2at13globalContextEv
        get_context.restype = _pointer
        self._globals = int(get_context())
        self._begun_at = 0  # known once the hooks have been checked
        get_hooks = self._cpu._ZN2at6detail12getCUDAHooksEv
        get_hooks.restype = _pointer
        self._hooks: Any = _pointer.from_address(get_hooks())
        self._old_table = self._hooks.value
        self._new_table = self._make_hooks(table)
        try:
            self._check_hooks()
        finally:
            self.give_back_guard()

    # -- the current device and stream ---------------------------------------------------------------------------

    def current(self) -> int:
        """The current device."""
        return int(self._get(self._guard)) >> 8

    def select(self, index: int) -> None:
        """Make a device the current one."""
        self._set(self._guard, _CUDA | index << 8)

    def stream(self, index: int) -> int:
        """The number of a device's current stream."""
        return int(self._get_stream(self._guard, _CUDA | index << 8).number)

    def select_stream(self, index: int, number: int) -> None:
        """Make a stream the current one of its device."""
        self._set_stream(self._guard, _Stream(_CUDA | index << 8, number))

    # -- on and off ----------------------------------------------------------------------------------------------

    def switch(self, *, on: bool) -> None:
        """Let C++ find devices, or what it found before."""
        if on:
            self._registry[_CUDA] = self._guard
        if is_built_for_cuda():
            without_timer(self._cpu, on=on)
        self._hooks.value = self._new_table if on else self._old_table
        self._require_init(_CUDA, True)
        if not on:
            self._forget_begun()

    def give_back_guard(self) -> None:
        """Put the guard of a CUDA build in its place again; where there was none, ours stays."""
        if self._old_guard is not None:
            self._registry[_CUDA] = self._old_guard

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Inside, torch takes it that CUDA has begun, and does not begin it."""
        self._require_init(_CUDA, False)
        try:
            yield
        finally:
            self._require_init(_CUDA, True)

    # -- making it -----------------------------------------------------------------------------------------------

    def _make_guard(self) -> int:
        if self._old_guard is not None and not is_built_for_cuda():
            raise _unknown("has devices of its own in the place of CUDA's")
        # Autograd's engine starts threads for the devices that it finds when it first runs, and then refuses to run in
        # forked processes. It finds those that a real CUDA would have: none, in a CPU build.
        self._registry[_CUDA] = self._make_stand_in(physical_gpus()) if is_built_for_cuda() else None
        torch.ones(1, device="cpu", requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
        stand_in = self._registry[_CUDA] = self._make_stand_in(0)
        torch._C._ensureCUDADeviceGuardSet()
        guard = self._registry[_CUDA]
        if guard is None or guard == stand_in:
            self._registry[_CUDA] = self._old_guard
            raise _unknown("did not install its own device guard")
        return int(guard)

    def _make_stand_in(self, count: int) -> int:
        """A guard that answers every question by a number."""
        answer = ctypes.CFUNCTYPE(ctypes.c_int8, _pointer)(lambda _: count)
        table = (_pointer * _HOOKS_WORDS)(*[_address(answer)] * _HOOKS_WORDS)
        stand_in = (_pointer * 1)(ctypes.addressof(table))
        self._keep += [answer, table, stand_in]
        return ctypes.addressof(stand_in)

    def _check_guard(self) -> None:
        before = self.current()
        for index in (3, before):
            self.select(index)
            if self.current() != index:
                raise _unknown("keeps the current device elsewhere")
        for number in (5, 0):
            self.select_stream(2, number)
            if self.stream(2) != number:
                raise _unknown("keeps the current stream elsewhere")

    def _make_hooks(self, guard: Any) -> int:
        # What a CPU build answers, in a CUDA build too.
        plain = plain_hooks(self._cpu) if is_built_for_cuda() else self._old_table
        old = ctypes.cast(plain or 0, ctypes.POINTER(_pointer))
        # Two words before the functions are the type's.
        table = (_pointer * (_HOOKS_WORDS + 2))(*[old[index] for index in range(-2, _HOOKS_WORDS)])
        allocator = self._make_allocator()
        yes = guard[0]  # FakeGuardImpl<CUDA>::type() returns 1
        answers: dict[int, Any] = {
            _IS_BUILT: yes,
            _IS_AVAILABLE: ctypes.CFUNCTYPE(ctypes.c_bool, _pointer)(lambda _: self.count() > 0),
            _HAS_CONTEXT: yes,
            _INIT: yes,
            _COUNT: ctypes.CFUNCTYPE(ctypes.c_int8, _pointer)(lambda _: self.count()),
            _SET_CURRENT: ctypes.CFUNCTYPE(None, _pointer, ctypes.c_int8)(lambda _, index: self.select(index)),
            _GET_CURRENT: ctypes.CFUNCTYPE(ctypes.c_int8, _pointer)(lambda _: self.current()),
            _IS_PINNED: ctypes.CFUNCTYPE(ctypes.c_bool, _pointer, _pointer)(lambda _, data: data in self.pinned),
            _PINNED_ALLOCATOR: ctypes.CFUNCTYPE(_pointer, _pointer)(lambda _: allocator),
            _HAS_CUDA: yes,
        }
        for place, answer in answers.items():
            table[place + 2] = answer if isinstance(answer, int) else _address(answer)
        self._keep += [table, answers]
        return ctypes.addressof(table) + 2 * ctypes.sizeof(_pointer)

    def _make_allocator(self) -> int:
        """An allocator of pinned memory: the CPU's, with a record of what it has handed out."""
        get = self._c10._ZN3c1015GetCPUAllocatorEv
        get.restype = _pointer
        plain = get()
        old = _table_of(plain)
        table = (_pointer * (_ALLOCATOR_WORDS + 2))(*[old[index] for index in range(-2, _ALLOCATOR_WORDS)])
        make = ctypes.CFUNCTYPE(_pointer, _pointer, _pointer, ctypes.c_size_t)
        allocate_plain = make(old[_ALLOCATE])

        words = (_pointer * 4)()
        allocate_plain(ctypes.addressof(words), plain, 64)
        if not words[0] or words[2] != words[0] or not words[1]:
            raise _unknown("lays out its pointers to data otherwise")
        ctypes.CFUNCTYPE(None, _pointer)(words[1])(words[0])

        def free(data: int) -> None:
            ctypes.CFUNCTYPE(None, _pointer)(self.pinned.pop(data))(data)

        freeing = ctypes.CFUNCTYPE(None, _pointer)(free)

        def allocate(result: int, _: int, size: int) -> int:
            """A `DataPtr`: the data, what frees it, and the argument of that, which is the data again."""
            allocate_plain(result, plain, size)
            words = (_pointer * 3).from_address(result)
            data = words[0]
            if data is not None:
                self.pinned[data] = words[1] or 0
                words[1] = _address(freeing)
            return result

        allocating = make(allocate)
        table[_ALLOCATE + 2] = _address(allocating)
        allocator = (_pointer * 1)(ctypes.addressof(table) + 2 * ctypes.sizeof(_pointer))
        self._keep += [table, allocator, allocating, freeing, allocate_plain]
        return ctypes.addressof(allocator)

    def _check_hooks(self) -> None:
        self.count = lambda: 2
        self.switch(on=True)
        try:
            get: Any = torch._C._accelerator_getAccelerator
            if get() != torch.device("cuda") or torch._C._get_accelerator(True) != torch.device("cuda"):
                raise _unknown("does not take its accelerator from the CUDA hooks")
            before = self._context()
            pinned = torch.empty(3, pin_memory=True, device="cpu")
            self._begun_at = self._place_of_begun(before, self._context())
            if not pinned.is_pinned() or torch.empty(3, device="cpu").is_pinned() or len(self.pinned) != 1:
                raise _unknown("pins memory otherwise")
            del pinned
            if self.pinned:
                raise _unknown("frees pinned memory otherwise")
        finally:
            self.count = lambda: 0
            self.switch(on=False)

    def _context(self) -> bytes:
        """The beginning of `at::globalContext()`."""
        return ctypes.string_at(self._globals, _CONTEXT_BYTES)

    def _place_of_begun(self, before: bytes, after: bytes) -> int:
        """Where it says that CUDA was initialised, which the first pinned memory of a process does."""
        places = [place for place, (was, now) in enumerate(zip(before, after, strict=True)) if was == 0 and now == 1]
        if len(places) != 1:
            raise _unknown("remembers elsewhere that a device was initialised")
        return self._globals + places[0]

    def _forget_begun(self) -> None:
        """Have C++ initialise CUDA when it is next needed, and not only once in a process."""
        if self._begun_at:
            ctypes.c_uint8.from_address(self._begun_at).value = 0


def _unknown(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"virtual devices need a torch built as 2.13 or 2.14 is; this one ({torch.__version__}) {what}"
    )


@functools.cache
def core() -> Core:
    """The one of this interpreter, made on first use.

    Raises:
        UnsupportedError: this torch keeps what is looked for in another way.
    """
    return Core()


def why_no_devices() -> str:
    """Why virtual devices do not work with this torch, empty if they do. Called outside worlds."""
    try:
        require_unused()
        core()
    except UnsupportedError as error:
        return str(error)
    return ""


def current_device() -> int:
    """The number of the calling thread's current device."""
    return core().current()


def current_stream(index: int) -> int:
    """The number of the calling thread's current stream of a device."""
    return core().stream(index)


def select_stream(index: int, number: int) -> None:
    """Make a stream the current one of its device, for the calling thread."""
    core().select_stream(index, number)
