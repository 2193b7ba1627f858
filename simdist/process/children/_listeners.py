"""`multiprocessing.connection.Listener` and `Client` between the processes of one rank: what managers are built on.

A listener has no socket: a client makes a duplex pipe (`_pipes`) and leaves one end with the listener, for any task
that accepts. Addresses are those of the world. Its ports count up from the first dynamic one. Another rank's listener
can be reached, as another process's can on one machine. The Python code of `multiprocessing` exchanges keys.

In doubt: a listener for clients outside the world, and a client of a listener outside, are refused: the address is
unknown.
"""

from __future__ import annotations

import errno
import functools
import os
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing import connection, managers
from typing import Any, TypeVar

from simdist.kernel import Task, TaskKilled
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Runtime, current_process, current_runtime
from simdist.process.children._child_processes import pipes_here

__all__ = ["accepting", "connecting"]

_FIRST_PORT = 49152
_T = TypeVar("_T")
_Address = tuple[str, int] | str | bytes
_Key = tuple[str, int] | str


class _Accepting:
    """What a task waits on that accepts a connection."""

    __slots__ = ("_address",)
    interruptible = True  # by signals
    timed = False

    def __init__(self, address: _Address) -> None:
        self._address = address

    def describe(self) -> str:
        """In words."""
        return f"Listener.accept at {self._address!r}"

    def waits_for(self) -> Iterable[Task]:
        """No task in particular: any that knows the address may connect."""
        return ()


class _Listener:
    """Stands in for `SocketListener`."""

    def __init__(self, runtime: Runtime, process: SimProcess, address: Any, family: str) -> None:
        self._known = _listeners(runtime)
        if family == "AF_INET" and not address[1]:
            port = max((each[1] for each in self._known if isinstance(each, tuple)), default=_FIRST_PORT - 1) + 1
            address = (address[0], port)
        if _key(address) in self._known:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._runtime = runtime
        self._process = process
        self._address = address
        self._last_accepted: object = None
        self._waiting: deque[int] = deque()  # ends of pipes that were not accepted yet
        self._tasks: dict[Task, None] = {}  # those that wait in `accept`
        self._known[_key(address)] = self
        process.end_listeners[self._left] = None

    def accept(self) -> connection.Connection:
        """The next connection, in the order in which they were made."""
        process = current_process()
        assert process is not None
        simulation = process.simulation
        task = simulation.check()
        self._tasks[task] = None
        try:
            while not self._waiting:
                if self._known.get(_key(self._address)) is not self:
                    raise OSError(errno.EBADF, os.strerror(errno.EBADF))
                simulation.park(_Accepting(self._address))
                if task.doomed:
                    raise TaskKilled
                process.drain()
        finally:
            del self._tasks[task]
        end = self._waiting.popleft()
        pipes = pipes_here(self._runtime)
        pipes.give(end, process)
        made = connection.Connection(end)
        pipes.hold(made)
        return made

    def connect(self, process: SimProcess) -> connection.Connection:
        """A connection for a client."""
        pipes = pipes_here(self._runtime)
        own, other = pipes.make(process, duplex=True)
        pipes.give(other, self._process)
        self._waiting.append(other)
        self._wake()
        made = connection.Connection(own)
        pipes.hold(made)
        return made

    def close(self) -> None:
        """Refuses new connections and closes those not yet accepted."""
        if self._known.get(_key(self._address)) is self:
            del self._known[_key(self._address)]
        self._process.end_listeners.pop(self._left, None)
        pipes = pipes_here(self._runtime)
        while self._waiting:
            pipes.close(self._waiting.popleft())
        self._wake()

    def _left(self, process: SimProcess) -> None:
        self._waiting.clear()  # its ends are closed with all others of the process
        self.close()

    def _wake(self) -> None:
        for task in list(self._tasks):
            task.simulation.wake(task)


_LISTENERS: Extra[dict[_Key, _Listener]] = Extra("listeners")


def _listeners(runtime: Runtime) -> dict[_Key, _Listener]:
    found = runtime.extras.get(_LISTENERS)
    if found is None:
        found = runtime.extras[_LISTENERS] = {}
        kept: dict[object, object] = vars(managers.BaseProxy)["_address_to_local"]
        before = set(kept)
        runtime.patches.on_undo(lambda: _keep_only(kept, before))
    return found


def _keep_only(kept: dict[_T, object], before: set[_T]) -> None:
    """Forget what proxies keep for this world's servers: they are gone, and the next world reuses the addresses."""
    for address in [each for each in kept if each not in before]:
        del kept[address]


def _key(address: _Address) -> _Key:
    """The same key for all names of an address; every host in it is this machine."""
    return ("", address[1]) if isinstance(address, tuple) else os.fsdecode(address)


def accepting(original: Callable[[_Address, str, int], object]) -> Callable[..., object]:
    """Make the replacement of `SocketListener`."""

    @functools.wraps(original, updated=())
    def SocketListener(address: _Address, family: str, backlog: int = 1) -> object:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(address, family, backlog)
        return _Listener(runtime, process, address, family)

    return SocketListener


def connecting(
    original: Callable[[_Address], connection.Connection],
) -> Callable[[_Address], connection.Connection]:
    """Make the replacement of `SocketClient`."""

    @functools.wraps(original)
    def SocketClient(address: _Address) -> connection.Connection:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(address)
        listener = _listeners(runtime).get(_key(address))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return listener.connect(process)

    return SocketClient
