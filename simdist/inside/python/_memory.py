"""Words in memory: at addresses, in Python objects, and in Python's random generator; files that are mapped there."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from simdist.inside._facts import fact
from simdist.inside.python._functions import original

__all__ = ["MappedFile", "SharedBytes", "address_of_buffer", "bytes_at", "mapped_file", "number_kinds"]
__all__ += ["copied_bytes", "holds_bytes", "own_random_words", "word_in", "words_at"]

_RANDOM_WORDS = 624
_BUFFER_BYTES = 128  # more than a `Py_buffer` takes
_SIMPLE = 0  # PyBUF_SIMPLE

SharedBytes = ctypes.Array[ctypes.c_char]
"""The result of `bytes_at`."""


def words_at(address: int, count: int) -> memoryview[int]:
    """The 32-bit words in memory from an address on."""
    return memoryview((ctypes.c_uint32 * count).from_address(address)).cast("B").cast("I")


_bytes: dict[int, Callable[[int], ctypes.Array[ctypes.c_char]]] = {}  # by size

# C types of single numbers in memory: `kind.from_address(address).value` reads and writes one. Integers wrap around.
number_kinds: dict[str, type[ctypes.c_float | ctypes.c_double | ctypes.c_int32 | ctypes.c_int64]] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}


def bytes_at(address: int, size: int) -> SharedBytes:
    """Some bytes in memory, shared: `raw` reads and writes them. A type is kept for each size, so use few sizes."""
    make = _bytes.get(size)
    if make is None:
        make = _bytes[size] = (ctypes.c_char * size).from_address
    return make(address)


def copied_bytes(address: int, size: int) -> bytes:
    """A copy of some bytes in memory."""
    return ctypes.string_at(address, size)


def _held_as_copied(address: int, expected: bytes, size: int) -> int:
    return ctypes.string_at(address, size) != expected


def _comparing() -> Callable[[int, bytes, int], int]:
    """The C library's `memcmp`, if it can be called."""
    try:
        compare = ctypes.PyDLL(None).memcmp  # keeps the GIL, as the call is short
    except (TypeError, OSError, AttributeError):  # not on Windows
        return _held_as_copied
    compare.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    compare.restype = ctypes.c_int
    return compare


_compare = _comparing()


def holds_bytes(address: int, expected: bytes) -> bool:
    """True if these bytes lie at an address in memory."""
    return not _compare(address, expected, len(expected))


def word_in(thing: object) -> int:
    """The first word after the header of an object, of the size of an address."""
    return ctypes.c_size_t.from_address(id(thing) + object.__basicsize__).value


def address_of_buffer(mapping: object) -> int | None:
    """The address of the buffer of an object; None if it has none now."""
    view = (ctypes.c_char * _BUFFER_BYTES)()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapping), view, _SIMPLE):
        return None
    address = ctypes.c_void_p.from_buffer(view).value
    ctypes.pythonapi.PyBuffer_Release(view)
    return address


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that is mapped."""

    device: int
    number: int
    path: str  # when it was mapped; the file may have another name now, or none
    is_written: bool  # stores reach the file


def mapped_file(address: int) -> MappedFile | None:
    """The file that is mapped at an address; None if there is none, or if the system does not say."""
    try:
        with original(open)("/proc/self/maps", "rb") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return None
    for line in lines:
        where, rights, _, device, number, *path = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in where.split(b"-"))
        if start <= address < end:
            major, minor = (int(each, 16) for each in device.split(b":"))
            name = os.fsdecode(path[0]) if path else ""
            return MappedFile(os.makedev(major, minor), int(number), name, b"w" in rights and b"s" in rights)
    return None


def own_random_words() -> memoryview[int] | None:
    """The position and the 624 words of the generator behind the functions of `random`, shared; None if not found.

    Its C struct is an index and 624 words right after the object header.
    """
    instance: random.Random = random._inst
    # Check that the object is large enough before reading anything after its header.
    if type(instance).__mro__[-2].__basicsize__ >= object.__basicsize__ + 4 * (1 + _RANDOM_WORDS):
        words = words_at(id(instance) + object.__basicsize__, 1 + _RANDOM_WORDS)
        state = instance.getstate()[1]
        if words[0] == state[_RANDOM_WORDS] and words[1:] == memoryview(array("I", state[:_RANDOM_WORDS])):
            return words
    return None


@fact(
    "python.random",
    what="the generator of `random` keeps an index and 624 words right behind its header",
    source="CPython, Modules/_randommodule.c, RandomObject",
    seen="3.11 to 3.14",
    feature="quick hand-overs: the state is read by `getstate`, which costs more",
)
def _random_is_known() -> str:
    return "" if own_random_words() is not None else "the words are not there"


@fact(
    "python.buffers",
    what="a `Py_buffer` begins with the address",
    source="CPython, Include/pybuffer.h",
    seen="3.11 to 3.14",
    feature="a sync of a memory map that a library's C code asks for is not seen",
)
def _buffer_is_known() -> str:
    with mmap.mmap(-1, 8) as mapping:
        mapping[:8] = b"simdist!"
        address = address_of_buffer(mapping)
        if address is None:
            return "a mapping has no address"
        return "" if ctypes.string_at(address, 8) == b"simdist!" else "the first word is not the address"
