"""Redirects, for a while, calls of functions of the C library by other libraries in this process.

A shared library calls another's function through a slot of its own, which the loader fills by name. This module finds
the slots as the loader does (`dl_iterate_phdr`, and the relocations of each library), and puts other addresses into
them. That reaches C code which was compiled long ago, and needs no compiler. It does not reach calls inside the C
library itself, system calls made by hand, and functions that are looked up by name (`dlsym`).

Linux on x86-64 and aarch64; elsewhere there are no slots.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Slot", "put_into", "slots_of"]

# By machine: the relocations whose place holds the plain address of a function (an absolute one, GLOB_DAT, JUMP_SLOT).
_KINDS = {"x86_64": (1, 6, 7), "aarch64": (257, 1025, 1026)}
_DYNAMIC, _PROTECTED = 2, 0x6474E552  # segments: PT_DYNAMIC, PT_GNU_RELRO
_STRINGS, _SYMBOLS = 5, 6  # entries of the first: DT_STRTAB, DT_SYMTAB
_RELOCATIONS = ((23, 2), (7, 8))  # where, and how many bytes: DT_JMPREL and DT_PLTRELSZ, DT_RELA and DT_RELASZ
_SYMBOL_BYTES = 24
_RELOCATION_WORDS = 3  # the place; the symbol, and in the lower half the kind; what is added


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a library keeps the address of the function that it calls by a name."""

    library: str
    name: str
    address: int
    protected: bool  # its page can't be written to


class _Segment(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("in_file", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    )


class _Library(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
        ("loaded", ctypes.c_uint64),  # number of libraries since the process began
        ("unloaded", ctypes.c_uint64),
    )


_Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
_cached: dict[tuple[str, ...], tuple[tuple[int, int], dict[tuple[str, int], tuple[Slot, ...]]]] = {}


@functools.cache
def _system() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _machine() -> tuple[int, ...]:
    fits = sys.platform == "linux" and sys.byteorder == "little" and struct.calcsize("P") == 8
    return _KINDS.get(platform.machine(), ()) if fits and hasattr(_system(), "dl_iterate_phdr") else ()


def slots_of(names: Collection[str], *, without: tuple[str, ...] = ()) -> list[Slot]:
    """The slots that libraries in this process have for functions of these names.

    Libraries whose file names begin with a word of `without` are left out.
    """
    if not _machine():
        return []
    key = (*sorted(names), "", *without)
    change, known = _cached.get(key, ((-1, -1), {}))
    now = _change()
    if now != change:
        wanted = set(names)
        known = {
            (name, base): known[name, base] if (name, base) in known else _read(name, base, segments, wanted)
            for name, base, segments in _libraries()
            if not name.rpartition("/")[2].startswith(without)
        }
        _cached[key] = now, known
    return [slot for slots in known.values() for slot in slots]


def _change() -> tuple[int, int]:
    """Two counts that change when a library is loaded or unloaded."""
    found: list[tuple[int, int]] = []

    def look(library: ctypes._Pointer[_Library], size: int, _: object) -> int:
        if size >= ctypes.sizeof(_Library):
            found.append((library.contents.loaded, library.contents.unloaded))
        return 1  # stop: every library has the counts

    _system().dl_iterate_phdr(_Look(look), None)
    return found[0] if found else (-2, -2)


def _libraries() -> list[tuple[str, int, list[tuple[int, int, int]]]]:
    found = []

    def look(library: ctypes._Pointer[_Library], _: int, __: object) -> int:
        each = library.contents
        segments = [each.segments[index] for index in range(each.count)]
        parts = [(part.kind, each.base + part.address, part.size) for part in segments]
        found.append(((each.name or b"").decode(errors="replace"), each.base, parts))
        return 0

    _system().dl_iterate_phdr(_Look(look), None)
    return found


def _read(library: str, base: int, segments: list[tuple[int, int, int]], names: Collection[str]) -> tuple[Slot, ...]:
    """The slots of one library, from its own tables."""
    at = next((address for kind, address, _ in segments if kind == _DYNAMIC), 0)
    entries = _entries(at, base) if at else {}
    if _STRINGS not in entries or _SYMBOLS not in entries:
        return ()
    protected = [(start, start + size) for kind, start, size in segments if kind == _PROTECTED]
    found: dict[int, Slot] = {}
    kinds = _machine()
    for table, size in _RELOCATIONS:
        if table not in entries or not entries.get(size):
            continue
        words = memoryview(ctypes.string_at(entries[table], entries[size])).cast("Q")
        reported: dict[int, str] = {}
        for at, info in enumerate(words[1::_RELOCATION_WORDS].tolist()):
            symbol, row = info >> 32, _RELOCATION_WORDS * at
            if not symbol or info & 0xFFFFFFFF not in kinds or words[row + 2]:
                continue
            name = reported.get(symbol)
            if name is None:
                offset = ctypes.c_uint32.from_address(entries[_SYMBOLS] + _SYMBOL_BYTES * symbol).value
                name = reported[symbol] = ctypes.string_at(entries[_STRINGS] + offset).decode(errors="replace")
            if name in names:
                address = base + words[row]
                safe = any(start <= address < end for start, end in protected)
                found[address] = Slot(library, name, address, safe)
    return tuple(found.values())


def _entries(at: int, base: int) -> dict[int, int]:
    """The entries of a library's dynamic section, by tag. Glibc has turned the offsets into addresses already."""
    found: dict[int, int] = {}
    while tag := ctypes.c_uint64.from_address(at).value:
        value = ctypes.c_uint64.from_address(at + 8).value
        is_place = tag in (_STRINGS, _SYMBOLS, _RELOCATIONS[0][0], _RELOCATIONS[1][0])
        found[tag] = base + value if is_place and value < base else value
        at += 16
    return found


def put_into(slots: Iterable[Slot], functions: Mapping[str, int]) -> dict[Slot, int]:
    """Put the addresses of these functions, by name, into slots; return what the slots held."""
    held: dict[Slot, int] = {}
    library, page = _system(), mmap.PAGESIZE
    for slot in slots:
        start = ctypes.c_void_p(slot.address // page * page)
        if slot.protected and library.mprotect(start, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE):
            continue
        place = ctypes.c_uint64.from_address(slot.address)
        held[slot] = place.value
        place.value = functions[slot.name]
        if slot.protected:
            library.mprotect(start, ctypes.c_size_t(page), mmap.PROT_READ)
    return held
