"""Waiting for file descriptors in virtual time, as `selectors`, and asyncio's event loop above it, do.

A task that polls looks at the real descriptors without waiting. If none is ready, it parks until its timeout, until
a task of its own process has written to any descriptor, or until a task of any process has written to a socket; then it
looks again. A byte that `call_soon_threadsafe` puts into the loop's own socket pair is such a write. Data that a
descriptor gets from outside the world in the meantime is not noticed.

A loop whose descriptors are always ready (for writing) never parks; its looks count as looks at a clock, so that the
others get their turn.
"""

from __future__ import annotations

import _socket
import math
import os
import select
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from simdist.kernel import Task, TaskKilled
from simdist.process._lateness import due_at
from simdist.process._process import SimProcess
from simdist.process._programs import open_outputs
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime
from simdist.process.stdlib._pipes import Pipes
from simdist.process.stdlib._sockets import METHODS
from simdist.process.stdlib._standard_descriptors import laid_over

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike, ReadableBuffer, WriteableBuffer

    _Events = list[tuple[int, int]]  # a descriptor, and what has happened to it
    _Descriptors = Iterable[FileDescriptorLike]
    _Selected = tuple[list[FileDescriptorLike], list[FileDescriptorLike], list[FileDescriptorLike]]

__all__ = ["install", "notice_writes"]

_LONGEST_MS = 1 << 31  # of poll and epoll
_LONGEST_NS = 1 << 63  # of select
_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Polling:
    """What a task waits on that polls."""

    __slots__ = ("timed",)
    interruptible = True  # by signals

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed

    def describe(self) -> str:
        """In words."""
        return "wait for file descriptors (an event loop, or a selector)"

    def waits_for(self) -> Iterable[Task]:
        """No task in particular: any may write."""
        return ()


def _wait(process: SimProcess, look: Callable[[float], _T], timeout_ns: int | None, polls: Callable[[int], bool]) -> _T:
    """Wait until `look(seconds)`, which waits for so many real seconds, finds something that has happened.

    `polls` returns whether a descriptor is among those that are looked at.
    """
    program = next((program for number, program in open_outputs(process).items() if polls(number)), None)
    if program is not None:
        found = program.has_answered(look, None if timeout_ns is None else timeout_ns / 1e9)
        if found:
            return found
    runtime = current_runtime()
    assert runtime is not None
    runtime.notice_writes()
    simulation = process.simulation
    task = simulation.check()
    deadline_ns = None if timeout_ns is None else due_at(process, timeout_ns)
    wait = _Polling(timed=timeout_ns is not None)
    outermost = task not in process.polling  # a handler of a signal may wait within a wait
    process.polling[task] = None
    try:
        while True:
            if task.doomed:
                raise TaskKilled
            in_time, answering = (
                True,
                None if timeout_ns is not None or program is None or program.is_silent else program,
            )
            if answering is None:
                in_time = simulation.park(wait, deadline_ns)
            else:
                simulation.park_until_quiet(wait)
            process.drain()
            found = look(0)
            if not found and answering is not None:
                found = answering.has_answered(look, None)
            if found or not in_time:
                process.do_between()
                return found
    finally:
        if outermost:
            del process.polling[task]


def _is_refused(timeout: float | None, longest: float) -> bool:
    """True for a timeout for which the original raises: it is no number, or beyond `longest`."""
    if timeout is None:
        return False
    try:
        return not -longest <= timeout < longest
    except TypeError:
        return True


def _epoll(original: Callable[[select.epoll, float | None, int], _Events]) -> Callable[..., _Events]:
    def poll(self: select.epoll, timeout: float | None = None, maxevents: int = -1) -> _Events:
        process = current_process()
        if process is None or process.polls_really or _is_refused(timeout, _LONGEST_MS / 1e3):
            return original(self, timeout, maxevents)
        found = original(self, 0, maxevents)
        if found or timeout == 0:
            process.simulation.read_clock()
            return found
        # In whole milliseconds, as the system counts.
        limit_ns = None if timeout is None or timeout < 0 else math.ceil(timeout * 1e3) * 1_000_000
        return _wait(process, lambda real_s: original(self, real_s, maxevents), limit_ns, lambda fd: _is_in(self, fd))

    return poll


def _is_in(epoll: select.epoll, fd: int) -> bool:
    try:
        epoll.register(fd, 0)
    except FileExistsError:
        return True
    epoll.unregister(fd)
    return False


def _is_polled(poll: select.poll, fd: int) -> bool:
    try:
        poll.unregister(fd)
    except KeyError:
        return False
    poll.register(fd, select.POLLIN | select.POLLPRI)  # what can happen to the end of a pipe for reading
    return True


def _number(descriptor: FileDescriptorLike) -> int:
    return descriptor if isinstance(descriptor, int) else descriptor.fileno()


def _poll(original: Callable[[select.poll, float | None], _Events]) -> Callable[..., _Events]:
    def poll(self: select.poll, timeout: float | None = None, /) -> _Events:
        process = current_process()
        if process is None or process.polls_really or _is_refused(timeout, _LONGEST_MS):
            return original(self, timeout)
        found = original(self, 0)
        if found:
            process.simulation.read_clock()
            return found
        if timeout == 0:
            # `multiprocessing.connection.wait` polls in a loop until the clock shows that time has passed.
            process.simulation.ask()
            return found
        limit_ns = None if timeout is None or timeout < 0 else math.ceil(timeout) * 1_000_000
        return _wait(process, lambda real_s: original(self, real_s * 1e3), limit_ns, lambda fd: _is_polled(self, fd))

    return poll


def _select(
    original: Callable[[_Descriptors, _Descriptors, _Descriptors, float | None], _Selected],
) -> Callable[..., _Selected]:
    def select(
        rlist: _Descriptors, wlist: _Descriptors, xlist: _Descriptors, timeout: float | None = None, /
    ) -> _Selected:
        process = current_process()
        if process is None or process.polls_really or _is_refused(timeout, _LONGEST_NS / 1e9) or (timeout or 0) < 0:
            return original(rlist, wlist, xlist, timeout)

        def look(real_s: float) -> _Selected | None:
            found = original(rlist, wlist, xlist, real_s)
            return found if any(found) else None

        found = original(rlist, wlist, xlist, 0)
        if timeout == 0 or any(found):
            process.simulation.read_clock()
            return found
        limit_ns = None if timeout is None else math.ceil(timeout * 1e9)
        return _wait(process, look, limit_ns, lambda fd: fd in map(_number, rlist)) or ([], [], [])

    return select


def _own_pipe(fd: int) -> tuple[SimProcess, Pipes, int] | None:
    """The end of a pipe between a rank's processes that the caller means by a number."""
    runtime, process = current_runtime(), current_process()
    if runtime is None or process is None:
        return None
    pipes = runtime.extras.get(Pipes)
    end = None if pipes is None else pipes.number_in(process, fd)
    return None if pipes is None or end is None else (process, pipes, end)


def _read(original: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    def read(fd: int, length: int, /) -> bytes:
        own = _own_pipe(fd)
        if own is None:
            return original(laid_over(fd), length)
        process, pipes, end = own
        return pipes.read(process, end, length)

    return read


def _readinto(original: Callable[[int, WriteableBuffer], int]) -> Callable[[int, WriteableBuffer], int]:
    def readinto(fd: int, buffer: WriteableBuffer, /) -> int:
        own = _own_pipe(fd)
        if own is None:
            return original(laid_over(fd), buffer)
        process, pipes, end = own
        room = memoryview(buffer).cast("B")
        data = pipes.read(process, end, room.nbytes)
        room[: len(data)] = data
        return len(data)

    return readinto


def _write(original: Callable[[int, ReadableBuffer], int]) -> Callable[[int, ReadableBuffer], int]:
    reporting = _reporting(original)

    def write(fd: int, data: ReadableBuffer, /) -> int:
        own = _own_pipe(fd)
        if own is None:
            return reporting(laid_over(fd), data)
        process, pipes, end = own
        return pipes.write(process, end, data)

    return write


def _close(original: Callable[[int], None]) -> Callable[[int], None]:
    reporting = _reporting(original)

    def close(fd: int) -> None:
        own = _own_pipe(fd)
        if own is None:
            reporting(fd)
        else:
            own[1].close(own[2])

    return close


def _reporting(original: Callable[_P, _T]) -> Callable[_P, _T]:
    def write(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        done = original(*args, **kwargs)
        process = current_process()
        if process is not None:
            for task in list(process.polling):
                process.simulation.wake(task)
        return done

    return write


_POLLING: list[tuple[type, Make]] = []
if hasattr(select, "epoll"):
    _POLLING.append((select.epoll, _epoll))
if hasattr(select, "poll"):
    _POLLING.append((type(select.poll()), _poll))
_REPLACEMENTS = (Replacement(select, "select", _select),)
_WRITES = (
    Replacement(os, "read", _read),
    *(Replacement(os, name, _readinto) for name in ("readinto",) if hasattr(os, name)),  # of Python 3.14
    Replacement(os, "write", _write),
    Replacement(os, "close", _close),
    *(Replacement(os, name, _reporting) for name in ("writev",) if hasattr(os, name)),
)


def install(patches: Patches) -> None:
    """Let ranks poll in virtual time."""
    for owner, make in _POLLING:
        patches.wrap_all_in_type(owner, {"poll": make})
    patches.redirect(_REPLACEMENTS)


def notice_writes(patches: Patches) -> None:
    """From now on a write may wake tasks that poll; before the first of these nothing is replaced."""
    patches.wrap_all_in_type(_socket.socket, METHODS)
    patches.redirect(_WRITES)
