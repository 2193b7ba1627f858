"""`__subclasses__()` of a class that all ranks share, such as `torch.nn.Module`, without those of other processes.

Ranks that import modules for themselves define the same classes, each its own. A shared base class knows all of them,
those of earlier worlds included. A program that looks for the kinds of something there would find each as often as
there are ranks, and change the classes of others if it changes what it finds.

Python does not keep who defined a class. But its functions keep the `__builtins__` of their module, and each process
has its own (`_isolation`). A class without functions, or with those of a module that was not imported through our
finder, is looked for by its name.

In doubt: such a class is seen by all if no process has anything under its name, as with one that a function made.
Forked children see their parent's classes, and it sees those that they define in its modules.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType

from simdist.process._runtime import current_process, current_runtime

__all__ = ["of_process", "without_those_of_others"]

Subclasses = Callable[[type], list[type]]
Modules = Mapping[str, ModuleType]
_OF_HOST = vars(builtins)


def without_those_of_others(original: Subclasses) -> Subclasses:
    """`type.__subclasses__` for ranks."""

    @functools.wraps(original)
    def __subclasses__(cls: type) -> list[type]:
        found = original(cls)
        runtime = current_runtime()
        if not found or runtime is None or runtime.isolation is None or current_process() is None:
            return found
        return runtime.isolation.own_classes(found)

    return __subclasses__


def of_process(
    found: Iterable[type], isolates: Callable[[str], bool], own: ModuleType, others: Iterable[Modules]
) -> list[type]:
    """Those that the process with the baton shares, or has defined; `own` is its `builtins`."""
    others = list(others)
    return [each for each in found if not _is_of_others(each, isolates, vars(own), others)]


def _is_of_others(kind: type, isolates: Callable[[str], bool], own: dict[str, object], others: list[Modules]) -> bool:
    home = vars(kind).get("__module__")
    if not isinstance(home, str) or not isolates(home):
        return False
    for function in _functions_of(kind):
        names: object = function.__builtins__  # type: ignore[attr-defined, unused-ignore]  # not in older stubs
        if names is not _OF_HOST:
            return names is not own
    mine = _named(kind, sys.modules.get(home))
    if mine is not None:
        return mine is not kind
    return any(_named(kind, modules.get(home)) is kind for modules in others)


def _functions_of(kind: type) -> Iterator[FunctionType]:
    """Functions of the class's body, also inside of decorators that keep them."""
    for value in list(vars(kind).values()):
        inside = value
        if isinstance(inside, staticmethod | classmethod):
            inside = inside.__func__
        elif isinstance(inside, property):
            inside = inside.fget
        while isinstance(inside, FunctionType):
            if inside.__module__ == kind.__module__:
                yield inside
            inside = vars(inside).get("__wrapped__")


def _named(kind: type, module: ModuleType | None) -> object:
    found: object = module
    for part in kind.__qualname__.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found
