"""Methods that were taken before the world began: `clock = datetime.now`, `take = lock.acquire`.

A function exists once, and can itself be redirected (`Redirection`). But each access to `datetime.now` makes a new
object, bound to the class, and one made before the world still calls the method that the class had then. These objects
have to be found: in the variables of the user's modules and of the functions that the ranks run, and in whatever these
refer to: a default argument, a class attribute, a `functools.partial`, a dataclass field, a closure or a container.

A module is searched once, and again when its number of names has changed. Not found are objects in installed
packages, in very large containers, and those that a program puts in the place of others between two worlds.
The determinism checker points at the line that calls one of those.
"""

from __future__ import annotations

import builtins
import gc
import types
from collections.abc import Callable, Iterable
from typing import Any

from simdist.inside.python import Redirection
from simdist.process._patches import Make
from simdist.process._user_code import Searched

__all__ = ["EarlyMethods"]

_MODULE_BUDGET = 5_000  # objects looked at for one module
_CALL_BUDGET = 500  # and for the functions that the ranks run, in each world
_LARGE = 1_000  # a container with more entries is not searched
_CONTAINERS = (dict, list, tuple, set, frozenset)
_NOT_LOOKED_INTO = (types.ModuleType, types.CodeType, types.FrameType)
_OF_THE_IMPORT = ("__loader__", "__spec__")  # pytest's loader holds its whole session


class EarlyMethods:
    """Bound methods of C, found where user code keeps them.

    Each of `makers` is called with a method, and returns the function that makes its replacement, or None.
    """

    def __init__(self, *makers: Callable[[types.BuiltinFunctionType], Make | None]) -> None:
        self._makers = makers
        self._in_modules = Searched(self._in_module)

    def among(self, called: Iterable[object]) -> list[Redirection]:
        """Redirections of methods in the user's modules, and of those reachable from `called`, which the ranks run."""
        found = list(self._in_modules())
        known = {id(each.function) for each in found}
        found += [
            self._redirection(method) for method in self._reached(list(called), _CALL_BUDGET) if id(method) not in known
        ]
        return found

    def _in_module(self, module: types.ModuleType) -> list[Redirection]:
        own = [value for name, value in vars(module).items() if name not in _OF_THE_IMPORT]
        return [self._redirection(method) for method in self._reached(own, _MODULE_BUDGET)]

    def _redirection(self, method: types.BuiltinFunctionType) -> Redirection:
        make = self._maker_of(method)
        assert make is not None
        return Redirection(method, make)  # not kept: a program may make any number of these

    def _maker_of(self, method: types.BuiltinFunctionType) -> Make | None:
        return next(filter(None, (maker(method) for maker in self._makers)), None)

    def _reached(self, things: list[object], budget: int) -> list[types.BuiltinFunctionType]:
        """The methods among `things` and what they refer to, the nearest first."""
        seen = {id(builtins.__dict__)}
        methods: list[types.BuiltinFunctionType] = []
        things = list(filter(gc.is_tracked, things))
        for thing in things:  # `things` grows in the loop
            key = id(thing)
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > budget:
                break
            if type(thing) is types.BuiltinFunctionType:
                if self._maker_of(thing) is not None:
                    methods.append(thing)
            else:
                things += filter(gc.is_tracked, self._held_by(thing))
        return methods

    def _held_by(self, thing: Any) -> list[object]:
        kind = type(thing)
        if kind is types.FunctionType:  # without its globals
            held = [thing.__defaults__, thing.__kwdefaults__, vars(thing)]
            for cell in thing.__closure__ or ():
                held += gc.get_referents(cell)
            return held
        if issubclass(kind, type):
            return list(vars(thing).values()) if vars(thing).get("__module__") in self._in_modules.modules else []
        if issubclass(kind, _NOT_LOOKED_INTO) or (issubclass(kind, _CONTAINERS) and len(thing) > _LARGE):
            return []
        return gc.get_referents(thing)
