"""Which code is the user's: not simdist's, not torch's, not Python's, and nothing that is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

from simdist.frames import is_user_file

__all__ = ["UserModules"]


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
