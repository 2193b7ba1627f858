"""Turns what the host hands to a rank with modules of its own into objects of the rank's classes and functions.

A real process gets copies over pickle. Here an object of one of the user's classes is made anew on each rank, as pickle
would make it, and so are containers that hold these objects, classes or functions. All else stays the host's, which
all ranks share: lists in which they collect results, tensors, locks, queues.

In doubt: attributes of an object of a shared class (a layer of torch that holds one of the user's) are not looked into;
nor is an object that pickle could not make.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

__all__ = ["HandedOver"]

_T = TypeVar("_T")


class HandedOver:
    """Makes the rank's objects of the host's.

    `own` returns the rank's class, function or module of the same name as the host's, or the host's if there is none;
    `isolates` says whether the rank has a module of this name for itself.
    """

    def __init__(self, own: Callable[[object], object], isolates: Callable[[str], bool]) -> None:
        self._own = own
        self._isolates = isolates
        self._made: dict[int, tuple[object, Any]] = {}  # by id of a thing: it, to keep it alive, and the rank's own

    def __call__(self, thing: _T) -> _T:
        """The same in the rank's terms."""
        found = self._made.get(id(thing))
        if found is None:
            found = self._made[id(thing)] = thing, self._of(thing)
        own: _T = found[1]
        return own

    def _of(self, thing: Any) -> Any:
        kind = type(thing)
        if isinstance(thing, type | FunctionType | MethodType | ModuleType):
            return self._own(thing)
        if kind is functools.partial:
            keywords = {name: self(each) for name, each in thing.keywords.items()}
            return functools.partial(self(thing.func), *map(self, thing.args), **keywords)
        if kind in (list, tuple, set, frozenset):
            self._made[id(thing)] = thing, thing  # for a container that holds itself
            parts = [self(each) for each in thing]
            return thing if all(a is b for a, b in zip(thing, parts, strict=True)) else kind(parts)
        if kind is dict:
            self._made[id(thing)] = thing, thing
            items = [(self(key), self(value)) for key, value in thing.items()]
            kept = all(a is c and b is d for (a, b), (c, d) in zip(thing.items(), items, strict=True))
            return thing if kept else dict(items)
        if not self._isolates(kind.__module__ or "builtins"):
            return thing
        if isinstance(thing, enum.Enum):
            return getattr(self(kind), thing.name, thing)
        return self._anew(thing)

    def _anew(self, thing: Any) -> Any:
        memo: dict[int, object] = {}

        def own(part: _T, memo: dict[int, object]) -> _T:
            if id(thing) in memo:  # the new object exists, and its state is being read
                self._made[id(thing)] = thing, memo[id(thing)]
            return self(part)

        try:
            reduced = thing.__reduce_ex__(4)
            if isinstance(reduced, str):
                return thing
            function, *rest = reduced
            rebuild = vars(copy)["_reconstruct"]
            return rebuild(thing, memo, self(function), *rest, deepcopy=own)
        except Exception:
            return thing
