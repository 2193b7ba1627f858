"""Python functions that replace those of the C library for C code that calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from simdist.inside.system._calls import c_library

__all__ = ["LED_TYPES", "LedFunction", "error_number", "is_address_of", "set_error_number"]

LED_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "long": ctypes.c_ssize_t,
    "size": ctypes.c_size_t,
    "name": ctypes.c_char_p,
    "place": ctypes.c_void_p,
    "nothing": None,
}
"""The types of results and arguments, by short names."""


class LedFunction:
    """A function of the C library, and a Python function that C code calls in its place.

    Args:
        name: of the C library's function.
        types: the result's and then each argument's, names of `LED_TYPES`.
        lead: makes the Python function, given the C library's.
    """

    __slots__ = ("_ours", "_real", "address", "real_address")

    def __init__(self, name: str, types: str, lead: Callable[[Callable[..., int]], Callable[..., object]]) -> None:
        gives, *takes = (LED_TYPES[each] for each in types.split())
        prototype = ctypes.CFUNCTYPE(gives, *takes, use_errno=True)
        self._real = prototype((name, c_library()))
        self._ours = prototype(lead(self._real))
        self.address = ctypes.cast(self._ours, ctypes.c_void_p).value or 0
        self.real_address = ctypes.cast(self._real, ctypes.c_void_p).value or 0


def is_address_of(found: object, address: int) -> bool:
    """True if a function that was looked up by `ctypes` is the one at an address."""
    pointer: Any = found
    return ctypes.cast(pointer, ctypes.c_void_p).value == address


error_number, set_error_number = ctypes.get_errno, ctypes.set_errno
"""The calling thread's `errno`, as functions of `c_library` set and read it."""
