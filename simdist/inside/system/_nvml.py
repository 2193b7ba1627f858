"""The C side of NVIDIA's management library, for a stand-in with functions in Python: records, pointers, loading.

The functions get the arguments that a caller passes by ctypes: numbers, `byref(object)`, pointers and arrays.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Memory", "MemoryOfV2", "PciPlace", "ProcessOfV1", "ProcessOnDevice", "Utilization", "become_library"]
__all__ += [
    "dynamic_library",
    "fill",
    "give",
    "give_handle",
    "give_records",
    "give_text",
    "handle_of",
    "number_of",
    "version_of",
]

dynamic_library = ctypes.CDLL


class Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class MemoryOfV2(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Utilization(ctypes.Structure):
    """`nvmlUtilization_t`."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class ProcessOfV1(ctypes.Structure):
    """`nvmlProcessInfo_v1_t`."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class ProcessOnDevice(ctypes.Structure):
    """`nvmlProcessInfo_t`, of version 2 on."""

    _fields_ = (*ProcessOfV1._fields_, ("instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint))


class PciPlace(ctypes.Structure):
    """`nvmlPciInfo_t`."""

    _fields_ = (
        ("short_name", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "model", "subsystem")),
        ("name", ctypes.c_char * 32),
    )


class _Library(ctypes.CDLL):
    """A library with functions in Python. One that it lacks is an `AttributeError`, as in an older library."""

    functions: Mapping[str, Callable[..., object]]

    def __getitem__(self, name_or_ordinal: Any) -> Any:
        function = self.functions.get(name_or_ordinal)
        if function is None:
            raise AttributeError(f"{self._name}: undefined symbol: {name_or_ordinal}")
        return functools.partial(function)  # a caller may set `restype` and `argtypes`


def become_library(library: ctypes.CDLL, name: str, functions: Mapping[str, Callable[..., object]]) -> None:
    """Let an object that has not loaded anything have these functions."""
    library._name, library._handle = name, 0
    library.__class__ = _Library
    vars(library)["functions"] = functions


def number_of(value: object) -> int:
    """The number that an argument is, or that it points to."""
    found = _target(value)
    return int(getattr(found, "value", found))


def version_of(pointer: object) -> int:
    """The number that the record at a pointer begins with."""
    return ctypes.c_uint.from_address(ctypes.addressof(_target(pointer))).value


def _target(pointer: Any) -> Any:
    return pointer._obj if hasattr(pointer, "_obj") else getattr(pointer, "contents", pointer)


def give(pointer: object, value: int) -> None:
    """Write a number where a pointer points."""
    _target(pointer).value = value


def fill(pointer: object, record: ctypes.Structure) -> None:
    """Write a record where a pointer points."""
    _copy(ctypes.addressof(_target(pointer)), record)


def give_records(pointer: object, records: list[ctypes.Structure]) -> None:
    """Write records one after the other, into an array or from a pointer on."""
    place = ctypes.addressof(pointer if isinstance(pointer, ctypes.Array) else _target(pointer))
    for each in records:
        _copy(place, each)
        place += ctypes.sizeof(each)


def _copy(place: int, record: ctypes.Structure) -> None:
    ctypes.memmove(place, ctypes.addressof(record), ctypes.sizeof(record))


def give_text(buffer: object, length: object, text: str) -> bool:
    """Write text into a buffer; False if it is too small."""
    fits = number_of(length) > len(text)
    if fits:
        _target(buffer).value = text.encode()
    return fits


def give_handle(pointer: object, number: int) -> None:
    """Write a handle, a pointer that is no address."""
    ctypes.c_void_p.from_buffer(_target(pointer)).value = number


def handle_of(argument: object) -> int:
    """The number of a handle; 0 for a null pointer."""
    handle: Any = argument
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
