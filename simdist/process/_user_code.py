"""Which code is the user's: not simdist's, not torch's, not Python's, and nothing that is installed."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from operator import call, is_
from types import ModuleType
from typing import Generic, TypeVar

from simdist.frames import is_user_file

__all__ = ["Searched", "UserModules"]

_T = TypeVar("_T")


class UserModules:
    """The user's modules among all that are imported, each judged once: there may be thousands of others."""

    def __init__(self) -> None:
        self._judged: dict[str, object] = {}  # by name, the module that was judged
        self._users: dict[str, ModuleType] = {}
        self._newest: tuple[int, str, object] = (0, "", None)

    def __iter__(self) -> Iterator[ModuleType]:
        modules = sys.modules
        name = next(reversed(modules), "")
        newest = len(modules), name, modules.get(name)
        if newest != self._newest:  # a module that is imported goes to the end
            self._newest = newest
            self._judge(dict(modules))
        return iter(list(self._users.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def _judge(self, modules: dict[str, object]) -> None:
        for name in [name for name in self._judged if name not in modules]:
            del self._judged[name]
            self._users.pop(name, None)
        for name, module in modules.items():
            if name in self._judged and self._judged[name] is module:
                continue
            self._judged[name] = module
            self._users.pop(name, None)
            if isinstance(module, ModuleType) and _is_users(name, vars(module).get("__file__")):
                self._users[name] = module


def _is_users(name: str, file: object) -> bool:
    return is_user_file(file) if isinstance(file, str) else name == "__main__"


class Searched(Generic[_T]):
    """What `search` finds in each of the user's modules: once, and again when the module has gained or lost a name."""

    def __init__(self, search: Callable[[ModuleType], Iterable[_T]]) -> None:
        self.modules = UserModules()
        self._search = search
        # Of each module, in one order: itself, how many names it has and the newest of them, and what was found.
        self._seen: list[weakref.ref[ModuleType]] = []
        self._looks: list[tuple[int, str]] = []
        self._found: list[tuple[_T, ...]] = []

    def __call__(self) -> Iterator[_T]:
        """What is found now, module by module."""
        # Every world asks, and there may be hundreds of modules: no line of Python runs for each unless one is new.
        modules = list(self.modules)
        spaces = list(map(vars, modules))
        looks = list(zip(map(len, spaces), map(next, map(reversed, spaces), repeat("")), strict=True))
        if looks != self._looks or not all(map(is_, modules, map(call, self._seen))):
            ids = map(id, map(call, self._seen))
            known = dict(zip(zip(ids, self._looks, strict=True), self._found, strict=True))
            keys = zip(map(id, modules), looks, strict=True)
            self._found = [
                known[key] if key in known else tuple(self._search(module))
                for key, module in zip(keys, modules, strict=True)
            ]
            self._seen, self._looks = list(map(weakref.ref, modules)), looks
        return chain.from_iterable(self._found)
