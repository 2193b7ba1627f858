"""Types that ranks register as trees, in the C++ registry (`optree`), which torch also fills if it is installed.

The registry has one entry for a type and refuses another. So equal registrations by several ranks share one entry. It
calls the functions of the running rank, and is removed at the end of the world.

In doubt: C++ treats the type as a tree also on a rank that has not registered it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from simdist.inside.torch import trees
from simdist.process import (
    Extra,
    Patches,
    SimProcess,
    current_process,
    current_runtime,
    imported_for_all,
    when_imported,
)

__all__ = ["import_now"]

_NAME = "torch.utils._cxx_pytree"
_Functions = dict[SimProcess, tuple[Callable[..., object], ...]]
_TYPES: Extra[dict[type, _Functions]] = Extra("types as trees of C++")


def import_now() -> None:
    """Import the C++ registry, if there is one: it takes over earlier registrations, which then stay for good."""
    if getattr(trees, "_cxx_pytree_exists", False) and not trees._cxx_pytree_imported:
        importlib.import_module(_NAME)


def _calling(known: _Functions, place: int) -> Callable[..., object]:
    def call(*args: object) -> object:
        process: Any = current_process()
        functions = known.get(process) or next(iter(known.values()))
        return functions[place](*args)

    return call


def _sharing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register(
        cls: type, flatten_fn: Callable[..., object], unflatten_fn: Callable[..., object], **kwargs: object
    ) -> None:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None or imported_for_all(sys._getframe(1)):
            original(cls, flatten_fn, unflatten_fn, **kwargs)
            return
        types = runtime.extras.get(_TYPES)
        if types is None:
            types = runtime.extras[_TYPES] = {}
            runtime.patches.on_undo(functools.partial(_forget, types))
        known: _Functions = types.get(cls, {})
        if not known or process in known:  # a second registration raises
            original(cls, _calling(known, 0), _calling(known, 1), **kwargs)
            types[cls] = known
        known[process] = flatten_fn, unflatten_fn

    return register


def _forget(types: dict[type, _Functions]) -> None:
    for cls in types:
        vars(sys.modules[_NAME])["optree"].unregister_pytree_node(cls, namespace="torch")
    types.clear()


when_imported(_NAME, lambda patches: _install(patches))


def _install(patches: Patches) -> None:
    patches.wrap(sys.modules[_NAME], "_private_register_pytree_node", _sharing)
