"""`sys.monitoring`, since Python 3.12: each process has tools of its own. cProfile is one from then on.

The interpreter has six tools, and a program expects them all for itself: a second rank that profiled itself would get
"Another profiling tool is already active". So a tool that ranks use is taken once, for the events that any of them asks
for, and an event goes to the callback of the process that has the baton. Events of simdist's own functions go to none:
the baton changes hands within them, so that a profiler would hear of a call and not of its end. Tools of the host, such
as coverage and debuggers, stay what they are, and their numbers are taken for ranks, too.

`DISABLE` holds for the process that returns it: the interpreter goes on to report the place, and nothing is called.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, Replacement, current_process

__all__ = ["install"]

_HOME = str(Path(__file__).parents[2]) + os.sep  # simdist's files
_monitoring: Any = getattr(sys, "monitoring", None)
_Callback = Callable[..., object]


class _Tool:
    """A tool of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.callbacks: dict[int, _Callback] = {}  # by event
        self.events = 0
        self.local: dict[CodeType, int] = {}  # events of single functions
        self.disabled: set[tuple[object, ...]] = set()  # event, code, and offset or line


_used: dict[int, dict[SimProcess, _Tool]] = {}  # the tools of the present world's ranks, by number
_reported: dict[int, set[int]] = {}  # the events that the interpreter reports for them


def install(patches: Patches) -> None:
    """Give each process its own tools."""
    if _monitoring is None:
        return
    patches.redirect(_REPLACEMENTS)
    patches.on_undo(_free_all)


def _free_all() -> None:
    for number, tools in list(_used.items()):
        for tool in tools.values():
            _forget(number, tool)
        _release(number)


def _forget(number: int, tool: _Tool) -> None:
    """Let the interpreter report nothing more to a tool that is gone, or has no events any more."""
    tool.events = 0
    original(_monitoring.set_events)(number, _wanted(number))
    for code in list(tool.local):
        tool.local[code] = 0
        original(_monitoring.set_local_events)(number, code, _wanted_in(number, code))


def _release(number: int) -> None:
    """Give a tool that no rank uses any more back to the interpreter."""
    del _used[number]
    for event in _reported.pop(number, ()):
        original(_monitoring.register_callback)(number, event, None)
    original(_monitoring.free_tool_id)(number)


def _wanted(number: int) -> int:
    return functools.reduce(int.__or__, (tool.events for tool in _used[number].values()), 0)


def _wanted_in(number: int, code: CodeType) -> int:
    return functools.reduce(int.__or__, (tool.local.get(code, 0) for tool in _used[number].values()), 0)


def _tool(number: object) -> _Tool | None:
    """The calling process's tool of this number."""
    process = current_process() if _used else None
    tools = None if process is None or not isinstance(number, int) else _used.get(number)
    return None if tools is None or process is None else tools.get(process)


def _report_to_process(number: int, event: int) -> _Callback:
    """Return the callback of the interpreter, which calls that of the process."""

    def report(code: CodeType, *arguments: object) -> object:
        tool = None if code.co_filename.startswith(_HOME) else _tool(number)
        if tool is None or (callback := tool.callbacks.get(event)) is None:
            return None
        place = event, code, *arguments[:1]
        # What a function returns or raises is reported with the call.
        asked = tool.events | tool.local.get(code, 0)
        counts = event if event not in _WITH_CALLS else _monitoring.events.CALL
        if asked & counts and place not in tool.disabled and callback(code, *arguments) is _monitoring.DISABLE:
            tool.disabled.add(place)
        return None

    return report


# -- what programs call ----------------------------------------------------------------------------------------------


def _use(original: Callable[[int, str], None]) -> Callable[[int, str], None]:
    @functools.wraps(original)
    def use_tool_id(tool_id: int, name: str, /) -> None:
        process = current_process()
        tools = None if process is None else _used.get(tool_id)
        if process is None or (tools is not None and process in tools):
            original(tool_id, name)  # which says that it is in use
            return
        if tools is None:
            original(tool_id, name)
            tools = _used[tool_id] = {}
        elif not isinstance(name, str):
            raise ValueError("tool name must be a str")
        tools[process] = _Tool(name)

    return use_tool_id


def _free(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def free_tool_id(tool_id: int, /) -> None:
        process, tool = current_process(), _tool(tool_id)
        if process is not None and tool is not None:
            _forget(tool_id, tool)
            del _used[tool_id][process]
            if not _used[tool_id]:
                _release(tool_id)
        elif process is None or tool_id not in _used:
            original(tool_id)

    return free_tool_id


def _get(original: Callable[[int], str | None]) -> Callable[[int], str | None]:
    @functools.wraps(original)
    def get_tool(tool_id: int, /) -> str | None:
        if current_process() is None or tool_id not in _used:
            return original(tool_id)
        tool = _tool(tool_id)
        return None if tool is None else tool.name

    return get_tool


def _register(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def register_callback(tool_id: int, event: int, func: _Callback | None, /) -> object:
        tool = _tool(tool_id)
        if tool is None:
            return original(tool_id, event, func)
        original(tool_id, event, _report_to_process(tool_id, event))
        _reported.setdefault(tool_id, set()).add(event)
        before = tool.callbacks.pop(event, None)
        if func is not None:
            tool.callbacks[event] = func
        return before

    return register_callback


def _set(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def set_events(tool_id: int, event_set: int, /) -> None:
        tool = _tool(tool_id)
        if tool is None:
            original(tool_id, event_set)
            return
        before, tool.events = tool.events, event_set
        try:
            original(tool_id, _wanted(tool_id))
        except BaseException:
            tool.events = before
            raise

    return set_events


def _events(original: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(original)
    def get_events(tool_id: int, /) -> int:
        tool = _tool(tool_id)
        return original(tool_id) if tool is None else tool.events

    return get_events


def _set_local(original: Callable[[int, CodeType, int], None]) -> Callable[[int, CodeType, int], None]:
    @functools.wraps(original)
    def set_local_events(tool_id: int, code: CodeType, event_set: int, /) -> None:
        tool = _tool(tool_id)
        if tool is None or not isinstance(code, CodeType):
            original(tool_id, code, event_set)
            return
        before, tool.local[code] = tool.local.get(code, 0), event_set
        try:
            original(tool_id, code, _wanted_in(tool_id, code))
        except BaseException:
            tool.local[code] = before
            raise

    return set_local_events


def _local(original: Callable[[int, CodeType], int]) -> Callable[[int, CodeType], int]:
    @functools.wraps(original)
    def get_local_events(tool_id: int, code: CodeType, /) -> int:
        tool = _tool(tool_id)
        return original(tool_id, code) if tool is None else tool.local.get(code, 0)

    return get_local_events


def _restart(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def restart_events() -> None:
        original()
        process = current_process()
        for tools in _used.values():
            if process in tools:
                tools[process].disabled.clear()

    return restart_events


_MAKE: dict[str, Make] = {
    "free_tool_id": _free,
    "get_events": _events,
    "get_local_events": _local,
    "get_tool": _get,
    "register_callback": _register,
    "restart_events": _restart,
    "set_events": _set,
    "set_local_events": _set_local,
    "use_tool_id": _use,
}


_REPLACEMENTS: tuple[Replacement, ...] = ()
if _monitoring is not None:
    _REPLACEMENTS = tuple(Replacement(_monitoring, name, make) for name, make in _MAKE.items())
_WITH_CALLS = () if _monitoring is None else (_monitoring.events.C_RETURN, _monitoring.events.C_RAISE)
