"""A hint for reports: modules that all ranks share and that keep something of one rank."""

from __future__ import annotations

import dis
import functools
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from simdist.frames import is_internal_file, is_user_file
from simdist.process import kept_for_all

__all__ = ["shared_lines"]

_SHOWN = 3  # names of a module
_DEFINED: tuple[type[Any], ...] = (FunctionType, type, type(functools.cache(len)))


def shared_lines(error: BaseException | None) -> list[str]:
    """Return a line for the first such module among those that the program's lines in the error's traceback use."""
    if error is None:
        return []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if _is_users(frame.f_code.co_filename):
            for module in _modules_used(frame):
                found = _kept(str(module.__file__)) if _is_users(vars(module).get("__file__")) else []
                if found:
                    names = ", ".join(found[:_SHOWN])
                    return [f"ranks share {names} of {module.__name__}; isolate=True gives each rank its own modules"]
    return []


def _modules_used(frame: FrameType) -> Iterator[ModuleType]:
    """Yield the module of a frame, and those that its code names, unless they are a rank's own."""
    mine = sys.modules.get(str(frame.f_globals.get("__name__")))
    if mine is not None and vars(mine) is frame.f_globals:
        yield mine
    named = {each.argval for each in dis.get_instructions(frame.f_code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for value in map(frame.f_globals.get, sorted(named)):
        if isinstance(value, ModuleType):
            if sys.modules.get(value.__name__) is value:
                yield value
        elif isinstance(value, _DEFINED):
            module = sys.modules.get(str(value.__module__))
            if module is not None and vars(module).get(value.__name__) is value:
                yield module


def _is_users(file: object) -> bool:
    return isinstance(file, str) and is_user_file(file) and not is_internal_file(file)


@functools.cache
def _kept(file: str) -> list[str]:
    try:
        return kept_for_all(Path(file).read_bytes())
    except OSError:
        return []
