"""Settings of a process for all of its threads: working folder, file mask, limits of the interpreter, the collector.

Each setting is a slot (`_slots`): from the first moment that a rank changes one, every process of the world has its
own, and the host's is back when the world has ended. A world in which no rank changes any pays nothing for them.

`followed` makes slots of the settings of a library, for the layers above, which know the libraries.

In doubt: threads of the host see what the rank with the baton has set, as they do with every slot.
"""

from __future__ import annotations

import _csv
import contextlib
import copyreg
import functools
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from simdist.inside.python import original
from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_runtime
from simdist.process._slots import Slot, name_own

try:
    import _locale
except ImportError:  # a Python built without
    _locale: Any = None  # type: ignore[no-redef]

__all__ = ["followed", "followed_variables", "install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S")
_K = TypeVar("_K")
_V = TypeVar("_V")
_LoggingState = tuple[int, type[logging.Logger], dict[int, str], dict[str, int], tuple[object, object, object, object]]
Writer = tuple[object, str]
"""A module, and the name of a function in it that changes a setting."""


def followed(
    name: str,
    writers: Sequence[Writer],
    save: Callable[[], _S],
    load: Callable[[_S], object],
    copied: Callable[[_S], _S] | None = None,
    *,
    kept_by_exec: bool = False,
) -> list[Replacement]:
    """Replacements that give each process its own setting from the first call of one of the `writers` on.

    `save` reads the setting and `load` sets it, both by the original functions (`original(function)`). A process begins
    with the host's setting, `copied` if that is an object that changes; with its parent's if a program keeps it by
    `exec`. Writers that this Python or this torch does not have are left out.
    """
    slot: Slot[_S] = Slot(name, save, load, _as_the_host, kept_by_exec=kept_by_exec)
    if copied is not None:
        slot = Slot(name, save, load, lambda process, of_host: copied(of_host), copied)
    return _separating(slot, writers)


def _separating(slot: Slot[_S], writers: Sequence[Writer]) -> list[Replacement]:
    def separating(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def change(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            runtime = current_runtime()
            if runtime is not None:
                if imported_for_all(sys._getframe(1)):
                    runtime.slots.change_all(slot, lambda: function(*args, **kwargs))
                else:
                    runtime.separate(slot)
            return function(*args, **kwargs)

        return change

    return [Replacement(owner, writer, separating) for owner, writer in writers if hasattr(owner, writer)]


def followed_variables(
    name: str,
    module: ModuleType,
    variables: Sequence[str],
    writers: Sequence[str],
    begin: Callable[[], list[object]] | None = None,
) -> list[Replacement]:
    """As `followed`, for variables of a module that its functions write; none if this version lacks one of them.

    A writer may be a method, "Class.method". `begin` makes the values that a process begins with, else the host's.
    """
    namespace = vars(module)

    def save() -> list[object]:
        return [namespace[each] for each in variables]

    def load(values: list[object]) -> None:
        namespace.update(zip(variables, values, strict=True))

    if not all(each in namespace for each in variables):
        return []
    slot = Slot(name, save, load, _as_the_host if begin is None else lambda process, of_host: begin())
    name_own(module.__name__, variables, slot)
    return _separating(slot, [_writer(module, each) for each in writers])


def _writer(module: ModuleType, name: str) -> Writer:
    owner, dot, method = name.partition(".")
    return (getattr(module, owner), method) if dot else (module, name)


def _as_the_host(process: SimProcess, of_host: _S) -> _S:
    return of_host


def _folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted
        return None


def _enter_folder(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):  # likewise
            original(os.chdir)(path)


def _mask() -> int:
    mask = original(os.umask)(0)
    original(os.umask)(mask)
    return mask


def _set_recursion_limit(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # the stack is deeper at this hand-over: the higher limit stays
        original(sys.setrecursionlimit)(limit)


def _collector() -> tuple[bool, tuple[int, ...], int]:
    return gc.isenabled(), original(gc.get_threshold)(), gc.get_debug()


def _set_collector(state: tuple[bool, tuple[int, ...], int]) -> None:
    enabled, thresholds, flags = state
    original(gc.enable if enabled else gc.disable)()
    original(gc.set_threshold)(*thresholds)
    original(gc.set_debug)(flags)


def _largest_field(*limit: int) -> int:
    return original(_csv.field_size_limit)(*limit)


def _dialects() -> dict[str, Any]:
    return {name: _csv.get_dialect(name) for name in _csv.list_dialects()}


def _set_dialects(dialects: dict[str, Any]) -> None:
    for name in _csv.list_dialects():
        original(_csv.unregister_dialect)(name)
    for name, dialect in dialects.items():
        original(_csv.register_dialect)(name, dialect)


_known_types: Any = copyreg  # these have what the stubs leave out
_known_logging: Any = logging
_PICKLED: tuple[dict[object, object], ...] = (
    _known_types.dispatch_table,
    _known_types._extension_registry,
    _known_types._inverted_registry,
    _known_types._extension_cache,
)


def _set_pickling(contents: list[dict[object, object]]) -> None:
    for table, entries in zip(_PICKLED, contents, strict=True):
        _fill(table, entries)


def _logging() -> _LoggingState:
    known = _known_logging
    manager = known.root.manager
    return (
        manager.disable,
        known._loggerClass,
        dict(known._levelToName),
        dict(known._nameToLevel),
        (known._logRecordFactory, manager.loggerClass, manager.logRecordFactory, known._warnings_showwarning),
    )


def _set_logging(state: _LoggingState) -> None:
    known = _known_logging
    disabled, logger_class, names, levels, makers = state
    manager = known.root.manager
    known._logRecordFactory, manager.loggerClass, manager.logRecordFactory, known._warnings_showwarning = makers
    manager.disable = disabled
    manager._clear_cache()  # of what is enabled on which logger
    known._loggerClass = logger_class
    _fill(known._levelToName, names)
    _fill(known._nameToLevel, levels)


def _fill(table: dict[_K, _V], entries: dict[_K, _V]) -> None:
    """Fill a table in place: C code keeps references to some of these."""
    if table != entries:
        table.clear()
        table.update(entries)


def _trace_threads(hooks: tuple[Any, Any]) -> None:
    original(threading.settrace)(hooks[0])
    original(threading.setprofile)(hooks[1])


_REPLACEMENTS = (
    *followed("working folder", ((os, "chdir"), (os, "fchdir")), _folder, _enter_folder),
    *followed("file mask", ((os, "umask"),), _mask, lambda mask: original(os.umask)(mask), kept_by_exec=True),
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
        getattr(sys, "get_int_max_str_digits", int),
        lambda digits: original(sys.set_int_max_str_digits)(digits),
    ),
    *followed(
        "garbage collection",
        ((gc, "enable"), (gc, "disable"), (gc, "set_threshold"), (gc, "set_debug")),
        _collector,
        _set_collector,
    ),
    *followed("dialects of CSV", ((_csv, "register_dialect"), (_csv, "unregister_dialect")), _dialects, _set_dialects),
    *followed("largest field", ((_csv, "field_size_limit"),), _largest_field, _largest_field),
    *followed(
        "flags of dlopen",
        ((sys, "setdlopenflags"),),
        getattr(sys, "getdlopenflags", int),
        lambda flags: original(sys.setdlopenflags)(flags),
    ),
    *followed(
        "logging",
        (
            (logging, "captureWarnings"),
            (logging, "disable"),
            (logging, "setLoggerClass"),
            (logging, "setLogRecordFactory"),
            (logging, "addLevelName"),
            (logging.Manager, "setLoggerClass"),
            (logging.Manager, "setLogRecordFactory"),
        ),
        _logging,
        _set_logging,
    ),
    *followed(
        "pickling by type",
        tuple((copyreg, name) for name in ("pickle", "add_extension", "remove_extension", "clear_extension_cache")),
        lambda: [dict(table) for table in _PICKLED],
        _set_pickling,
    ),
    *followed(
        "what traces new threads",
        ((threading, "settrace"), (threading, "setprofile")),
        lambda: (threading.gettrace(), threading.getprofile()),
        _trace_threads,
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


def install(patches: Patches) -> None:
    """Watch for a rank that changes a setting."""
    patches.redirect(_REPLACEMENTS)
