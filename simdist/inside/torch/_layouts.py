"""Layouts in memory: a DLPack capsule's device, a generator's device and its words, a storage's memory and its size.

A DLPack capsule says on which device its memory is, and torch trusts it: from a capsule whose device is overwritten
torch makes a genuine tensor with the dispatch keys of that device. It shares the memory and keeps it alive.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from simdist.errors import UnsupportedError
from simdist.inside._facts import fact
from simdist.inside.python import word_in, words_at
from simdist.inside.torch._bindings import core_bindings

__all__ = [
    "TENSOR_TABLE",
    "address_of_generator",
    "engine_words",
    "exchange_memory",
    "keeps_gaussian",
    "on_cpu",
    "on_device",
    "place_of_engine",
]
__all__ += ["say_device", "to_capsule"]

Tensor = torch.Tensor
# A capsule with DLPack's table of functions, by which C code reads a tensor; None if this torch has none.
TENSOR_TABLE: object = getattr(Tensor, "__dlpack_c_exchange_api__", None)
_CPU, _CUDA = 1, 2  # DLDeviceType
_AT_DEVICE = 8  # where `DLTensor` has its device: two integers of 32 bits
_NAME = b"dltensor"
_Generator = torch.Generator  # the real one: inside a world the name stands for a class that makes either kind
_LONGEST_HEAD = 160  # bytes of a generator that are searched for its device
_ENGINE_WORDS = 2 + 3 + 624  # at::mt19937_data_pod: seed; left, seeded, next; state
# Offsets in CPUGeneratorImpl's serialised state of the flags for a kept Gaussian: a double's and a float's.
_NORMAL, _NORMAL_FLOAT = 5040, 5052

_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_int64_at = ctypes.c_int64.from_address
_from_capsule: Callable[[object], Tensor] = core_bindings._from_dlpack

to_capsule: Callable[[Tensor], object] = core_bindings._to_dlpack
"""A DLPack capsule of a tensor."""


def on_cpu(tensor: Tensor) -> Tensor:
    """A CPU tensor over the memory of one on any device."""
    capsule = to_capsule(tensor)
    _int64_at(_pointer(capsule, _NAME) + _AT_DEVICE).value = _CPU
    return _from_capsule(capsule)


def on_device(capsule: object, index: int) -> Tensor:
    """A tensor on `cuda:<index>` made from a capsule, which can make only one."""
    _int64_at(_pointer(capsule, _NAME) + _AT_DEVICE).value = _CUDA | index << 32
    return _from_capsule(capsule)


def exchange_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages of one device, and their sizes: all tensors of each see that of the other.

    Attributes of the Python objects stay where they are.

    Raises:
        UnsupportedError: this version of torch has another layout.
    """
    both = one, other
    places = [_words_of(storage) for storage in both]
    if any((words[0], words[4]) != (each.data_ptr(), _nbytes(each)) for each, words in zip(both, places, strict=True)):
        raise UnsupportedError("the storages of this torch are not known; make a larger tensor, and copy into it")
    for word in _EXCHANGED:
        places[0][word], places[1][word] = places[1][word], places[0][word]


def _words_of(storage: torch.UntypedStorage) -> Any:
    """The words of `c10::StorageImpl` behind its head: address, context and deleter of the memory; device; size."""
    known: Any = storage
    return (ctypes.c_int64 * _STORAGE_WORDS).from_address(known._cdata + _STORAGE_HEAD)


_nbytes = torch.UntypedStorage.nbytes  # the real one
_STORAGE_HEAD, _STORAGE_WORDS, _EXCHANGED = 16, 5, (0, 1, 2, 4)  # the head: table of methods, and reference counts

address_of_generator: Callable[[torch.Generator], int] = word_in
"""Where the C++ object of a generator is: the one word behind the header of the Python object."""


def say_device(generator: torch.Generator, index: int) -> None:
    """Let a generator say that it is on `cuda:<index>`, if the place of its device is known."""
    place = _place_of_device()
    if place is not None:
        ctypes.c_int16.from_address(address_of_generator(generator) + place).value = 1 | index << 8


@functools.cache
def _place_of_device() -> int | None:
    """The offset in a C++ generator of its device: two bytes, type and index. None if it is not found."""
    known: Any = torch.default_generator
    if known._cdata != address_of_generator(known):
        return None
    generator = _Generator()
    head = address_of_generator(generator)
    said = generator.device
    index = -1 if said.index is None else said.index
    for place in range(8, _LONGEST_HEAD, 2):
        word = ctypes.c_int16.from_address(head + place)
        if word.value == ctypes.c_int16((index & 0xFF) << 8).value:
            before = word.value
            word.value = 1 | 3 << 8
            found = generator.device == torch.device("cuda", 3)
            word.value = before
            if found:
                return place
    return None


def place_of_engine() -> int | None:
    """The offset in bytes, in a CPU generator's C++ object, of its seed and the words after it; None if not found."""
    generator: Any = torch.default_generator
    legacy = memoryview(generator.get_state().numpy()).cast("Q")
    seed, left, following = legacy[0], legacy[1] & 0xFFFF_FFFF, legacy[2]
    known = [seed & 0xFFFF_FFFF, seed >> 32, left, following, *legacy[3 : 3 + 624]]
    near = words_at(generator._cdata, 640)  # the object holds more than 624 words
    for place in range(0, 64, 2):
        if [*near[place : place + 3], *near[place + 4 : place + 6]] == known[:5]:
            found = engine_words(generator, 4 * place)
            if [*found[:3], *found[4:]] == known:
                return 4 * place
    return None


def engine_words(generator: torch.Generator, place: int) -> memoryview[int]:
    """The words of a CPU generator, shared: seed; left, seeded, next; state. `place` is that of its engine."""
    known: Any = generator
    return words_at(known._cdata + place, _ENGINE_WORDS)


def keeps_gaussian(state: bytes) -> bool:
    """True if a generator with this state keeps a number for the next Gaussian."""
    return bool(state[_NORMAL] or state[_NORMAL_FLOAT])


@fact(
    "torch.dlpack",
    what="a DLPack capsule has its device behind the address of its data",
    source="ATen/dlpack.h, DLTensor; torch/csrc/utils/tensor_new.cpp, tensor_fromDLPack",
    seen="2.11 to 2.15",
    feature="virtual devices",
)
def _capsules_are_known() -> str:
    tensor = torch.ones(3, device="cpu")
    capsule = to_capsule(tensor)
    there = _int64_at(_pointer(capsule, _NAME) + _AT_DEVICE).value
    same = on_cpu(tensor)
    if there != _CPU:
        return f"a capsule of a CPU tensor has the device {there:#x}"
    return "" if same.data_ptr() == tensor.data_ptr() and same.device.type == "cpu" else "it comes back as another one"


@fact(
    "torch.dlpack.table",
    what="C code can ask a tensor for its memory, its type and its shape",
    source="aten/src/ATen/dlpack.h, DLPackExchangeAPI; torch/csrc/Module.cpp",
    seen="2.13, 2.14",
    feature="quick calls and judges: they read tensors as without the extension, which costs more",
)
def _table_is_known() -> str:
    return "" if TENSOR_TABLE is not None else "tensors have no such table"


@fact(
    "torch.generators",
    what="a generator has its device near its beginning",
    source="c10/core/GeneratorImpl.h",
    seen="2.11 to 2.15",
    feature="generators of virtual devices say that they are the CPU's",
)
def _generators_are_known() -> str:
    return "" if _place_of_device() is not None else "its place was not found"


@fact(
    "torch.generators.engine",
    what="a CPU generator keeps its seed and 624 words near its beginning",
    source="ATen/core/MT19937RNGEngine.h, mt19937_data_pod; aten/src/ATen/CPUGeneratorImpl.cpp",
    seen="2.11 to 2.15",
    feature="quick hand-overs: the state is read by `get_state`, which costs more",
)
def _engine_is_known() -> str:
    return "" if place_of_engine() is not None else "the words are not there"


@fact(
    "torch.storages",
    what="a C++ storage begins with the address of its memory, the memory's owner, its device and its size",
    source="c10/core/StorageImpl.h; c10/core/Allocator.h, DataPtr; c10/util/UniqueVoidPtr.h",
    seen="2.13",
    feature="virtual devices",
)
def _storages_are_known() -> str:
    few, many = (torch.full((size,), size, dtype=torch.uint8, device="cpu") for size in (3, 5))
    storages = [tensor.untyped_storage() for tensor in (few, many)]
    for storage in storages:
        words = _words_of(storage)
        if words[0] != storage.data_ptr() or words[4] != storage.nbytes():
            return f"behind its head a storage has the words {[hex(word) for word in words]}"
    exchange_memory(*storages)
    seen = [storage.nbytes() for storage in storages], few.tolist()
    exchange_memory(*storages)
    return "" if seen == ([5, 3], [5, 5, 5]) else f"after an exchange they are {seen}"
