"""Changes modules of installed libraries as soon as a rank or the host has imported them.

Each package names the libraries that bypass what a rank is shown (`when_imported`); the layers above add modules of
torch that few programs import. A world that imports none of them pays for an unused finder, and for nothing else.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from simdist.process._patches import MakeAttribute, Patches

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from _typeshed.importlib import MetaPathFinderProtocol

__all__ = ["Finder", "adapted_modules", "install", "report_own", "when_imported"]

_OF_RANKS: dict[str, Callable[[Patches], None]] = {}  # those that a rank may import for itself
_ADAPTED: dict[str, Callable[[Patches], None]] = {}
_REMEMBERED: dict[str, None] = {}  # names of `_ADAPTED`


def when_imported(
    name: str, report: Callable[[Patches], None], *, by_rank: bool = False, remembered: bool = False
) -> None:
    """Call `report` in each world that has the module: at its beginning, or when the module has been imported.

    With `by_rank` also when a rank imports the module for itself. With `remembered` the next world takes the same steps
    without a call (`Patches.install`).
    """
    _ADAPTED[name] = report
    if by_rank:
        _OF_RANKS[name] = report
    if remembered:
        _REMEMBERED[name] = None


def adapted_modules() -> list[str]:
    """The names of the modules that are changed when they are imported."""
    return sorted(_ADAPTED)


def install(patches: Patches) -> None:
    """Change the modules that are imported, and the others when they are."""
    reported: dict[str, None] = {}
    again = []
    while there := [name for name in filter(sys.modules.__contains__, _ADAPTED) if name not in reported]:
        for name in there:  # one that is changed may import others
            reported[name] = None
            if name in _REMEMBERED:
                again.append(_ADAPTED[name])
            else:
                _ADAPTED[name](patches)
    patches.install(tuple(again))
    missing = list(itertools.filterfalse(reported.__contains__, _ADAPTED))
    if missing:
        patches.on_undo(Finder(patches, missing, sys.meta_path).withdraw)


def report_own(name: str) -> None:
    """Change a module that a rank has just imported for itself, if it is one of those that bypass what ranks see."""
    report = _OF_RANKS.get(name)
    if report is not None:
        report(_ForGood())


class _ForGood(Patches):
    """Replacements in a rank's own modules, never undone: the modules go with the world."""

    def replace(self, owner: object, name: str, replacement: object) -> None:
        setattr(owner, name, replacement)

    def wrap(self, owner: object, name: str, make: MakeAttribute) -> None:
        setattr(owner, name, make(getattr(owner, name)))


class Finder:
    """Stands in front of `finders` until all libraries of these names are imported."""

    def __init__(self, patches: Patches, names: list[str], finders: list[MetaPathFinderProtocol]) -> None:
        self._patches = patches
        self._names = names
        self._finders = finders
        finders.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, which also changes the module after it has run; None for every other module."""
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if name in self._names:  # code that asks for the spec need not load it
                    self._names.remove(name)
                    _ADAPTED[name](self._patches)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def withdraw(self) -> None:
        """Take it out of the finders."""
        if self in self._finders:
            self._finders.remove(self)
