"""What ranks leave in state that all of them, and the host, share: found by looking before and after a world.

Ranks live in one process. What is known to belong to one rank is each rank's own, or put back at the end; anything else
that a rank writes, the next rank reads, and the next world too. `shared_writes` names it.

Looked at are the variables of modules, the entries of their lists, dictionaries and sets, the attributes of classes,
loggers, and settings that a world does not put back itself. Not told are what the import of a module leaves, and what
makes no difference (`_harmless_writes`, each with its reason).

In doubt: a write that is taken back before the world ends is not seen, and neither is one inside an object that is no
module, class or container of a module.
"""

from __future__ import annotations

import gc
import logging
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from simdist._harmless_writes import is_harmless
from simdist._observer import WorldEnded, observed_by
from simdist.kernel import Bus

__all__ = ["SharedWrites", "shared_writes"]

_LARGE = 2_000  # entries from which on only the number is compared
_CONTAINERS = frozenset((dict, list, set))


@contextmanager
def _without_collector() -> Iterator[None]:
    """A collection amid so many new dictionaries walks all that there is."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@dataclass(slots=True)
class SharedWrites:
    """What the worlds that were watched left behind: names such as "builtins.print", sorted, with what happened."""

    found: dict[str, str] = field(default_factory=dict)
    everything: bool = False  # what is known to be harmless as well

    def lines(self) -> list[str]:
        """One line for each."""
        return [f"{name}: {how}" for name, how in sorted(self.found.items())]

    def world_begins(self, bus: Bus) -> None:
        """Look now, and when it has ended."""
        with _without_collector():
            before = _State(everything=self.everything)

        def ended(_: WorldEnded) -> None:
            with _without_collector():
                self.found.update(_State(everything=self.everything).since(before))

        bus.listen(WorldEnded, ended)


@contextmanager
def shared_writes(*, everything: bool = False) -> Iterator[SharedWrites]:
    """Tell what ranks of the worlds that run inside leave in state that they share; `everything`: caches too.

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
    """Everything that is compared, by name. Objects are kept, so that no other one can take an identity over."""

    def __init__(self, *, everything: bool) -> None:
        self._quiet = (lambda name: False) if everything else is_harmless
        self.modules: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, tuple[Any, Any]] = {}
        self.classes: dict[type, dict[str, Any]] = {}
        self.settings = dict(_settings())
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and name != "__main__" and not self._quiet(f"{name}."):
                self._add_module(name, module)

    def _add_module(self, name: str, module: types.ModuleType) -> None:
        variables = self.modules[name] = dict(vars(module))
        for key, value in variables.items():
            kind = type(value)  # `isinstance` would ask some objects
            if kind in _CONTAINERS and key != "__builtins__":
                self.contents[f"{name}.{key}"] = value, _content(value)
            elif issubclass(kind, type) and value.__module__ == name:
                self.classes[value] = dict(vars(value))

    def since(self, before: _State) -> dict[str, str]:
        """What is another than before, by name."""
        return {name: how for name, how in self._changes(before) if not self._quiet(name)}

    def _changes(self, before: _State) -> Iterator[tuple[str, str]]:
        for name, variables in self.modules.items():
            if name in before.modules:
                yield from _differing(f"{name}.", before.modules[name], variables)
        for name, (thing, content) in self.contents.items():
            known = before.contents.get(name)
            if known is not None and known[0] is thing and known[1] != content:
                yield name, _change_of(known[1], content)
        for kind, attributes in self.classes.items():
            if kind in before.classes:
                yield from _differing(f"{kind.__module__}.{kind.__qualname__}.", before.classes[kind], attributes)
        for name, value in self.settings.items():
            if name not in before.settings:
                continue
            if before.settings[name] != value:
                yield name, "set"


def _differing(prefix: str, before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if len(before) == len(now) and all(map(is_, before.values(), now.values())) and list(before) == list(now):
        return  # as nearly always
    for key, value in now.items():
        if key not in before:
            if not isinstance(value, types.ModuleType):  # a part of a package, imported meanwhile
                yield prefix + key, "added"
        elif before[key] is not value and not _alike(before[key], value):
            yield prefix + key, "set"
    for key in before:
        if key not in now:
            yield prefix + key, "deleted"


def _alike(one: Any, other: Any) -> bool:
    """True for equal numbers and texts, and for what is bound anew at each look."""
    plain = (int, float, str, bytes, bool, tuple, frozenset, type(None))
    try:
        return type(one) is type(other) and isinstance(one, plain) and bool(one == other)
    except Exception:
        return False


def _content(container: Any) -> Any:
    if len(container) > _LARGE:
        return len(container)
    if isinstance(container, dict):
        return {key: id(value) for key, value in container.items()}
    return [id(each) for each in container] if isinstance(container, list) else {id(each) for each in container}


def _change_of(before: Any, now: Any) -> str:
    sizes = [each if isinstance(each, int) else len(each) for each in (before, now)]
    if sizes[0] == sizes[1]:
        return "entries replaced"
    more, fewer = max(0, sizes[1] - sizes[0]), max(0, sizes[0] - sizes[1])
    return f"{more or fewer} {'entry' if more + fewer == 1 else 'entries'} {'added' if more else 'removed'}"


def _settings() -> Iterator[tuple[str, Any]]:
    """Those that a world neither keeps apart nor puts back where ranks share their modules."""
    yield "warnings.filters", list(warnings.filters)
    yield "trace function", (sys.gettrace() is None, sys.getprofile() is None)
    manager: Any = logging.root.manager
    for name, logger in [("root", logging.root), *list(manager.loggerDict.items())]:
        if isinstance(logger, logging.Logger):
            yield f"logging: level of {name!r}", logger.level
            yield f"logging: handlers of {name!r}", [id(each) for each in logger.handlers]
            yield f"logging: filters of {name!r}", [id(each) for each in logger.filters]
            yield f"logging: propagation of {name!r}", (logger.propagate, logger.disabled)
