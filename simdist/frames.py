"""The owner of a frame's code: the user, torch, or simdist itself. Only this module knows where each is installed.

Reports show the user's lines, so all code that prints a line or a traceback uses this module, which imports nothing for
that: without torch, no frame is torch's.

Three questions, from the widest to the narrowest answer:

| function | true for |
|---|---|
| `is_ours` | simdist |
| `is_internal` | simdist, torch, Python's import system |
| not `is_user_file` | these, the standard library, and all that is installed |
"""

from __future__ import annotations

import functools
import os
import re
import sys
from _thread import get_ident
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from pathlib import Path, PurePath
from types import CodeType, FrameType, TracebackType

__all__ = ["Line", "find_installed", "foreign_lines", "frames_by_thread", "is_internal", "is_internal_file"]
__all__ += ["is_our_file", "is_ours", "is_user_file", "raising_line", "same_everywhere", "torch_folder"]
__all__ += ["user_frame", "user_frames", "user_line", "variables_of"]

Line = tuple[str, int, str]
"""A file, a line in it, and the function of that line."""

_HOME = Path(__file__).parent
_OURS = str(_HOME) + os.sep  # as in code objects: not resolved
_FROZEN = "<frozen"  # of the import system, runpy


def is_ours(frame: FrameType) -> bool:
    """True for a frame of simdist's own code."""
    return frame.f_code.co_filename.startswith(_OURS)


def foreign_lines(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Return code and line of each frame from `frame` outwards that is not simdist's own."""
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):  # hot: each call over NCCL needs its stack
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    return found


def variables_of(frame: FrameType) -> dict[str, object]:
    """Return the variables of a frame; their values live no longer for that.

    Until Python 3.12 a frame keeps the dictionary that `f_locals` returns, with the values of that moment.
    """
    kept = frame.f_locals
    found: dict[str, object] = dict(kept)
    # Three references: the frame's and two of this call. A program that called `locals()` may hold another. A trace
    # function's frame takes its values back from there; those of a module and of a class have no others.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        if sys.getrefcount(kept) == 3 and sys.gettrace() is None:
            kept.clear()
    return found


def frames_by_thread() -> dict[int, FrameType]:
    """Return the innermost frame of each thread by its number; for the calling thread that of the caller's caller.

    A function that holds its own frame keeps all of them, and their objects, until Python's garbage collection.
    """
    found = sys._current_frames()
    found[get_ident()] = sys._getframe(2)
    return found


def is_our_file(filename: str) -> bool:
    """True for a file of simdist, of this installation or, by its name within the package, of another machine's."""
    if filename.startswith(_OURS):
        return True
    _, found, inside = filename.replace("\\", "/").rpartition("/simdist/")
    return bool(found) and (_HOME / inside).is_file()


def is_internal(frame: FrameType) -> bool:
    """True for code of torch, of simdist, and of the import system."""
    return is_internal_file(frame.f_code.co_filename)


def is_internal_file(filename: str) -> bool:
    """True for a file of torch, of simdist, and of the import system."""
    return filename.startswith((_OURS, _FROZEN, *_torchs()))


def find_installed() -> None:
    """Determine the installed packages. Called on the host: a rank may have another path, folder, and environment."""
    _installed()


@functools.lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """True for a file that the user wrote. Packages installed in editable mode count as written."""
    return not filename.startswith((_OURS, "<", *_installed()))


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from `frame` outwards that are not internal."""
    while frame is not None:
        if not is_internal(frame):
            yield frame
        frame = frame.f_back


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame from `frame` outwards that runs a file of the user's."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(frame: FrameType | None) -> str:
    """Return ` at file.py:12 in train`, the innermost line from `frame` outwards that is not internal; or ""."""
    for found in user_frames(frame):
        return f" at {PurePath(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"
    return ""


def raising_line(trace: TracebackType | None) -> str:
    """Return `train.py:12 in step`, a traceback's innermost line neither internal nor hidden from pytest; or ""."""
    line = ""
    while trace is not None:
        frame = trace.tb_frame
        if not is_internal(frame) and not frame.f_locals.get("__tracebackhide__"):
            line = f"{PurePath(frame.f_code.co_filename).name}:{trace.tb_lineno} in {frame.f_code.co_name}"
        trace = trace.tb_next
    return line


def torch_folder() -> str:
    """Return torch's folder, with a separator at the end; "" while torch is not imported."""
    return next(iter(_torchs()), "")


_CODE = re.compile(r"(?<![\w.:/])/[^\s\"',:]+\.py\b")


def same_everywhere(line: str) -> str:
    """Return a line of output without folders that differ between machines: files of code are named as in `sys.path`.

    A file in no entry of `sys.path` keeps its name only.
    """
    if ".py" not in line:
        return line
    entries = tuple(getattr(sys, "path", ()))  # a program may delete it
    here = str(Path.cwd()) if "" in entries else ""
    return _shortened(line, entries, here) if len(line) < _LONG else _shortened.__wrapped__(line, entries, here)


_LONG = 1000  # letters; longer lines are not those of a traceback, and are not cached


# Cached: thousands of runs print the same tracebacks.
@functools.lru_cache(maxsize=1024)
def _shortened(line: str, entries: tuple[str, ...], here: str) -> str:
    folders = sorted(((each or here).rstrip(os.sep) + os.sep for each in entries), key=len, reverse=True)

    def short(found: re.Match[str]) -> str:
        path = found[0]
        return next((path[len(each) :] for each in folders if path.startswith(each)), PurePath(path).name)

    return _CODE.sub(short, line)


def _torchs() -> tuple[str, ...]:
    return _folder_of(torch) if (torch := sys.modules.get("torch")) is not None else ()


@functools.cache
def _installed() -> tuple[str, ...]:
    import sysconfig  # takes milliseconds, and is rarely needed

    if not hasattr(sysconfig, "get_path"):  # during the import of sysconfig itself; this answer is not kept
        return tuple(f"{prefix}{os.sep}lib{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Those of the system, too, which an environment may have besides its own, and the user's.
    found |= {place for place in sys.path if PurePath(place).name in ("site-packages", "dist-packages")}
    others = {place for place in map(os.path.abspath, sys.path) if place not in found}
    return tuple(sorted({place + os.sep for place in found}.union(*map(_put_into, others))))


def _put_into(place: str) -> set[str]:
    """Return the entries of another folder that an installer made, as `pip install --target` does."""
    found = set[str]()
    for record in Path(place).glob("*.dist-info/RECORD"):
        paths = (line.partition(",")[0].split("/") for line in record.read_text("utf-8", "replace").splitlines())
        found |= {f"{place}{os.sep}{top}{os.sep if rest else ''}" for top, *rest in paths if top != os.pardir}
    return found


@functools.cache
def _folder_of(module: object) -> tuple[str, ...]:
    file = getattr(module, "__file__", None)  # none in a test that blocks torch
    return (str(PurePath(file).parent) + os.sep,) if isinstance(file, str) else ()
