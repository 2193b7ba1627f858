"""Which code is the user's: not simdist's, not torch's, not Python's, and nothing that is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import is_
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
        self._all: tuple[ModuleType, ...] = ()

    def all(self) -> tuple[ModuleType, ...]:
        """The user's modules that are imported now; the same tuple as long as they are the same."""
        modules = sys.modules
        name = next(reversed(modules), "")
        newest = len(modules), name, modules.get(name)
        if newest != self._newest:  # `sys.modules` gets a new module at its end
            self._newest = newest
            self._judge(dict(modules))
            users = tuple(self._users.values())
            if len(users) != len(self._all) or not all(map(is_, users, self._all)):
                self._all = users
        return self._all

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
    """Calls `search` for each of the user's modules once, and again when its number of names has changed."""

    def __init__(self, search: Callable[[ModuleType], Iterable[_T]]) -> None:
        self.modules = UserModules()
        self._search = search
        # Of each module, in one order: itself, its names, how many they are, and what was found.
        self._seen: tuple[ModuleType, ...] = ()
        self._spaces: list[dict[str, object]] = []
        self._counts: list[int] = []
        self._found: list[tuple[_T, ...]] = []

    def __call__(self) -> Iterator[_T]:
        """What is found now, module by module."""
        # Every world calls this, and there may be hundreds of modules, none of which is in the processor's caches. So
        # this reads as little as possible of each, and runs no line of Python for it unless one is new.
        modules = self.modules.all()
        spaces = self._spaces if modules is self._seen else list(map(vars, modules))
        counts = list(map(len, spaces))
        if spaces is not self._spaces or counts != self._counts:
            known = dict(zip(zip(map(id, self._seen), self._counts, strict=True), self._found, strict=True))
            keys = zip(map(id, modules), counts, strict=True)
            self._found = [
                known[key] if key in known else tuple(self._search(module))
                for key, module in zip(keys, modules, strict=True)
            ]
            self._seen, self._spaces, self._counts = modules, spaces, counts
        return chain.from_iterable(self._found)
