"""Pipes that a rank makes by `os.pipe`, mostly for its own threads: who waits at one lets the others run.

A thread that reads from a pipe which another thread writes to (captured output, a log) blocks in the system, and would
keep the baton meanwhile. So a task that reads from an empty pipe, or writes to a full one, parks until a task of its
process has written, read or closed something; then it looks again. While programs of the process run, which may have
the other end, it waits for these in real time (`wait_for_answer`). All this begins with the first pipe of a rank.

In doubt: a copy of an end (`os.dup`), and an end that is set not to block, are the system's alone.
"""

from __future__ import annotations

import _io
import functools
import os
import select
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from simdist.inside.python import original as real
from simdist.kernel import TaskKilled
from simdist.process._process import SimProcess
from simdist.process._programs import running_program, wait_for_answer
from simdist.process._runtime import Extra, Make, Patches, Replacement, Runtime, current_process, current_runtime
from simdist.process.stdlib._pipes import PipeWait

if TYPE_CHECKING:
    import io

    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ENDS: Extra[set[int]] = Extra("pipes between threads")
_PART = 1 << 16
_LOOK_S = 0.02  # real seconds after which a task that waits for a program looks whether it still runs
_READ, _WRITE = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 4)
_really_poll: Any = vars(type(select.poll()))["poll"] if hasattr(select, "poll") else None


def install(patches: Patches) -> None:
    """Notice the first pipe that a rank makes."""
    patches.redirect(_REPLACEMENTS)


def _pipe(original: Callable[..., tuple[int, int]]) -> Callable[..., tuple[int, int]]:
    @functools.wraps(original)
    def pipe(*args: int) -> tuple[int, int]:
        ends = original(*args)
        process, runtime = current_process(), current_runtime()
        if process is not None and runtime is not None and not process.polls_really:
            _begin(runtime).update(ends)
        return ends

    return pipe


def _begin(runtime: Runtime) -> set[int]:
    known = runtime.extras.get(_ENDS)
    if known is None:
        known = runtime.extras[_ENDS] = set()
        runtime.notice_writes()
        for name, make in _IN_OS:
            runtime.patches.wrap(os, name, make)  # by name, for a disk redirects the functions themselves
        runtime.patches.wrap_all_in_type(_io.FileIO, _IN_FILES)
    return known


def _process_at(fd: int) -> SimProcess | None:
    """The process that may wait at a descriptor: it blocks, and is the end of a pipe that a rank has made."""
    runtime, process = current_runtime(), current_process()
    ends = None if runtime is None else runtime.extras.get(_ENDS)
    if process is None or process.polls_really or not ends or fd not in ends:
        return None
    try:
        is_pipe = stat.S_ISFIFO(real(os.fstat)(fd).st_mode)
        return process if is_pipe and os.get_blocking(fd) else None
    except OSError:
        return None


def _is_ready(fd: int, event: int, seconds: float = 0) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(_really_poll(poll, seconds * 1000))


def _wait(process: SimProcess, fd: int, event: int, verb: str) -> None:
    """Wait until something can be read, or written, or the other end is closed."""
    while not _is_ready(fd, event):
        program = running_program(process)
        if program is None:
            _park(process, verb)
        else:
            wait_for_answer(process, program, lambda seconds: _is_ready_or_alone(process, fd, event, seconds))


def _is_ready_or_alone(process: SimProcess, fd: int, event: int, seconds: float) -> bool:
    """True if within so many real seconds it is ready, or no program of the process runs any more."""
    for _ in range(1 + int(seconds / _LOOK_S)):
        if _is_ready(fd, event, min(seconds, _LOOK_S)) or running_program(process) is None:
            return True
    return False


def _park(process: SimProcess, verb: str) -> None:
    simulation = process.simulation
    task = simulation.check()
    outermost = task not in process.polling  # a handler of a signal may wait within a wait
    process.polling[task] = None
    try:
        simulation.park(PipeWait(task, f"{verb} a pipe"))
    finally:
        if outermost:
            process.polling.pop(task, None)
    if task.doomed:
        raise TaskKilled
    process.drain()


def _woken(original: Callable[_P, _T]) -> Callable[_P, _T]:
    """For what others may wait for."""

    @functools.wraps(original)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        done = original(*args, **kwargs)
        _wake()
        return done

    return call


def _wake() -> None:
    runtime = current_runtime()
    if runtime is not None and current_process() is not None:
        for process in runtime.processes.values():  # a forked child has the same pipes
            for task in list(process.polling):
                runtime.simulation.wake(task)


def _read(original: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    @functools.wraps(original)
    def read(fd: int, length: int, /) -> bytes:
        process = _process_at(fd)
        if process is None:
            return original(fd, length)
        _wait(process, fd, _READ, "read from")
        found = original(fd, length)
        _wake()
        return found

    return read


def _write(original: Callable[[int, ReadableBuffer], int]) -> Callable[[int, ReadableBuffer], int]:
    @functools.wraps(original)
    def write(fd: int, data: ReadableBuffer, /) -> int:
        process = _process_at(fd)
        if process is None:
            return original(fd, data)
        done = _write_all(process, fd, data, original)
        _wake()
        return done

    return write


def _close(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def close(fd: int) -> None:
        original(fd)
        runtime = current_runtime()
        ends = None if runtime is None else runtime.extras.get(_ENDS)
        if ends is not None and fd in ends:
            ends.discard(fd)
            _wake()

    return close


def _write_all(process: SimProcess, fd: int, data: ReadableBuffer, write: Callable[[int, ReadableBuffer], int]) -> int:
    size = memoryview(data).nbytes
    if process.programs or size <= select.PIPE_BUF:  # then there is room for all, or for nothing
        _wait(process, fd, _WRITE, "write to")
        return write(fd, data)
    left = memoryview(data).cast("B")
    while left:
        _wait(process, fd, _WRITE, "write to")
        left = left[write(fd, left[: select.PIPE_BUF]) :]
        _wake()
    return size


def _readinto(original: Callable[[io.FileIO, WriteableBuffer], int | None]) -> Callable[..., int | None]:
    @functools.wraps(original)
    def readinto(self: io.FileIO, buffer: WriteableBuffer, /) -> int | None:
        if not _waits_to_read(self):
            return original(self, buffer)
        found = original(self, buffer)
        _wake()
        return found

    return readinto


def _read_file(original: Callable[[io.FileIO, int], bytes]) -> Callable[..., bytes]:
    @functools.wraps(original)
    def read(self: io.FileIO, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if not _waits_to_read(self):
            return original(self, size)
        found = original(self, size)
        _wake()
        return found

    return read


def _readall(original: Callable[[io.FileIO], bytes]) -> Callable[[io.FileIO], bytes]:
    @functools.wraps(original)
    def readall(self: io.FileIO, /) -> bytes:
        if self.closed or _process_at(self.fileno()) is None:
            return original(self)
        parts = []
        while part := self.read(_PART):
            parts.append(part)
        return b"".join(parts)

    return readall


def _waits_to_read(file: io.FileIO) -> bool:
    """True for an end of a pipe between threads: there is something to read then."""
    process = None if file.closed else _process_at(file.fileno())
    if process is None or not file.readable():
        return False
    _wait(process, file.fileno(), _READ, "read from")
    return True


def _write_file(original: Callable[[io.FileIO, ReadableBuffer], int]) -> Callable[..., int]:
    @functools.wraps(original)
    def write(self: io.FileIO, data: ReadableBuffer, /) -> int:
        process = None if self.closed else _process_at(self.fileno())
        if process is None or not self.writable():
            return original(self, data)
        done = _write_all(process, self.fileno(), data, lambda _, part: original(self, part))
        _wake()
        return done

    return write


_REPLACEMENTS = tuple(Replacement(os, name, _pipe) for name in ("pipe", "pipe2") if hasattr(os, name))
_IN_OS: tuple[tuple[str, Make], ...] = (("read", _read), ("write", _write), ("close", _close))
_IN_FILES: dict[str, Make] = {
    "readinto": _readinto,
    "read": _read_file,
    "readall": _readall,
    "write": _write_file,
    "close": _woken,
}
