"""Settings of a process in modules that few programs import: limits, the tracing of memory, types of files, loops.

Limits (`resource.setrlimit`) are only noted for each process: a rank reads back what it has set, and the host keeps its
own limits. So a rank's limits have no effect here, nor on a program that it starts. One limit of the host is changed:
that of open files is raised while a world lives. All ranks share it, and each opens as many files as a process of its
own would; a worker of a DataLoader alone takes about 26.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsInt, TypeVar

from simdist.inside.python import original
from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._reporting import reporting
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime
from simdist.process._slots import Slot
from simdist.process.stdlib._process_wide import followed, followed_variables

if TYPE_CHECKING:
    import mimetypes

__all__ = ["ADAPTERS", "begin"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Limits = dict[int, tuple[int, int]]  # the soft and the hard one, by resource

_FILES = 65_536  # the most open files to ask for: enough for 2,500 workers of DataLoaders

_set: _Limits = {}  # the limits that the process with the baton has set
_raised: _Limits = {}  # limits that the host had before they were raised for a world


def begin(patches: Patches) -> None:
    """Let the host open as many files as its ranks need together, if the system allows it."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    before = soft, hard = original(resource.getrlimit)(resource.RLIMIT_NOFILE)
    wanted = int(min(_FILES, _size(hard, resource.RLIM_INFINITY)))
    if _size(soft, resource.RLIM_INFINITY) >= wanted:
        return

    def put_back() -> None:
        _raised.clear()
        original(resource.setrlimit)(resource.RLIMIT_NOFILE, before)

    with contextlib.suppress(ValueError, OSError):  # macOS has a limit of its own below the hard one
        original(resource.setrlimit)(resource.RLIMIT_NOFILE, (wanted, hard))
        _raised[resource.RLIMIT_NOFILE] = before
        patches.on_undo(put_back)


def _load_limits(limits: _Limits) -> None:
    _set.clear()
    _set.update(limits)


def _no_limits(process: SimProcess, of_host: _Limits) -> _Limits:
    return {}


_LIMITS: Slot[_Limits] = Slot("limits", lambda: dict(_set), _load_limits, _no_limits, dict, kept_by_exec=True)


def _getrlimit(get: Callable[[int], tuple[int, int]]) -> Callable[[int], tuple[int, int]]:
    @functools.wraps(get)
    def getrlimit(resource: int, /) -> tuple[int, int]:
        found = get(resource)
        return found if current_process() is None else _set.get(resource, _raised.get(resource, found))

    return getrlimit


def _setrlimit(change: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(change)
    def setrlimit(resource: int, limits: Iterable[SupportsInt], /) -> None:
        runtime = current_runtime()
        if runtime is None:
            change(resource, limits)
            return
        known = sys.modules["resource"]
        _, hardest = known.getrlimit(resource)
        both = tuple(limits)
        if len(both) != 2:
            raise ValueError("expected a tuple of 2 integers")
        soft, hard = (_number(each, known.RLIM_INFINITY) for each in both)
        if _size(soft, known.RLIM_INFINITY) > _size(hard, known.RLIM_INFINITY):
            raise ValueError("current limit exceeds maximum limit")
        if _size(hard, known.RLIM_INFINITY) > _size(hardest, known.RLIM_INFINITY):
            raise ValueError("not allowed to raise maximum limit")
        runtime.separate(_LIMITS)
        _set[resource] = soft, hard

    return setrlimit


def _prlimit(original: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    @functools.wraps(original)
    def prlimit(pid: int, resource: int, *limits: object) -> tuple[int, int]:
        if current_process() is None or pid not in (0, os.getpid()):
            return original(pid, resource, *limits)
        known = sys.modules["resource"]
        before: tuple[int, int] = known.getrlimit(resource)
        for each in limits[:1]:
            known.setrlimit(resource, each)
        return before

    return prlimit


def _number(given: SupportsInt, infinity: int) -> int:
    return infinity if int(given) < 0 else int(given)


def _size(limit: int, infinity: int) -> float:
    return float("inf") if limit == infinity else limit


@functools.cache
def _limiting() -> tuple[Replacement, ...]:
    known = sys.modules["resource"]
    made: dict[str, Make] = {"getrlimit": _getrlimit, "setrlimit": _setrlimit, "prlimit": _prlimit}
    return tuple(Replacement(known, name, make) for name, make in made.items() if hasattr(known, name))


def _of_resource(patches: Patches) -> None:
    patches.redirect(_limiting())


_noting = reporting("the tracing of memory (tracemalloc)", "put back when the world ended")


@functools.cache
def _tracing() -> tuple[Replacement, ...]:
    known = sys.modules["tracemalloc"]
    return tuple(Replacement(known, name, _noting) for name in ("start", "stop"))


def _of_tracemalloc(patches: Patches) -> None:
    known = sys.modules["tracemalloc"]
    frames = known.get_traceback_limit() if known.is_tracing() else 0

    def put_back() -> None:
        if frames and not known.is_tracing():
            original(known.start)(frames)
        elif known.is_tracing() and not frames:
            original(known.stop)()

    patches.on_undo(put_back)
    patches.redirect(_tracing())


@functools.cache
def _typing_files() -> tuple[Replacement, ...]:
    known: Any = sys.modules["mimetypes"]

    def load(table: mimetypes.MimeTypes | None) -> None:
        known._db, known.inited = table, table is not None
        if table is not None:
            known.encodings_map, known.suffix_map = table.encodings_map, table.suffix_map
            known.types_map, known.common_types = table.types_map[True], table.types_map[False]

    return tuple(followed("types of files", ((known, "add_type"),), lambda: known._db, load, copy.deepcopy))


def _of_mimetypes(patches: Patches) -> None:
    patches.redirect(_typing_files())


_WRITERS = (
    "add_history",
    "clear_history",
    "parse_and_bind",
    "read_history_file",
    "set_completer",
    "set_history_length",
)
_asking = reporting("readline's history or settings")


@functools.cache
def _editing() -> tuple[Replacement, ...]:
    known = sys.modules["readline"]
    return tuple(Replacement(known, name, _unless_imported) for name in _WRITERS if hasattr(known, name))


def _unless_imported(original: Callable[_P, _T]) -> Callable[_P, _T]:
    reported = _asking(original)

    @functools.wraps(original)
    def do(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return (original if imported_for_all(sys._getframe(1)) else reported)(*args, **kwargs)

    return do


def _of_readline(patches: Patches) -> None:
    patches.redirect(_editing())


@functools.cache
def _making_loops() -> tuple[Replacement, ...]:
    known: Any = sys.modules["asyncio.events"]

    def load(policy: object) -> None:
        known._event_loop_policy = policy

    writers = [(known, "set_event_loop_policy"), (known, "_init_event_loop_policy")]
    return tuple(followed("asyncio's policy", writers, lambda: known._event_loop_policy, load))


def _of_asyncio(patches: Patches) -> None:
    patches.redirect(_making_loops())


_VARIABLES = {  # by module: the global names that hold a setting, and the functions that write them
    "gettext": (("_current_domain",), ("textdomain",)),
    "urllib.request": (("_opener",), ("install_opener",)),
}


@functools.cache
def _writing(module: str) -> tuple[Replacement, ...]:
    return tuple(followed_variables(f"settings of {module}", sys.modules[module], *_VARIABLES[module]))


def _of_variables(module: str, patches: Patches) -> None:
    patches.redirect(_writing(module))


ADAPTERS: dict[str, Callable[[Patches], None]] = {
    **{name: functools.partial(_of_variables, name) for name in _VARIABLES},
    "asyncio.events": _of_asyncio,
    "mimetypes": _of_mimetypes,
    "readline": _of_readline,
    "resource": _of_resource,
    "tracemalloc": _of_tracemalloc,
}
"""By module: called once it is imported, gives each rank its own settings or notes what ranks set for all."""
