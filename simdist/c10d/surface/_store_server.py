"""The server of a simulated store, the connection that views of a client share, and the time limits of waits.

Invariants: a wait is over when its last key arrives, when its server closes, or when its time is up, whichever is
first. One thread of a process at a time uses a client's connection; a thread that a signal interrupts keeps its turn.
Texts and whole seconds of time-outs are those of TCPStore, HashStore and FileStore (measured, torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from simdist.c10d.calls._log import log
from simdist.inside.torch import Place
from simdist.kernel import Task
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.engine import Communicator

__all__ = [
    "BROKEN",
    "CLOSED",
    "LATE_NS",
    "AnswerWait",
    "Connection",
    "KeyWait",
    "Monitor",
    "StoreRequested",
    "StoreServed",
]
__all__ += ["StoreServer", "as_bytes", "due_in", "gave_up", "in_ns", "lost", "time_limit_ns", "touch_keys"]

LATE_NS = 1_000_000  # how long after its time limit a wait ends, unless the limit is 0

CLOSED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
BROKEN = "Broken pipe"
_READERS = {  # the function that reads an answer, and its place; that of `check` is the default
    **dict.fromkeys(("get", "wait", "multi_get", "queue_pop"), ("recvValueWithTimeout", Place.STORE_READ_IN_TIME)),
    "compare_set": ("recvVector", Place.STORE_READ_VECTOR),
    "check": ("recvValue", Place.STORE_READ),
}
QUESTIONS = ("get", "check", "wait", "multi_get", "num_keys", "list_keys", "queue_len")  # change nothing
_DEFAULT_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class StoreRequested:
    """Announced: a rank makes a request to a store, which has not arrived yet.

    `launchers` is True for the launcher's store. A strike "during" happens when the request is half way to the server,
    a strike "after" when the caller goes on.
    """

    process: SimProcess
    operation: str
    key: str
    launchers: bool


@dataclass(frozen=True, slots=True)
class StoreServed:
    """Reported: a store serves a rank's request, or is about to.

    A request without an answer is reported when it is sent.
    `values` are the values of the keys then, as far as the request has them.
    """

    process: SimProcess
    server: StoreServer
    operation: str
    keys: Sequence[str]
    values: Sequence[bytes] = ()


class KeyWait:
    """The wait of a rank for keys."""

    def __init__(self, server: StoreServer, keys: list[str], operation: str = "wait") -> None:
        self.server = server
        self.keys = keys
        self._operation = operation

    def describe(self) -> str:
        return f"store.{self._operation}({self.keys})"

    def waits_for(self) -> Iterable[Task]:
        # Any client may set the key.
        return [task for process in self.server.clients if process.running for task in process.tasks]


class AnswerWait:
    """The wait of a rank for the answer of a stopped server."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server

    def describe(self) -> str:
        return f"an answer of the store at {self.server.name}, which does not answer"

    def waits_for(self) -> Iterable[Task]:
        return ()


class _Turn:
    """The wait of a thread until another thread of its process has finished with their client."""

    def __init__(self, before: Task) -> None:
        self.before = before

    def describe(self) -> str:
        return "its turn at the client of a store, which another thread of the process uses"

    def waits_for(self) -> Iterable[Task]:
        return (self.before,)


class Monitor(Protocol):
    """A background reader of a store, such as NCCL's monitor."""

    def notice(self) -> None:
        """Look at the store: a key may have been set, or the store is gone."""
        ...


class StoreServer:
    """The data of one store, and the tasks that wait for keys."""

    def __init__(self, name: str, *, launchers: bool = False, distance_ns: Callable[[str], int] | None = None) -> None:
        """`distance_ns` gives the latency from a host to the server's host; None: there is no latency."""
        self.name = name
        self._distance_ns = distance_ns
        self._distances: dict[str, int] = {}
        self.launchers = launchers  # the launcher's agent serves it, not a rank
        self.data: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        self._waiting: dict[str, dict[Task, tuple[set[str], Callable[[], bool]]]] = {}  # by key: see `expect`
        self.connected: dict[Task, None] = {}  # tasks to wake when the server closes
        self.clients: dict[SimProcess, None] = {}
        # Communicators that met here, by prefix, one for each generation.
        self.groups: dict[str, list[Communicator]] = {}
        self.monitors: list[Monitor] = []  # background readers, which learn of changes without a request
        self.joined = 0  # clients that have joined
        self.master: Task | None = None  # the task that waits for clients to join
        self.gone = False  # the process that hosted it has ended
        self.stopped = False  # that process is stopped, as by SIGSTOP: connections stay, without answers
        self._held: list[Callable[[], None]] = []  # requests that have arrived since then, in order
        self.outlived = False  # an earlier life that used it is over, and its data is still here
        self.masters = 0  # live stores with which a rank opened it
        self.tenants_of: SimProcess | None = None  # the process whose masters at the port share it; None: none

    def distance_ns(self, host: str) -> int:
        """Return the one-way latency between a host and the server's host."""
        found = self._distances.get(host)
        if found is None:
            found = self._distances[host] = 0 if self._distance_ns is None else self._distance_ns(host)
        return found

    def close(self) -> None:
        """End all connections; clients that wait for an answer get none."""
        self.gone = True
        for task in list(self.connected):
            task.simulation.wake(task)
        for monitor in self.monitors:
            monitor.notice()

    def take(self, arrive: Callable[[], None]) -> None:
        """Serve an arrived request without an answer: now, or when the server resumes; never if it is gone."""
        if self.stopped:
            self._held.append(arrive)
        elif not self.gone:
            arrive()

    def stop(self) -> None:
        """Stop answering until `resume`."""
        self.stopped = True

    def resume(self) -> None:
        """Serve the requests that have arrived, and answer again."""
        self.stopped = False
        held, self._held = self._held, []
        for arrive in held:
            self.take(arrive)
        for task in list(self.connected):
            task.simulation.wake(task)

    def wait_for_answer(self, process: SimProcess) -> None:
        """Park while the server is stopped, however long: a client has no time-out for answers.

        This holds for all requests, and for the first one of a new connection. A client that gives up its wait for a
        key cancels the request, and waits for the answer to that (measured with a server under SIGSTOP, torch 2.13).
        """
        simulation = process.simulation
        task = simulation.check()
        outer = task in self.connected
        while self.stopped and not self.gone:
            self.connected[task] = None
            try:
                simulation.park(AnswerWait(self))
            finally:
                if not outer:
                    self.connected.pop(task, None)

    @contextlib.contextmanager
    def expect(self, task: Task, keys: Sequence[str], arrived: set[str], over: Callable[[], bool]) -> Iterator[None]:
        """While this is active, wake the task when the server closes, or when a set key makes the wait `over`.

        Keys that are set meanwhile are added to `arrived`.
        """
        self.connected[task] = None
        for key in keys:
            self._waiting.setdefault(key, {})[task] = arrived, over
        try:
            yield
        finally:
            self.connected.pop(task, None)
            for key in dict.fromkeys(keys):
                waiting = self._waiting[key]
                del waiting[task]
                if not waiting:
                    del self._waiting[key]

    def changed(self, key: str) -> None:
        """Wake the tasks whose wait is over now that `key` is set."""
        for task, (arrived, over) in list(self._waiting.get(key, {}).items()):
            arrived.add(key)
            if over():
                task.simulation.wake(task)

    def outlive(self) -> None:
        """Drop all state of clients, which have ended; keep their data and their requests that are not served yet."""
        self.forget()
        self.outlived = True
        self.joined = 0
        self.master = None
        for held in (self._waiting, self.connected, self.clients, self.monitors):
            held.clear()

    def forget(self) -> None:
        """Release the communicators that met here, at the end of the world."""
        for generations in self.groups.values():
            for communicator in generations:
                communicator.forget()
        self.groups.clear()

    def has(self, key: str) -> bool:
        """True if the key has a value or its queue an element."""
        return key in self.data or bool(self.queues.get(key))


class Connection:
    """The connection of a client, which its views with a prefix share."""

    __slots__ = ("arrives_ns", "asked_ns", "at_once", "closed", "noticed", "strike", "timeout", "turns")

    def __init__(self) -> None:
        self.timeout = _DEFAULT_TIMEOUT
        self.arrives_ns = 0  # when the last request without an answer arrives; later requests arrive after it
        self.asked_ns = 0  # when the last request was sent; its timeout counts from then
        self.at_once = 0  # requests at that same moment
        self.closed = False  # by the server
        self.strike: Callable[[], None] | None = None  # call this when the current request is over
        self.noticed = False  # a call has failed on the closed connection; from then on the client knows
        # The tasks of a process that use it. The first has the turn; a task interrupted by a signal may be first twice.
        self.turns: dict[SimProcess, list[Task]] = {}

    def begin(self, process: SimProcess) -> None:
        """Park until it is the calling task's turn (TCPStore's activeOpLock_)."""
        simulation = process.simulation
        task = simulation.check()
        tasks = self.turns.setdefault(process, [])
        if not tasks or tasks[0] is task:
            tasks.insert(0, task)
            return
        tasks.append(task)
        try:
            while tasks[0] is not task:
                simulation.park(_Turn(tasks[0]))
        except BaseException:
            self.end(process, task)
            raise

    def end(self, process: SimProcess, task: Task | None) -> None:
        """Give the turn to the next task, unless the calling task is interrupted inside its own turn."""
        tasks = self.turns.get(process)
        if tasks is None or task is None or task not in tasks:
            return
        had_turn = tasks[0] is task
        tasks.remove(task)
        if not tasks:
            del self.turns[process]
        elif had_turn and tasks[0] is not task and not task.doomed:
            process.simulation.wake(tasks[0])


def time_limit_ns(kind: str, limit: timedelta) -> int:
    """Return how long a wait with this limit lasts."""
    limit_ns = in_ns(limit)
    if kind == "file":
        limit_ns = (limit_ns // 1_000_000_000 + 1) * 1_000_000_000  # a FileStore counts in whole seconds
    return due_in(limit_ns)


def gave_up(kind: str, names: list[str], limit: timedelta, what: str) -> Exception:
    """Return a store's error after a wait of `limit`; `what` is a FileStore's text, or "barrier" for a TCPStore's."""
    limit_ms = round(limit.total_seconds() * 1e3)
    if kind == "hash":
        return dist.DistStoreError("Wait timeout")
    if kind == "file":
        return RuntimeError(what if what == "Wait timeout" else f"{what} after {limit_ms} ms")
    if what == "barrier":
        return dist.DistStoreError(f"barrier timeout after {limit_ms}ms, key: {names[0]}")
    keys = ", ".join("/" + name for name in names)
    return dist.DistStoreError(f"wait timeout after {limit_ms}ms, keys: {keys}")


def touch_keys(touch: Callable[..., None], server: StoreServer, operation: str, names: Iterable[str]) -> None:
    """Report the keys that a request reads or writes; names with commas are split."""
    writes = operation not in QUESTIONS
    if operation in ("num_keys", "list_keys"):
        touch(("all keys", server.name), writes=True)
        return
    if writes:
        touch(("all keys", server.name), writes=False)  # conflicts only with requests that list keys
    for part in {part: None for name in names for part in name.split(",")}:
        touch(("key", server.name, part), writes=writes)


def as_bytes(value: object) -> bytes:
    """Return a key's value as the server keeps it.

    Raises:
        TypeError: a store does not take this type.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview | list | tuple):
        return bytes(value)
    raise TypeError(f"incompatible function arguments: a store's value is str or bytes, not {type(value).__name__}")


def lost(process: SimProcess, address: tuple[str, int], text: str, operation: str) -> BaseException:
    """Log that the connection is closed, as torch does, and return the error for the caller."""
    if text == BROKEN:
        name, place, raised = "sendBytes", Place.STORE_SENT, f"sendBytes at {Place.SOCKET_SENT.path_for_cuda}"
    else:
        name, place = _READERS.get(operation, _READERS["check"])
        raised = f"recvBytes at {Place.SOCKET_READ.path_for_cuda}"
    host, port = address
    socket = f"SocketImpl(fd=3, addr=[{process.host.name}]:{40000 + process.rank}, remote=[{host}]:{port})"
    said = f"[c10d] {name} failed on {socket}: {text}\nException raised from {raised} (most recent call first):\n"
    log(process, "W", said, place)
    return dist.DistNetworkError(text)


def due_in(limit_ns: int) -> int:
    """Return after how long a wait with a limit ends; 0 for a limit of 0."""
    return limit_ns + LATE_NS if limit_ns else 0


def in_ns(limit: timedelta) -> int:
    """Return a limit in nanoseconds."""
    return round(limit.total_seconds() * 1e9)
