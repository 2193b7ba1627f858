"""Pipes between processes of one rank: real ones, whose readers and writers wait in virtual time.

A rank and the children that it starts talk over pipes of the operating system, as real ones do: the system itself
decides how much a pipe holds, when it has ended and when it has no reader left. All ends are in one process here, so
each process has a *table* of its own ends:

- A forked child gets a copy of every end that its parent has, as under a fork, and closes its copies itself. It may
  use the parent's numbers; the table maps them to its own ends.
- A process that ends closes all of its ends, and the objects that held them forget their numbers.

No end blocks: a task that would have to wait parks, until a task reads, writes or closes at the same pipe.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from simdist.inside.python import innermost, original
from simdist.kernel import Task, TaskKilled
from simdist.process._events import report_hand_over
from simdist.process._process import SimProcess
from simdist.process._waiting_words import parked_in

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["PipeWait", "Pipes"]


class _Channel:
    """One pipe, no matter which processes have its ends: the tasks that wait for something to happen to it."""

    __slots__ = ("__weakref__", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Task, None] = {}


class PipeWait:
    """What a task waits on that reads an empty pipe, or writes to a full one; `words` say so."""

    __slots__ = ("_task", "_words")
    interruptible = True  # by signals
    timed = False

    def __init__(self, task: Task, words: str) -> None:
        self._task = task
        self._words = words

    def describe(self) -> str:
        """The method of the standard library that waits; else the words."""
        return parked_in(self._task) or self._words

    def waits_for(self) -> Iterable[Task]:
        """No task in particular: the holder of another end."""
        return ()


class Pipes:
    """The ends of pipes that the processes of one world have."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}  # by end
        self._owners: dict[int, SimProcess] = {}  # likewise; every end has one
        self._inherited: dict[SimProcess, dict[int, int]] = {}  # a child's own ends, by its parent's numbers
        self._users: dict[SimProcess, None] = {}  # those that have, or had, an end
        self._borrowed: dict[int, None] = {}  # ends that the host made, and has again when the world is over
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._holders: dict[int, list[weakref.ref[Any]]] = {}  # of these, by the end that each had at first
        # Without the wrappers of a simulated disk, which would call this module again.
        self._read: Callable[[int, int], bytes] = original(innermost(os.read))
        self._write: Callable[[int, ReadableBuffer], int] = original(innermost(os.write))
        self._close: Callable[[int], None] = original(innermost(os.close))

    # -- ends ----------------------------------------------------------------------------------------------------

    def make(self, process: SimProcess, *, duplex: bool = False) -> tuple[int, int]:
        """A new pipe: the end to read from and the one to write to; if it is `duplex`, each end serves both."""
        if duplex:
            one, other = socket.socketpair()
            ends = one.detach(), other.detach()
        else:
            ends = os.pipe()
        channel = _Channel()
        for end in ends:
            os.set_blocking(end, False)
            self._enter(end, channel, process)
        return ends

    def connections(self, process: SimProcess, *, duplex: bool) -> tuple[connection.Connection, connection.Connection]:
        """What `multiprocessing.Pipe` returns."""
        one, other = self.make(process, duplex=duplex)
        first = connection.Connection(one, writable=duplex)
        second = connection.Connection(other, readable=duplex)
        self.hold(first)
        self.hold(second)
        return first, second

    def hold(self, made: connection.Connection) -> None:
        """Have this object, which has an end, forget it when another object closes the end or its process has ended."""
        self._connections.add(made)
        if not made.closed and made.fileno() in self._owners:
            self._holders.setdefault(made.fileno(), []).append(weakref.ref(made))

    def adopt(self, process: SimProcess, made: Iterable[connection.Connection]) -> None:
        """Let a process have connections that the host has made, for as long as the world lives.

        It is not known which two are the ends of one pipe: a task that waits at one of them looks again when anything
        happens to any.
        """
        channel = _Channel()
        for each in made:
            end = each.fileno()
            if end not in self._owners:
                os.set_blocking(end, False)
                self._borrowed[end] = None
                self._enter(end, channel, process)

    def copied_connection(self, made: connection.Connection, process: SimProcess) -> connection.Connection:
        """A `Connection` of a process for one that another process has."""
        copied = connection.Connection(self.copy(made.fileno(), process), made.readable, made.writable)
        self.hold(copied)
        return copied

    def copy(self, end: int, process: SimProcess) -> int:
        """Another descriptor of the same pipe, or file, for a process."""
        copied = os.dup(end)
        channel = self._channels.get(end)
        if channel is not None:
            self._enter(copied, channel, process)
        return copied

    def give(self, end: int, process: SimProcess) -> None:
        """Let the process have the end."""
        if end in self._owners:
            self._owners[end] = process
            self._use(process)

    def inherit(self, parent: SimProcess, child: SimProcess) -> None:
        """Give a forked child what its parent has."""
        table = self._inherited[child] = {}
        for end, owner in list(self._owners.items()):
            if owner is parent:
                table[end] = self.copy(end, child)
        for number, end in self._inherited.get(parent, {}).items():
            table.setdefault(number, table[end])

    def own_connection(self, of_parent: connection.Connection, child: SimProcess) -> connection.Connection:
        """A forked child's `Connection` for one of its parent's."""
        made: Any = connection.Connection.__new__(type(of_parent))
        made.__dict__.update(vars(of_parent))
        if made._handle is not None:
            end = self.number_in(child, made._handle)
            if end is not None:
                made._handle = end
        own: connection.Connection = made
        self.hold(own)
        return own

    def number_in(self, process: SimProcess, number: int) -> int | None:
        """The end that a process means by a number; None if it is not one of these pipes."""
        table = self._inherited.get(process)
        if table is not None and number in table:
            return table[number]
        return number if number in self._owners else None

    def close(self, end: int) -> None:
        """Close an end, no matter who has it."""
        channel = self._channels.pop(end)
        del self._owners[end]
        self._borrowed.pop(end, None)
        for table in self._inherited.values():
            table.pop(end, None)  # another file may get the number
            for number in [number for number, own in table.items() if own == end]:
                del table[number]
        for each in self._holders.pop(end, ()):  # it may have been closed by its parent's number
            made = each()
            if made is not None and made._handle == end:
                made._handle = None
        self._close(end)
        self._report(channel)

    def close_all_of(self, process: SimProcess) -> None:
        """Close all ends of a process that has ended."""
        ends = {end for end, owner in self._owners.items() if owner is process and end not in self._borrowed}
        for made in list(self._connections):
            if made._handle in ends:
                made._handle = None
        for end in sorted(ends):
            self.close(end)
        self._inherited.pop(process, None)
        self._users.pop(process, None)

    def close_all(self) -> None:
        """Close all ends at the end of the world; the host's get back to it."""
        for made in list(self._connections):
            made._handle = None
        for end in list(self._owners):
            self._owners.pop(end)
            if end in self._borrowed:
                os.set_blocking(end, True)
            else:
                self._close(end)
        self._borrowed.clear()
        self._holders.clear()
        self._channels.clear()
        self._inherited.clear()
        self._users.clear()

    # -- bytes ---------------------------------------------------------------------------------------------------

    def read(self, process: SimProcess, end: int, size: int) -> bytes:
        """Read as `os.read` does; returns no bytes when every other end is closed."""
        channel = self._channels[end]
        while True:
            try:
                found = self._read(end, size)
            except BlockingIOError:
                self._park(process, channel, "read")
                if end not in self._channels:  # closed meanwhile, by a handler of a signal or by another thread
                    raise OSError(9, "Bad file descriptor") from None
            else:
                report_hand_over(process.simulation.current, channel, gives=False)
                self._report(channel)
                return found

    def write(self, process: SimProcess, end: int, data: ReadableBuffer) -> int:
        """Write all of it, as `os.write` does to a pipe that blocks."""
        channel = self._channels[end]
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            try:
                written = self._write(end, left)
            except BlockingIOError:
                self._park(process, channel, "write")
                if end not in self._channels:
                    raise OSError(9, "Bad file descriptor") from None
            else:
                left = left[written:]
                report_hand_over(process.simulation.current, channel, gives=True)
                self._report(channel)
        return size

    # -- inside --------------------------------------------------------------------------------------------------

    def _enter(self, end: int, channel: _Channel, process: SimProcess) -> None:
        self._channels[end] = channel
        self._owners[end] = process
        self._use(process)

    def _use(self, process: SimProcess) -> None:
        if process not in self._users and process.running:
            self._users[process] = None
            process.end_listeners[self.close_all_of] = None

    def _park(self, process: SimProcess, channel: _Channel, verb: str) -> None:
        task = process.simulation.check()
        channel.waiting[task] = None
        try:
            process.simulation.park(PipeWait(task, f"{verb} of a pipe"))
        finally:
            channel.waiting.pop(task, None)
        if task.doomed:
            raise TaskKilled
        process.drain()

    def _report(self, channel: _Channel) -> None:
        """Wake the tasks that wait for something to happen to a pipe."""
        for task in list(channel.waiting):
            task.simulation.wake(task)
        for process in self._users:
            for task in list(process.polling):
                task.simulation.wake(task)
