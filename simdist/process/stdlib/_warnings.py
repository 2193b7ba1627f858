"""A rank's own warning filters, and the warnings that it has been shown.

`warnings.catch_warnings`, and `pytest.warns` above it, saves the module's filters on entry and puts them back on exit.
Ranks that are inside at the same time would put back each other's. So from the first moment that a rank touches the
filters, each rank has its own, swapped when the baton changes hands; a world in which none does pays nothing. A module
that all ranks share sets its filters for all of them, and for good, when the first rank imports it. In doubt: if any
rank has filters of its own by then, only the rank that imports the module gets them. A forked child has a copy of its
parent's filters, and of the list in which its parent records what is shown.

A warning is shown once for each place. Python notes that in the globals of the module that is warned. Ranks and worlds
share these for libraries, so only the first rank of the first world would be warned. So a note that a rank leaves there
is removed again, and kept with its process. Invariant: no note of a rank is in a shared module when the rank goes on.
The host's notes from before the world are void while it lives, as they are inside `catch_warnings`.

A warning names the line at its stack level. simdist's frames between the program's (around a comm hook, a handler of
signals, an announced effect) are not counted.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from simdist.frames import is_ours
from simdist.inside.python import original
from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime
from simdist.process._slots import Copy, Slot

__all__ = ["FILTERS_SLOT", "begin", "install", "is_filter_of_import", "note_shown_again"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_State = tuple[list[tuple[object, ...]], Callable[..., object], Callable[..., object]]

_module: Any = warnings  # has what the stubs leave out
# Since Python 3.14 a lock is held around this call.
_FILTERS_CHANGED = next(each for each in ("_filters_mutated_lock_held", "_filters_mutated") if hasattr(warnings, each))
_filters_changed: Callable[[], None] = getattr(_module, _FILTERS_CHANGED)
_is_shown_again: list[Callable[[SimProcess, str], bool]] = []  # asked about texts; see `note_shown_again`
_of_imports: list[tuple[object, ...]] = []  # they stay as long as their modules do


def _save() -> _State:
    return _module.filters, _module.showwarning, _module._showwarnmsg_impl


def _load(state: _State) -> None:
    _module.filters, _module.showwarning, _module._showwarnmsg_impl = state
    _forget_notes()


def _forget_notes() -> None:
    """Make the warnings that modules have noted void: those of the host, not those of a rank."""
    with getattr(_module, "_lock", contextlib.nullcontext()):
        original(_filters_changed)()


def _fresh(process: SimProcess, host: _State) -> _State:
    return list(host[0]), host[1], host[2]


def _copied(state: _State, copy: Copy) -> _State:
    """A forked child's: the functions that show warnings may be methods of objects, such as a list's `append`."""
    filters, *functions = state
    show, show_all = copy(functions)
    return list(filters), show, show_all


FILTERS_SLOT: Slot[_State] = Slot("warnings", _save, _load, _fresh, copied=_copied)


def _separating(function: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(function)
    def touch(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        runtime = current_runtime()
        if runtime is None:
            return function(*args, **kwargs)
        if not imported_for_all(sys._getframe(1)):
            runtime.separate(FILTERS_SLOT)
            return function(*args, **kwargs)
        before = list(_module.filters)
        done = function(*args, **kwargs)
        known = set(map(id, before))
        _of_imports.extend(each for each in _module.filters if id(each) not in known)
        return done

    return touch


def is_filter_of_import(thing: object) -> bool:
    """True for a filter that a module shared by all ranks has set when one of them imported it."""
    return any(each is thing for each in _of_imports)


def _own(show_all: Callable[[warnings.WarningMessage], None]) -> Callable[[warnings.WarningMessage], None]:
    @functools.wraps(show_all)
    def show(message: warnings.WarningMessage) -> None:
        process = current_process()
        if process is not None and (note := _taken(message)) is not None:
            if note in process.warned:
                return
            process.warned.add(note)
        if process is not None and any(each(process, str(message.message)) for each in _is_shown_again):
            return
        with contextlib.nullcontext() if process is None else _unlocked():
            show_all(message)

    return show


def note_shown_again(check: Callable[[SimProcess, str], bool]) -> None:
    """Drop warnings for which `check` is true: those that a library shows a process once, and has shown it before."""
    _is_shown_again.append(check)


@contextlib.contextmanager
def _unlocked() -> Iterator[None]:
    """Python 3.14 shows a warning under a lock, which other ranks would wait for while a program's function parks."""
    release, acquire = getattr(_module, "_release_lock", None), getattr(_module, "_acquire_lock", None)
    if release is None or acquire is None:
        yield
        return
    try:
        release()
    except RuntimeError:  # the lock is not held
        yield
        return
    try:
        yield
    finally:
        acquire()


def _taken(message: warnings.WarningMessage) -> tuple[object, ...] | None:
    """Take the note of a warning that is about to be shown out of its module; None if the warning is always shown."""
    text, category = str(message.message), message.category
    # What Python notes, the widest last: of this line, of all lines, of all places.
    notes = ((text, category, message.lineno), (text, category, 0), (text, category))
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        noted = frame.f_globals.get("__warningregistry__")
        if noted and (found := [note for note in notes if noted.pop(note, None)]):
            return frame.f_globals.get("__name__"), *found[-1]
        frame = frame.f_back
    return None


def _counting_the_programs_frames(warn: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(warn)
    def counted(
        message: object, category: object = None, stacklevel: int = 1, *args: object, **options: tuple[str, ...]
    ) -> None:
        skipped = options.get("skip_file_prefixes", ())  # by Python itself, since 3.12
        level = max(operator.index(stacklevel), 2 if skipped else 1)
        frame: FrameType | None = sys._getframe(1)
        assert frame is not None
        ours = 0 if _has_prefix(frame, skipped) else 1  # this function
        for _ in range(0 if is_ours(frame) else level - 1):
            frame = frame.f_back
            while frame is not None and (is_ours(frame) or _skipped(frame, skipped)):
                ours += is_ours(frame)
                frame = frame.f_back
            if frame is None:
                break
        warn(message, category, level + ours, *args, **options)

    return counted


def _skipped(frame: FrameType, prefixes: tuple[str, ...]) -> bool:
    """True if Python does not count the frame either."""
    file = frame.f_code.co_filename
    return ("importlib" in file and "_bootstrap" in file) or _has_prefix(frame, prefixes)


def _has_prefix(frame: FrameType, prefixes: tuple[str, ...]) -> bool:
    file = frame.f_code.co_filename
    return (file if sys.version_info >= (3, 14) else file[:-1]).startswith(prefixes)  # before, not at the last letter


def _forgetting(changed: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(changed)
    def mutated() -> None:
        changed()
        if (process := current_process()) is not None:
            process.warned.clear()  # as Python does with what modules have noted

    return mutated


_REPLACEMENTS = (
    Replacement(warnings.catch_warnings, "__enter__", _separating),
    *(Replacement(warnings, name, _separating) for name in ("simplefilter", "filterwarnings", "resetwarnings")),
    Replacement(warnings, "warn", _counting_the_programs_frames),
    Replacement(warnings, "_showwarnmsg", _own),
    Replacement(warnings, _FILTERS_CHANGED, _forgetting),
)


def install(patches: Patches) -> None:
    """Watch for a rank that touches the filters, or is warned."""
    patches.redirect(_REPLACEMENTS)


def begin() -> None:
    """At the start of a world, make the notes of the host's warnings void."""
    _forget_notes()
