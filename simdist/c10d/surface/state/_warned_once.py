"""Warnings that torch shows once in a process.

Ranks and worlds share what torch notes of them, so only the first rank of the first world would be warned. C++ shows
them always while a world lives, and each process drops those that it has been shown; a process that calls
`torch.set_warn_always` gets what it asks for. What Python notes is separate for each process, once a rank is warned.

In doubt: C++ keeps what the host was shown before the world; ranks are warned all the same, as processes that begin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

from simdist.c10d.calls._log import log
from simdist.inside.torch import (
    SHOWN_ONCE,
    core_bindings,
    log_once,
    show_always,
    shows_always,
    storage_warning,
    write_by,
)
from simdist.process import (
    Patches,
    Replacement,
    SimProcess,
    Slot,
    current_process,
    current_runtime,
    note_shown_again,
    original,
)

__all__ = ["begin", "end", "install"]

_PLACE = "(Triggered internally at "


def _is_shown_again(process: SimProcess, text: str) -> bool:
    """True for a warning of C++ that this process would not be shown: it has been already."""
    start, state = text.rfind(_PLACE), process.torch_state
    if start < 0 or state is None or state.shown_once is None or not text.startswith(SHOWN_ONCE):
        return False
    before = len(state.shown_once)
    state.shown_once.add(text[start:])
    return len(state.shown_once) == before


def _log(text: str, function: str, place: str) -> bool:
    """Write a warning of C++ to the stderr of its rank; False on a thread of the host."""
    process = current_process()
    if process is None:
        return False
    state = process.torch_state
    if state is not None and state.shown_once is not None and text.startswith(SHOWN_ONCE):
        if place in state.shown_once:
            return True
        state.shown_once.add(place)
        function = "operator()"  # a function without a name shows it once
    log(process, "W", f"Warning: {text} (function {function})", place)
    return True


def _asking_the_process(function: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(function)
    def _get_warnAlways() -> bool:
        process = current_process()
        return function() if process is None else process.torch_state.shown_once is None

    return _get_warnAlways


def _setting_the_process(function: Callable[[bool], None]) -> Callable[[bool], None]:
    @functools.wraps(function)
    def _set_warnAlways(always: bool) -> None:
        process = current_process()
        if process is None or not isinstance(always, bool):  # torch reports what it expects
            function(always)
        elif always:
            process.torch_state.shown_once = None
        elif process.torch_state.shown_once is None:
            process.torch_state.shown_once = set()

    return _set_warnAlways


# -- what Python notes ------------------------------------------------------------------------------------------------

_logged: set[Hashable] = set()  # what the process with the baton has logged


def _load_logged(state: set[Hashable]) -> None:
    global _logged
    _logged = state
    log_once.cache_clear()


_LOGGED: Slot[set[Hashable]] = Slot(
    "warnings logged once", lambda: _logged, _load_logged, lambda process, of_host: set(), forked=set
)


def _logging_once(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def warning_once(logger_obj: Hashable, *args: Any, **kwargs: Any) -> None:
        runtime = current_runtime()
        if runtime is not None:
            runtime.separate(_LOGGED)
            call = logger_obj, args, tuple(kwargs.items())
            if call in _logged:
                return
            _logged.add(call)
        function(logger_obj, *args, **kwargs)

    return warning_once


_stored = vars(storage_warning)


def _load_stored(was: bool | None) -> None:
    if was is None:
        _stored.pop("has_warned", None)
    else:
        _stored["has_warned"] = was


_STORED: Slot[bool | None] = Slot(
    "warning of typed storages", lambda: _stored.get("has_warned"), _load_stored, lambda process, of_host: None
)


def _storing(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def _warn_typed_storage_removal(stacklevel: int = 2) -> None:
        runtime = current_runtime()
        if runtime is not None:
            runtime.separate(_STORED)
        function(stacklevel)

    return _warn_typed_storage_removal


_REPLACEMENTS = (
    Replacement(core_bindings, "_get_warnAlways", _asking_the_process),
    Replacement(core_bindings, "_set_warnAlways", _setting_the_process),
    Replacement(log_once, "__wrapped__", _logging_once),
    Replacement(torch.storage, storage_warning.__name__, _storing),
)


def install(patches: Patches) -> None:
    """Warn each process of what torch shows once."""
    patches.redirect(_REPLACEMENTS)


def begin() -> bool:
    """Let C++ show its warnings always; return whether it did before, for `end`."""
    always = original(shows_always)()
    original(show_always)(True)
    write_by(_log)
    log_once.cache_clear()
    return always


def end(always: bool) -> None:
    """Put back what `begin` found."""
    write_by(None)
    original(show_always)(always)


note_shown_again(_is_shown_again)
