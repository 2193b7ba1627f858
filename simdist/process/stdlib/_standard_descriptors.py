"""Descriptors 0, 1 and 2 of a rank: a descriptor that it lays over them with `os.dup2` stays its own.

All ranks share the host's, so a rank that sends its output to a file (`os.dup2(log.fileno(), 1)`) would send the
others' and the host's there, too. Instead each process has a table of these numbers, each with a copy of the descriptor
that lies over it. What the process prints, what it writes to the number, and what the programs that it starts write,
goes there. The table begins with the first rank that lays one over; until then `os.write` is not replaced.

A copy of the former stream, laid over the number again, removes the entry: the system shows that both are the same
file. Only the null device proves nothing, for the host's own stream may be that: the first one is laid over, the next
removes the entry.

A rank that closes one of them lays something over it that can be neither read nor written as the number is.

In doubt: what C code of the rank itself writes (`printf`) goes to the host's streams, as without this module.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Patches, Replacement, Runtime, current_process, current_runtime
from simdist.process._stdio import STREAMS, descriptor_of

__all__ = ["for_program", "install", "laid_over", "standard_number"]


def standard_number(process: SimProcess, fd: Any) -> int | None:
    """0, 1 or 2, if that is what the process means by a number, or by an object that has one."""
    number = fd
    if not isinstance(fd, int):
        try:
            number = fd.fileno()
        except (AttributeError, OSError, ValueError):
            return None
    if number in (0, 1, 2):
        return int(number)
    found = (n for n, name in STREAMS.items() if name in process.descriptors)
    return next((n for n in found if process.descriptors[STREAMS[n]].number == number), None)


def for_program(process: SimProcess, number: int) -> int:
    """The descriptor that a program of the process inherits as this number, unless it is given another."""
    laid_over = process.laid_over.get(number)
    return descriptor_of(process, STREAMS[number]) if laid_over is None else laid_over


def _dup2(original: Callable[[int, int, bool], int]) -> Callable[..., int]:
    @functools.wraps(original)
    def dup2(fd: int, fd2: int, inheritable: bool = True) -> int:
        process, runtime = current_process(), current_runtime()
        number = None if process is None or _moves_the_hosts() else standard_number(process, fd2)
        if process is None or runtime is None or number is None:
            return original(fd, fd2, inheritable)
        _begin(runtime)
        source = standard_number(process, fd)
        if source is not None:  # `os.dup2(1, 2)`
            fd = process.laid_over.get(source, fd) if source == 0 else for_program(process, source)
        process.take_over()
        before = process.laid_over.get(number)
        if not _is_its_own(process, fd, number):
            process.laid_over[number] = os.dup(fd)
        elif before is not None:
            del process.laid_over[number]
        if before is not None:
            os.close(before)
        return fd2

    return dup2


def _close(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def close(fd: int) -> None:
        if fd not in (0, 1, 2) or current_process() is None or _moves_the_hosts():
            original(fd)
            return
        refusing = os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)
        os.dup2(refusing, fd)
        original(refusing)

    return close


def _moves_the_hosts() -> bool:
    """True if pytest moves the host's own streams: it does so from a rank's thread, at a breakpoint.

    A pytest that the rank itself runs (`simdist launch -m pytest`) has its entry point on the rank's stack, and moves
    the rank's.
    """
    frame: FrameType | None = sys._getframe(2)
    if frame is None or not _module(frame).startswith("_pytest."):
        return False
    while frame is not None:
        if _module(frame) == "_pytest.config" and frame.f_code.co_name.endswith("main"):
            return False
        frame = frame.f_back
    return True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


_LAID: Extra[bool] = Extra("descriptors laid over others")


def _begin(runtime: Runtime) -> None:
    """Prepare the world when a rank first lays a descriptor over another."""
    runtime.notice_writes()
    if _LAID not in runtime.extras:
        runtime.extras[_LAID] = True
        runtime.patches.wrap(os, "dup", _dup)  # by name, for a disk redirects the function itself


def _dup(original: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(original)
    def dup(fd: int, /) -> int:
        return original(laid_over(fd))

    return dup


def laid_over(fd: int) -> int:
    """The descriptor that the caller has laid over a standard one; else the number itself."""
    process = current_process()
    if process is None or not process.laid_over:
        return fd
    number = standard_number(process, fd)
    return fd if number is None else process.laid_over.get(number, fd)


def _is_its_own(process: SimProcess, fd: int, number: int) -> bool:
    """True for a copy of the descriptor that was there when the process began."""
    here, host = os.fstat(fd), _host(number)
    behind = process.descriptors.get(STREAMS.get(number, ""))
    if behind is not None and os.path.samestat(here, os.fstat(behind.number)):
        return True
    if host is None or not os.path.samestat(here, host):
        return False
    return number in process.laid_over or not os.path.samestat(here, Path(os.devnull).stat())


def _host(number: int) -> os.stat_result | None:
    try:
        return os.fstat(number)
    except OSError:  # the host has none
        return None


_REPLACEMENTS = (Replacement(os, "dup2", _dup2),)


def install(patches: Patches) -> None:
    """Let ranks lay descriptors over the standard ones."""
    patches.redirect(_REPLACEMENTS)
    patches.wrap(os, "close", _close)  # by name, as `dup`
