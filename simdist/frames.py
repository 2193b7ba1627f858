"""Whose code a frame runs: the user's, torch's, or simdist's own. The one place that knows where each is installed.

Reports show the user's lines, so everything that prints a line or a traceback asks here. Nothing is imported for it:
without torch, no frame is torch's.

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
from pathlib import Path, PurePath
from types import CodeType, FrameType, TracebackType

__all__ = ["Line", "find_installed", "foreign_lines", "frames_by_thread", "is_internal", "is_internal_file"]
__all__ += ["is_our_file", "is_ours", "is_user_file", "raising_line", "same_everywhere", "torch_folder"]
__all__ += ["user_frame", "user_frames", "user_line"]

Line = tuple[str, int, str]
"""A file, a line in it, and the function that it belongs to."""

_HOME = Path(__file__).parent
_OURS = str(_HOME) + os.sep  # as code objects have it: not resolved
_FROZEN = "<frozen"  # the import system, runpy


def is_ours(frame: FrameType) -> bool:
    """True for a frame of simdist's own code."""
    return frame.f_code.co_filename.startswith(_OURS)


def foreign_lines(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Code and line of each frame from `frame` outwards that is not simdist's own."""
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):  # hot: each call over NCCL asks for its stack
            found.append((code, frame.f_lineno))
        frame = frame.f_back
    return found


def frames_by_thread() -> dict[int, FrameType]:
    """The innermost frame of each thread by the thread's number; of the calling thread that of the caller's caller.

    A function that holds its own frame keeps all of them, and what they hold, until Python looks for garbage.
    """
    found = sys._current_frames()
    found[get_ident()] = sys._getframe(2)
    return found


def is_our_file(filename: str) -> bool:
    """True for a file of simdist, this installation's or, by its name within the package, another machine's."""
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
    """Find out what is installed here. Called on the host: a rank may have another path, folder, and environment."""
    _installed()


@functools.lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """True for a file that the user wrote. What is installed in editable mode counts as written."""
    return not filename.startswith((_OURS, "<", *_installed()))


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from `frame` outwards that are not internal."""
    while frame is not None:
        if not is_internal(frame):
            yield frame
        frame = frame.f_back


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame from `frame` outwards that runs a file of the user's."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(frame: FrameType | None) -> str:
    """` at file.py:12 in train`: the innermost line from `frame` outwards that is not internal; or nothing."""
    for found in user_frames(frame):
        return f" at {PurePath(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"
    return ""


def raising_line(trace: TracebackType | None) -> str:
    """`train.py:12 in step`: the innermost line of a traceback that is not internal, nor hidden from pytest; or ""."""
    line = ""
    while trace is not None:
        frame = trace.tb_frame
        if not is_internal(frame) and not frame.f_locals.get("__tracebackhide__"):
            line = f"{PurePath(frame.f_code.co_filename).name}:{trace.tb_lineno} in {frame.f_code.co_name}"
        trace = trace.tb_next
    return line


def torch_folder() -> str:
    """Where torch is installed, with a separator at the end; empty while it is not imported."""
    return next(iter(_torchs()), "")


_CODE = re.compile(r"(?<![\w.:/])/[^\s\"',:]+\.py\b")


def same_everywhere(line: str) -> str:
    """A line of output without the folders that differ between machines: files of code as `sys.path` finds them.

    A file that no entry of `sys.path` holds keeps its name only.
    """
    if ".py" not in line:
        return line
    entries = tuple(getattr(sys, "path", ()))  # a program may delete it
    here = str(Path.cwd()) if "" in entries else ""
    return _shortened(line, entries, here) if len(line) < _LONG else _shortened.__wrapped__(line, entries, here)


_LONG = 1000  # letters; a line that is no line of a traceback, and need not be remembered


# Remembered: runs by the thousand print the same tracebacks.
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
    import sysconfig  # milliseconds, and few ask

    if not hasattr(sysconfig, "get_path"):  # asked about what happens in that very import; the answer here is not kept
        return tuple(f"{prefix}{os.sep}lib{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Those of the system too, which an environment may have beside its own, and the user's.
    found |= {place for place in sys.path if PurePath(place).name in ("site-packages", "dist-packages")}
    others = {place for place in map(os.path.abspath, sys.path) if place not in found}
    return tuple(sorted({place + os.sep for place in found}.union(*map(_put_into, others))))


def _put_into(place: str) -> set[str]:
    """What an installer has put into another folder, as `pip install --target` does, beside what else may be there."""
    found = set[str]()
    for record in Path(place).glob("*.dist-info/RECORD"):
        paths = (line.partition(",")[0].split("/") for line in record.read_text("utf-8", "replace").splitlines())
        found |= {f"{place}{os.sep}{top}{os.sep if rest else ''}" for top, *rest in paths if top != os.pardir}
    return found


@functools.cache
def _folder_of(module: object) -> tuple[str, ...]:
    file = getattr(module, "__file__", None)  # none in a test that blocks torch
    return (str(PurePath(file).parent) + os.sep,) if isinstance(file, str) else ()
