"""Libraries, functions and values of C as Python programs see them by `ctypes`."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["FOREIGN_FUNCTION", "FOREIGN_VALUES", "PYTHON_LIBRARY", "ForeignLibrary", "function_types"]

ForeignLibrary = ctypes.CDLL
PYTHON_LIBRARY = ctypes.pythonapi
FOREIGN_FUNCTION: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]  # the base of all their classes
FOREIGN_VALUES: tuple[type, ...] = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)


def function_types(library: ForeignLibrary) -> dict[str, tuple[object, object]]:
    """The types of the result and of the arguments of each function that was looked up in a library, by name."""
    return {
        name: (function.restype, function.argtypes)
        for name, function in list(vars(library).items())
        if isinstance(function, FOREIGN_FUNCTION)
    }
