"""Pools of the package `multiprocess` on a rank: those of `multiprocessing`, whose workers are simulated children.

`multiprocess` is a copy of `multiprocessing` that pickles with dill; the `num_proc` of Hugging Face's datasets, and
pathos, are built on it. Its processes would be really forked. On a rank its contexts make pools of the standard library
instead, and functions and arguments go over dill, as they do with `multiprocess`.

In doubt: its processes, pipes and locks without a pool are the package's own, and starting such a process is refused.
Results go over pickle.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import pool
from types import ModuleType
from typing import Any, TypeVar

from simdist.process._runtime import Patches, Replacement, current_process

__all__ = ["adapt"]

_S = TypeVar("_S")
_T = TypeVar("_T")
_mapstar: Callable[..., object] = vars(pool)["mapstar"]
_starmapstar: Callable[..., object] = vars(pool)["starmapstar"]


def adapt(patches: Patches) -> None:
    """Let ranks have pools of the standard library."""
    patches.redirect(_of(sys.modules["multiprocess.context"]))


@functools.cache
def _of(module: ModuleType) -> tuple[Replacement, ...]:
    return (Replacement(module.BaseContext, "Pool", _pool),)


def _pool(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def Pool(self: Any, *args: Any, **kwargs: Any) -> object:
        if current_process() is None:
            return original(self, *args, **kwargs)
        kwargs["context"] = multiprocessing.get_context(self.get_start_method())
        return _Pool(*args, **kwargs)

    return Pool


class _Pool(pool.Pool):
    """A pool whose functions and arguments go over dill."""

    def apply_async(
        self,
        func: Callable[..., _T],
        args: Iterable[object] = (),
        kwds: Mapping[str, object] | None = None,
        *reported: Any,
        **more: Any,
    ) -> pool.AsyncResult[_T]:
        """Let a worker call it."""
        return super().apply_async(_call, (_dumps((func, tuple(args), dict(kwds or {}))),), {}, *reported, **more)

    def imap(
        self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = 1
    ) -> pool.IMapIterator[_T]:
        """Call it with each, in order."""
        return super().imap(_Call(_dumps(func)), map(_dumps, iterable), chunksize)

    def imap_unordered(
        self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = 1
    ) -> pool.IMapIterator[_T]:
        """Call it with each, in any order."""
        return super().imap_unordered(_Call(_dumps(func)), map(_dumps, iterable), chunksize)

    def _map_async(
        self, func: Callable[..., _T], iterable: Iterable[object], mapper: object, *reported: object, **more: object
    ) -> pool.MapResult[_T]:
        call = _Call(_dumps(func), spreads=mapper is _starmapstar)
        inherited: Any = super()
        result: pool.MapResult[_T] = inherited._map_async(
            call, [_dumps(each) for each in iterable], _mapstar, *reported, **more
        )
        return result


class _Call:
    """Calls a function, pickled by dill, with an argument that is pickled likewise."""

    def __init__(self, function: bytes, *, spreads: bool = False) -> None:
        self._function = function
        self._spreads = spreads

    def __call__(self, argument: bytes) -> Any:
        function, given = _loads(self._function), _loads(argument)
        return function(*given) if self._spreads else function(given)


def _call(pickled: bytes) -> Any:
    function, args, kwds = _loads(pickled)
    return function(*args, **kwds)


def _dumps(thing: object) -> bytes:
    return bytes(_pickler().dumps(thing))


def _loads(pickled: bytes) -> Any:
    return _pickler().loads(pickled)


def _pickler() -> Any:
    """The pickler of the package, which is dill's."""
    return importlib.import_module("multiprocess.reduction").ForkingPickler
