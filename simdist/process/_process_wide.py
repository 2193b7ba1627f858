"""What a process sets for all of its threads: working folder, file mask, limits of the interpreter, the collector.

Each setting is a slot (`_slots`): from the first moment that a rank changes one, every process of the world has its
own, and the host's stands again when the world has ended. A world in which no rank changes any pays nothing for them.

`follow` makes slots of the settings of a library, for the layers above, which know the libraries.

In doubt: threads of the host see what the rank with the baton has set, as they do with every slot.
"""

from __future__ import annotations

import _csv
import contextlib
import copyreg
import faulthandler
import functools
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._redirect import original
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime
from simdist.process._slots import Slot

try:
    import _locale
except ImportError:  # a Python built without
    _locale: Any = None  # type: ignore[no-redef]

__all__ = ["followed", "install"]

Writer = tuple[Any, str]
"""A module, and the name of a function in it that changes a setting."""


def followed(
    name: str, writers: Sequence[Writer], save: Callable[[], Any], load: Callable[[Any], None]
) -> list[Replacement]:
    """Replacements that give each process its own setting from the first call of one of the `writers` on.

    `save` reads the setting and `load` sets it, past the replacements: `original(function)` does. A process begins with
    what the host has. Writers that this Python or this torch does not have are left out.
    """
    slot: Slot[Any] = Slot(name, save, load, _as_the_host)

    def separating(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def change(*args: Any, **kwargs: Any) -> Any:
            runtime = current_runtime()
            if runtime is not None and not imported_for_all(sys._getframe(1)):
                runtime.separate(slot)
            return function(*args, **kwargs)

        return change

    return [Replacement(owner, writer, separating) for owner, writer in writers if hasattr(owner, writer)]


def _as_the_host(process: SimProcess, of_host: Any) -> Any:
    return of_host


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody deleted it
        return None


def _enter_folder(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # likewise
            original(os.chdir)(path)


def _mask() -> int:
    mask: int = original(os.umask)(0)
    original(os.umask)(mask)
    return mask


def _set_recursion_limit(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # whoever hands the baton over stands deeper: then the higher one stays
        original(sys.setrecursionlimit)(limit)


def _collector() -> tuple[bool, tuple[int, ...], int]:
    return gc.isenabled(), original(gc.get_threshold)(), gc.get_debug()


def _set_collector(state: tuple[bool, tuple[int, ...], int]) -> None:
    enabled, thresholds, flags = state
    original(gc.enable if enabled else gc.disable)()
    original(gc.set_threshold)(*thresholds)
    original(gc.set_debug)(flags)


def _largest_field(*limit: int) -> Any:
    return original(_csv.field_size_limit)(*limit)


def _logging() -> tuple[Any, ...]:
    known: Any = logging
    return known.root.manager.disable, known.getLoggerClass(), dict(known._levelToName), dict(known._nameToLevel)


def _set_logging(state: tuple[Any, ...]) -> None:
    known: Any = logging
    disabled, logger_class, names, levels = state
    known.root.manager.disable = disabled
    known.root.manager._clear_cache()  # of what is enabled on which logger
    known._loggerClass = logger_class
    _fill(known._levelToName, names)
    _fill(known._nameToLevel, levels)


def _fill(table: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """In place: C code holds on to some of these."""
    if table != entries:
        table.clear()
        table.update(entries)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `faulthandler`: a rank's is switched on and off on paper. A signal that it reports is the host's."""
    name = original.__name__

    @functools.wraps(original)
    def do(*args: Any, **kwargs: Any) -> Any:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(*args, **kwargs)
        was = runtime.extras.get(("faulthandler", process), False)
        if name != "is_enabled":
            runtime.extras["faulthandler", process] = name == "enable"
        return None if name == "enable" else was

    return do


_DIGITS: Any = getattr(sys, "get_int_max_str_digits", None)

_REPLACEMENTS = (
    *followed("working folder", ((os, "chdir"), (os, "fchdir")), _folder, _enter_folder),
    *followed("file mask", ((os, "umask"),), _mask, lambda mask: original(os.umask)(mask)),
    *followed("recursion limit", ((sys, "setrecursionlimit"),), sys.getrecursionlimit, _set_recursion_limit),
    *followed(
        "switch interval",
        ((sys, "setswitchinterval"),),
        sys.getswitchinterval,
        lambda interval: original(sys.setswitchinterval)(interval),
    ),
    *followed(
        "digits of an integer",
        ((sys, "set_int_max_str_digits"),),
        _DIGITS,
        lambda digits: original(sys.set_int_max_str_digits)(digits),
    ),
    *followed(
        "garbage collection",
        ((gc, "enable"), (gc, "disable"), (gc, "set_threshold"), (gc, "set_debug")),
        _collector,
        _set_collector,
    ),
    *followed("largest field", ((_csv, "field_size_limit"),), _largest_field, _largest_field),
    *followed(
        "flags of dlopen",
        ((sys, "setdlopenflags"),),
        getattr(sys, "getdlopenflags", int),
        lambda flags: original(sys.setdlopenflags)(flags),
    ),
    *followed(
        "logging",
        ((logging, "disable"), (logging, "setLoggerClass"), (logging, "addLevelName")),
        _logging,
        _set_logging,
    ),
    *followed(
        "pickling by type",
        ((copyreg, "pickle"),),
        lambda: dict(copyreg.dispatch_table),
        lambda entries: _fill(copyreg.dispatch_table, entries),
    ),
    *followed(
        "timeout of sockets",
        ((socket, "setdefaulttimeout"),),
        socket.getdefaulttimeout,
        lambda timeout: original(socket.setdefaulttimeout)(timeout),
    ),
    *(
        ()
        if _locale is None
        else followed(
            "locale",
            ((_locale, "setlocale"),),
            lambda: original(_locale.setlocale)(_locale.LC_ALL),
            lambda name: original(_locale.setlocale)(_locale.LC_ALL, name),
        )
    ),
)


def _not_at_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `faulthandler`: a report after so many real seconds would say nothing of a rank."""

    @functools.wraps(original)
    def do(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if current_process() is None else None

    return do


_ON_PAPER = (
    *(Replacement(faulthandler, name, _noting) for name in ("enable", "disable", "is_enabled")),
    *(Replacement(faulthandler, name, _not_at_all) for name in ("dump_traceback_later", "cancel_dump_traceback_later")),
)
_ALL = (*_REPLACEMENTS, *_ON_PAPER)


def install(patches: Patches) -> None:
    """Watch for a rank that changes a setting."""
    patches.redirect(_ALL)
