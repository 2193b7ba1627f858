"""Changes inside the objects of modules, which a comparison of the modules' attributes does not show.

Compared are tables of classes (`pickle._Pickler.dispatch`, the members of an enumeration), registrations with generic
functions (`functools.singledispatch`), types of results and arguments of C functions (`ctypes`), settings in `torch`'s
style of configuration modules, and plain values in attributes of a library's own objects (`library.config`): numbers,
texts, functions, classes. A change to or from any other kind of object counts as normal work of the object.

In doubt: objects inside objects are not compared.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any

from simdist.inside.python import PYTHON_LIBRARY, ForeignLibrary, function_types

__all__ = ["CONTAINERS", "LARGE", "Insides", "change_of", "is_of_imports", "same_content", "same_entries"]

LARGE = 2_000  # with more entries than this, only their number is compared
CONTAINERS = frozenset((dict, list, set))
_MISSING = object()
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    enum.Enum,
)
_ATOMS = (bool, int, float, complex, str, bytes)
_Changes = Iterator[tuple[str, str]]


class Insides:
    """The contents of objects at one moment, by name."""

    def __init__(self) -> None:
        self._tables: list[tuple[str, Any, Any]] = []  # of classes, with a copy or their length
        self._registries: list[tuple[str, Mapping[type, object], frozenset[type]]] = []
        self._functions: list[tuple[str, ForeignLibrary, dict[str, tuple[object, object]]]] = []
        self._objects: list[tuple[str, object, dict[str, object]]] = []
        self._seen: set[int] = set()

    def add_class(self, name: str, attributes: dict[str, Any]) -> None:
        """Remember the tables in attributes of a class."""
        for key, value in attributes.items():
            if type(value) in CONTAINERS and key[:2] != "__":
                self._tables.append((f"{name}.{key}", value, value.copy() if len(value) <= LARGE else len(value)))

    def add(self, module: str, key: str, value: Any) -> None:
        """Remember the inside of a variable's value."""
        kind = type(value)
        name = f"{module}.{key}"
        if kind is types.FunctionType:
            registry = getattr(value, "registry", None)
            if type(registry) is types.MappingProxyType and value.__module__ == module:
                self._registries.append((name, registry, frozenset(registry)))
        elif issubclass(kind, ForeignLibrary):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                shown = "ctypes.pythonapi" if value is PYTHON_LIBRARY else name
                self._functions.append((shown, value, function_types(value)))
        elif kind.__module__.partition(".")[0] == module.partition(".")[0] and id(value) not in self._seen:
            self._seen.add(id(value))
            attributes = _attributes_of(value)
            if attributes is not None:
                self._objects.append((name, value, attributes))

    def looks_into(self, kind: type) -> bool:
        """False for types whose values are never compared inside."""
        return (
            kind is types.FunctionType
            or issubclass(kind, ForeignLibrary)
            or (
                getattr(kind, "__dictoffset__", 0) != 0
                and not issubclass(kind, type | types.ModuleType | enum.Enum | types.BuiltinFunctionType)
            )
        )

    def changes(self, is_new: Callable[[object], bool]) -> _Changes:
        """Yield the changes, without registrations by modules that are `is_new`: imported since then."""
        for name, table, before in self._tables:
            if not same_content(before, table) and not is_of_imports(before, table, is_new):
                yield name, change_of(before, table)
        for name, registry, kinds in self._registries:
            added = [kind for kind in registry if kind not in kinds and not is_new(kind)]
            if added:
                yield f"{name}.register", f"called for {', '.join(kind.__name__ for kind in added)}"
        for name, library, functions in self._functions:
            for each, (result, arguments) in function_types(library).items():
                was = functions.get(each)
                if was is not None and (was[0] is not result or was[1] != arguments):
                    yield f"{name}.{each}", "types of results or arguments set"
        for name, value, attributes in self._objects:
            for key, now in (_attributes_of(value) or {}).items():
                if not isinstance(now, _PLAIN):
                    continue
                earlier = attributes.get(key, _MISSING)
                if earlier is now or not isinstance(earlier, _PLAIN):
                    continue
                if not (isinstance(now, _ATOMS) and earlier == now):
                    yield f"{name}.{key}", "set"


def _attributes_of(value: object) -> dict[str, object] | None:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found.copy() if type(found) is dict else None


def is_of_imports(before: Any, now: Any, is_new: Callable[[object], bool]) -> bool:
    """True if the only change is added entries, registered by modules that were imported since then."""
    if isinstance(before, dict):
        added = [(key, value) for key, value in now.items() if key not in before]
        kept = all(key in now and now[key] is value for key, value in before.items())
    elif isinstance(before, list | set):
        known = set(map(id, before))
        added = [(each, *each) if type(each) is tuple else (each,) for each in now if id(each) not in known]
        kept = len(now) == len(before) + len(added)
    else:
        return False
    return kept and bool(added) and all(any(map(is_new, parts)) for parts in added)


def same_entries(before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """True if both have the same objects in the same order; a fast check."""
    return len(before) == len(now) and all(map(is_, before.values(), now.values())) and all(map(is_, before, now))


def same_content(before: Any, now: Any) -> bool:
    if isinstance(before, int):
        return before == len(now)
    if len(before) != len(now):
        return False
    if isinstance(now, list):
        return all(map(is_, before, now))
    if isinstance(now, dict):
        missing = object()
        return same_entries(before, now) or all(now.get(key, missing) is value for key, value in before.items())
    return set(map(id, before)) == set(map(id, now))


def change_of(before: Any, now: Any) -> str:
    sizes = before if isinstance(before, int) else len(before), len(now)
    if sizes[0] == sizes[1]:
        return "entries replaced"
    more, fewer = max(0, sizes[1] - sizes[0]), max(0, sizes[0] - sizes[1])
    return f"{more or fewer} {'entry' if more + fewer == 1 else 'entries'} {'added' if more else 'removed'}"
