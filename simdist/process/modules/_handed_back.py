"""Turns what a rank with modules of its own returns or raises into objects of the host's classes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

__all__ = ["HandedBack"]

_T = TypeVar("_T")


class HandedBack:
    """Turns instances of a rank's classes into instances of the host's, in place if possible.

    Looks into lists, tuples, dictionaries, sets, the attributes of these instances, and the chain of an exception.
    `of_host` returns the host's class or function of the same name as a rank's, or the rank's if there is none.
    """

    def __init__(self, of_host: Callable[[Any], Any]) -> None:
        self._of_host = of_host
        # By id of a thing: the thing itself, to keep it alive, and what it became.
        self._seen: dict[int, tuple[object, Any]] = {}

    def __call__(self, thing: _T) -> _T:
        """The same in the host's terms."""
        found = self._seen.get(id(thing))
        if found is not None:
            before: _T = found[1]
            return before
        self._seen[id(thing)] = thing, thing
        made: _T = self._made(thing)
        self._seen[id(thing)] = thing, made
        return made

    def _made(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType):
            return self._of_host(thing)
        if type(thing) is list:
            thing[:] = [self(each) for each in thing]
            return thing
        if type(thing) is dict:
            items = [(self(key), self(value)) for key, value in thing.items()]
            thing.clear()
            thing.update(items)
            return thing
        if type(thing) in (tuple, set, frozenset):
            parts = [self(each) for each in thing]
            return thing if all(a is b for a, b in zip(thing, parts, strict=True)) else type(thing)(parts)
        if isinstance(thing, BaseException):
            for name in ("__cause__", "__context__", "args"):
                setattr(thing, name, self(getattr(thing, name)))
        mine = type(thing)
        hosts = self._of_host(mine)
        if hosts is mine:
            return thing
        if isinstance(thing, enum.Enum):
            return getattr(hosts, thing.name, thing)
        try:
            thing.__class__ = hosts
        except TypeError:  # another layout, such as other slots
            return thing
        if hasattr(thing, "__dict__"):
            self(vars(thing))
        return thing
