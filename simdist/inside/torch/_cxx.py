"""C++ objects in memory: torch's libraries, the words at an address, and tables of virtual functions.

An object begins with the address of its table. The two words before the table's first function belong to the type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from simdist.errors import UnsupportedError

__all__ = ["BeforeTable", "Pointer", "Table", "address_of", "copy_table", "keep_for_ever", "library", "stand_in"]
__all__ += ["table_of", "unknown"]

Pointer = ctypes.c_void_p
Table = Any  # pointers to functions, by index
BeforeTable = 2  # words of the type


def library(name: str) -> Any:
    """A library that torch has loaded, whose symbols are its attributes.

    Raises:
        UnsupportedError: there is no library of that name, as on systems other than Linux.
    """
    path = Path(torch.__file__).parent / "lib" / name
    if not path.is_file():
        raise unknown(f"has no {name}")
    return ctypes.CDLL(str(path))


def table_of(thing: int) -> Table:
    """The table of virtual functions of the object at an address."""
    return ctypes.cast(Pointer.from_address(thing).value or 0, ctypes.POINTER(Pointer))


def address_of(function: Any) -> int:
    """The address of a function that C++ can call."""
    return ctypes.cast(function, Pointer).value or 0


def copy_table(old: Table, words: int, answers: Mapping[int, Any]) -> tuple[int, object]:
    """A copy of a table with other functions at some indices: its address, and what must be kept alive for it.

    An answer is a function of `ctypes`, or an address.
    """
    table = (Pointer * (words + BeforeTable))(*[old[place] for place in range(-BeforeTable, words)])
    for place, answer in answers.items():
        table[place + BeforeTable] = answer if isinstance(answer, int) else address_of(answer)
    return ctypes.addressof(table) + BeforeTable * ctypes.sizeof(Pointer), table


def stand_in(table: int) -> tuple[int, object]:
    """An object that has nothing but a table: its address, and what must be kept alive for it."""
    thing = (Pointer * 1)(table)
    return ctypes.addressof(thing), thing


def keep_for_ever(*things: object) -> None:
    """Keep objects to which C++ points for as long as the process lives: tensors may be freed after all modules."""
    for each in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def unknown(what: str) -> UnsupportedError:
    """The error of a torch whose C++ is not as expected."""
    return UnsupportedError(
        f"virtual devices need a torch built as 2.13 or 2.14 is; this one ({torch.__version__}) {what}"
    )
