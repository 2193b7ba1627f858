"""Writes of ranks to state that all ranks and the host share, found by a comparison before and after a world.

Ranks live in one process. State that is known to belong to one rank is separate for each rank, or restored at the end.
Anything else that a rank writes, the next rank reads, and so does the next world. `shared_writes` lists these writes.

It compares the variables of modules, the entries of their lists, dictionaries and sets, the attributes of classes,
loggers, and settings that a world does not restore. It does not report the results of a module's import, also in tables
of other modules (a filter for its own warnings, a way to pickle its own types), the public names that a module looks up
at their first use, and writes that make no difference (`_harmless`, each with its reason).

In doubt: it does not see a write that is undone before the world ends, nor a write inside an object that is no module,
class or container of a module.
"""

from __future__ import annotations

import gc
import logging
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simdist.kernel import Bus
from simdist.process import is_filter_of_import
from simdist.shared._harmless import is_harmless
from simdist.shared._insides import CONTAINERS, LARGE, Insides, change_of, is_of_imports, same_content, same_entries
from simdist.world import WorldEnded, observed_by

__all__ = ["SharedWrites", "shared_writes"]

_Variables = Mapping[str, Any]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn garbage collection off: with so many new dictionaries it would traverse all objects."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@dataclass(slots=True)
class SharedWrites:
    """The writes of the watched worlds: names such as "builtins.print", sorted, each with its change."""

    found: dict[str, str] = field(default_factory=dict)
    everything: bool = False  # report harmless writes as well

    def lines(self) -> list[str]:
        """Return one line for each write."""
        return [f"{name}: {how}" for name, how in sorted(self.found.items())]

    def world_begins(self, bus: Bus) -> None:
        """Record the state now, and compare it when the world has ended."""
        with _without_collector():
            before = _State(everything=self.everything)

        def ended(_: WorldEnded) -> None:
            with _without_collector():
                self.found.update(before.changes())

        bus.listen(WorldEnded, ended)


@contextmanager
def shared_writes(*, everything: bool = False) -> Iterator[SharedWrites]:
    """Report writes to shared state by ranks of the worlds that run inside; `everything`: also harmless ones (caches).

    Example:
        >>> import json
        >>> with simdist.shared_writes() as written:
        ...     result = simdist.run(lambda: setattr(json, "dialect", "loose"), world_size=2)
        >>> del json.dialect
        >>> written.lines()
        ['json.dialect: added']
    """
    with observed_by(SharedWrites(everything=everything)) as written:
        yield written


class _State:
    """The state at one moment. Its copies keep the objects alive, so that no other object gets the same id."""

    def __init__(self, *, everything: bool) -> None:
        self._quiet = (lambda name: False) if everything else is_harmless
        self._dull: set[type] = set()  # types whose values are not compared inside
        self._modules: dict[str, dict[str, Any]] = {}
        self._containers: list[tuple[str, str, Any, Any]] = []  # a module, a variable, its value and that one's copy
        self._classes: list[tuple[type, dict[str, Any]]] = []  # some are equal to others: `typing._UnionGenericAlias`
        self._insides = Insides()
        self._settings = dict(_settings())
        self._imported = frozenset(sys.modules)
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and name != "__main__" and not self._quiet(f"{name}."):
                self._add_module(name, module)

    def _add_module(self, name: str, module: types.ModuleType) -> None:
        variables = self._modules[name] = vars(module).copy()
        dull = self._dull
        for key, value in variables.items():
            kind = type(value)  # `isinstance` would ask some objects
            if kind in dull:
                continue
            if kind in CONTAINERS:
                if key != "__builtins__":
                    copy = value.copy() if len(value) <= LARGE else len(value)
                    self._containers.append((name, key, value, copy))
            elif not issubclass(kind, type):
                if self._insides.looks_into(kind):
                    self._insides.add(name, key, value)
                else:
                    dull.add(kind)
            elif value.__module__ == name:
                attributes = vars(value).copy()
                self._classes.append((value, attributes))
                self._insides.add_class(f"{name}.{value.__qualname__}", attributes)

    def changes(self) -> dict[str, str]:
        """Return the changes since then, by name."""
        return {name: how for name, how in self._changes() if not self._quiet(name)}

    def _changes(self) -> Iterator[tuple[str, str]]:
        modules = list(sys.modules.items())
        now = {name: vars(module) for name, module in modules if isinstance(module, types.ModuleType)}
        for name, variables in self._modules.items():
            if name in now:
                late = _found_late(variables)
                for reported, how in self._written(f"{name}.", variables, now[name]):
                    if how != "added" or reported.removeprefix(f"{name}.") not in late:
                        yield reported, how
        for name, key, container, copy in self._containers:
            if now.get(name, {}).get(key) is not container or same_content(copy, container):
                continue
            if not is_of_imports(copy, container, self._is_new) and not self._is_harmless_elsewhere(container):
                yield f"{name}.{key}", change_of(copy, container)
        for kind, attributes in self._classes:
            yield from self._written(f"{kind.__module__}.{kind.__qualname__}.", attributes, vars(kind))
        yield from self._insides.changes(self._is_new)
        settings = dict(_settings())
        for name, value in self._settings.items():
            if name in settings and settings[name] != value and not is_of_imports(value, settings[name], self._is_new):
                yield name, "set"

    def _is_harmless_elsewhere(self, container: object) -> bool:
        """True if the same object is known to be harmless under another name: `from sys import modules`."""
        return any(each is container and self._quiet(f"{name}.{key}") for name, key, each, _ in self._containers)

    def _written(self, prefix: str, before: _Variables, now: _Variables) -> Iterator[tuple[str, str]]:
        for name, how in _differing(prefix, before, now):
            key = name.removeprefix(prefix)
            if not self._is_set_by_import(key, now.get(key)):
                yield name, how

    def _is_set_by_import(self, key: str, value: object) -> bool:
        """True for a function of a module that was imported since then, and has such a name at its top level."""
        if not (isinstance(value, types.FunctionType) and self._is_new(value)):
            return False
        loader: Any = getattr(sys.modules[value.__module__].__spec__, "loader", None)
        code = loader.get_code(value.__module__) if hasattr(loader, "get_code") else None
        return code is not None and key in code.co_names

    def _is_new(self, thing: object) -> bool:
        home = (thing if isinstance(thing, type | types.FunctionType) else type(thing)).__module__
        return (home in sys.modules and home not in self._imported) or is_filter_of_import(thing)


def _found_late(variables: _Variables) -> frozenset[str]:
    """Return the public names of a module that looks names up at their first use (PEP 562), and then keeps them."""
    return frozenset(map(str, variables.get("__all__", ()))) if "__getattr__" in variables else frozenset()


# Since Python 3.15: a name's value until its first use, which imports it.
_LAZY = (types.LazyImportType,) if hasattr(types, "LazyImportType") else ()


def _differing(prefix: str, before: _Variables, now: _Variables) -> Iterator[tuple[str, str]]:
    if same_entries(before, now):
        return  # the usual case
    for key, value in list(now.items()):
        if key not in before:
            if not isinstance(value, types.ModuleType):  # a package's submodule that was imported meanwhile
                yield prefix + key, "added"
        elif before[key] is not value and not _is_first_use(key, before[key], value) and not _alike(before[key], value):
            yield prefix + key, "set"
    for key in before:
        if key not in now:
            yield prefix + key, "deleted"


def _is_first_use(name: str, before: object, now: object) -> bool:
    """True for a name that is imported at its first use, as `lazy_importer` does it for importlib_metadata."""
    modules = types.ModuleType
    return type(before) in _LAZY or (
        isinstance(now, modules) and now.__name__ == name and not isinstance(before, modules | type(None))
    )


def _alike(one: object, other: object) -> bool:
    """True for equal numbers, texts and tuples."""
    plain = (int, float, str, bytes, bool, tuple, frozenset, type(None))
    try:
        return type(one) is type(other) and isinstance(one, plain) and bool(one == other)
    except Exception:
        return False


def _settings() -> Iterator[tuple[str, object]]:
    """Yield the settings that a world neither separates nor restores if ranks share their modules."""
    yield "warnings.filters", list(warnings.filters)
    yield "trace function", (sys.gettrace() is None, sys.getprofile() is None)
    decimal = sys.modules.get("decimal")
    if decimal is not None:
        for name in ("DefaultContext", "BasicContext", "ExtendedContext"):
            context = getattr(decimal, name)
            flags = [signal for signal, is_set in context.traps.items() if is_set]
            yield (
                f"decimal.{name}",
                (repr(context) if name == "DefaultContext" else (context.prec, context.rounding, flags)),
            )
    manager: Any = logging.root.manager
    for name, logger in [("root", logging.root), *list(manager.loggerDict.items())]:
        if isinstance(logger, logging.Logger):
            yield f"logging: level of {name!r}", logger.level
            yield f"logging: handlers of {name!r}", [id(each) for each in logger.handlers]
            yield f"logging: filters of {name!r}", [id(each) for each in logger.filters]
            yield f"logging: propagation of {name!r}", (logger.propagate, logger.disabled)
