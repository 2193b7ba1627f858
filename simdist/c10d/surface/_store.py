"""The simulated store: one server's data, and the clients that ranks hold.

A client is a Python subclass of `torch.distributed.Store`, so it also works where torch's C++ wraps it. A request to a
TCPStore takes a latency to its host, and the answer a latency back. `set` has no answer, so its caller goes on at once,
and later requests on the same connection arrive after it. The other stores are memory and files of the rank's own
machine; only requests for missing keys take time there, so that a polling loop lets others run. Invariant: each request
takes effect at one instant, when it is at the server. A client of a TCPStore has one connection under one lock: one
thread of a process has its turn until it gets its answer or gives up, and its time counts from the start of its turn.
Texts, timeouts and the counting of keys differ between TCPStore, HashStore and FileStore as in torch (measured, 2.13).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypeVar, cast

import torch.distributed as dist

from simdist.c10d.surface._compat import Store
from simdist.c10d.surface._store_server import (
    BROKEN,
    CLOSED,
    QUESTIONS,
    Connection,
    KeyWait,
    StoreRequested,
    StoreServed,
    StoreServer,
    as_bytes,
    due_in,
    gave_up,
    in_ns,
    lost,
    time_limit_ns,
    touch_keys,
)
from simdist.errors import SimdistError
from simdist.process import SimProcess, Strike, carry_out, current_process
from simdist.records import store_asked

__all__ = ["SimPrefixStore", "SimStore"]

_POLL_NS = 100_000  # a round trip to the server on one machine
_MOST_AT_ONCE = 1_000  # requests at one moment: after that, a polling loop must let others run
_ADAPTED = ("get", "add", "compare_set", "check", "wait", "delete_key", "multi_get", "queue_pop")  # `StoreServed`
_LIMIT_IN_CPP: Callable[[Store], timedelta] = vars(Store)["timeout"].fget  # `_UNCHANGED` until C++ code sets it
_UNCHANGED = timedelta(minutes=5)
_NUMBER = re.compile(rb"\s*[+-]?\d+")

Kind = Literal["tcp", "hash", "file"]


_Request = TypeVar("_Request", bound=Callable[..., object])


def _answered(method: _Request) -> _Request:
    """Decorate a request with an answer: its caller goes on when the answer has arrived."""

    @functools.wraps(method)
    def request(self: SimStore, *args: Any, **kwargs: Any) -> object:
        try:
            result = method(self, *args, **kwargs)
            process = current_process()
            if process is not None:
                if process.simulation.bus.heard and method.__name__ in _ADAPTED:
                    self._report(process, method.__name__, args[0] if args else next(iter(kwargs.values())), result)
                self._travel(process)
        except BaseException as error:
            self._leave()
            if isinstance(error, Exception):
                self._end()
            raise
        self._leave()
        self._end()
        return result

    return cast("_Request", request)


class SimStore(Store):
    """A client of a `StoreServer`. Stands in for TCPStore, HashStore and FileStore."""

    # If a subclass of a C++ class has a `__dict__`, attribute access is slow; a rank makes several of these.
    __slots__ = ("_connection", "_kind", "host", "libuvBackend", "port", "server")

    def __init__(
        self,
        server: StoreServer,
        *,
        kind: Kind = "tcp",
        host: str = "",
        port: int = 0,
        connection: Connection | None = None,
        uses_libuv: bool = True,
    ) -> None:
        super().__init__()
        self.server = server
        self.libuvBackend = uses_libuv
        self._kind: Kind = kind
        self.host = host
        self.port = port
        self._connection = Connection() if connection is None else connection

    @property
    def path(self) -> str:
        """The file of a FileStore."""
        return self.server.name

    @property
    def timeout(self) -> timedelta:
        """The time limit of `get` and `wait`; C++ code sets its own for a while (`StoreTimeoutGuard`)."""
        own: timedelta = _LIMIT_IN_CPP(self)
        return self._connection.timeout if own == _UNCHANGED else own

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of this client and of all its views."""
        self._connection.timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        process = self._enter("set", key, answered=False)
        name, data, server = self._name(key), as_bytes(value), self.server

        def arrive() -> None:
            server.data[name] = data
            server.changed(name)

        if process.simulation.bus.heard:
            self._report(process, "set", key, data)
        self._send(process, arrive)

    def announce(self, key: str, value: str | bytes) -> None:
        """Set a key at once, as part of an operation whose duration already includes the way to the server."""
        self._enter("set", key, answered=False)
        name = self._name(key)
        data, server = as_bytes(value), self.server

        def arrive() -> None:
            server.data[name] = data
            server.changed(name)

        server.take(arrive)
        self._leave()
        self._end()

    @_answered
    def get(self, key: str) -> bytes:
        """Return the value of a key, and wait for it.

        Raises:
            DistStoreError: the key was not set in time; RuntimeError from a FileStore.
        """
        process = self._enter("get", key, limit=self.timeout)
        name = self._name(key)
        if name not in self.server.data or self._is_late(process, self.timeout):
            self._wait(process, [name], what=f"Timeout waiting for key: {name}")
        return self.server.data.get(name, b"")  # empty: the key belongs to a queue

    @_answered
    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its new value.

        Raises:
            DistNetworkError: the value is no number; a TCPStore's server then closes the connection.
            ValueError: likewise, from the other stores.
        """
        return self._add(self._enter("add", key), self._name(key), amount)

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value."""
        process = self._enter("append", key, answered=False)
        name, data, server = self._name(key), as_bytes(value), self.server

        def arrive() -> None:
            server.data[name] = server.data.get(name, b"") + data
            server.changed(name)

        if process.simulation.bus.heard:
            self._report(process, "append", key)
        self._send(process, arrive)

    @_answered
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set the key if it has the expected value, or if it is missing and `expected` is empty; return its value."""
        self._enter("compare_set", key)
        name = self._name(key)
        held = self.server.data.get(name)
        if held is None:
            if as_bytes(expected):
                self.server.changed(name)  # a TCPStore's server releases waits for the key, although it is not set
                return as_bytes(expected)
            self.server.data[name] = as_bytes(desired)
        elif held == as_bytes(expected):
            self.server.data[name] = as_bytes(desired)
        self.server.changed(name)
        return self.server.data[name]

    compareSet = compare_set

    @_answered
    def check(self, keys: list[str]) -> bool:
        """True if all keys are there. If one is missing, the call lets the other ranks run."""
        process = self._enter("check", ",".join(keys))
        present = all(self.server.has(self._name(key)) for key in keys)
        if not present and not self.server.distance_ns(process.host.name):
            process.simulation.sleep(_POLL_NS)
        return present

    @_answered
    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Park until all keys are there.

        Raises:
            DistStoreError: a key was not set in time; RuntimeError from a FileStore.
        """
        process = self._enter("wait", ",".join(keys), limit=self.timeout if timeout is None else timeout)
        self._wait(process, [self._name(key) for key in keys], timeout)

    @_answered
    def delete_key(self, key: str) -> bool:
        """Remove a key; False if there was none (a FileStore always returns True)."""
        self._enter("delete_key", key)
        return self.server.data.pop(self._name(key), None) is not None or self._kind == "file"

    deleteKey = delete_key

    @_answered
    def num_keys(self) -> int:
        """Return the number of keys, under any prefix."""
        process = self._enter("num_keys", "")
        if not self.server.distance_ns(process.host.name):
            self._poll(process, "num_keys", [])
        # Both count a key with which their clients have joined.
        hidden = self._kind == "file" or (self._kind == "tcp" and self.server.joined > 0)
        return len(self.server.data) + hidden

    getNumKeys = num_keys

    @_answered
    def list_keys(self) -> list[str]:
        """Return the names of all keys under this view's prefix, without the prefix."""
        self._enter("list_keys", "")
        prefix = self._name("")
        names = [name for name in self.server.data if name.startswith(prefix)]
        if self._kind == "file" and not prefix:
            names.append("efcount/")  # how many have opened the file
        return sorted(name.removeprefix(prefix) for name in names)

    @_answered
    def multi_get(self, keys: list[str]) -> list[bytes]:
        """`get` for several keys.

        Raises:
            DistStoreError: a key was not set in time.
        """
        process = self._enter("multi_get", ",".join(keys), limit=self.timeout)
        names = [self._name(key) for key in keys]
        self._wait(process, names)
        return [self.server.data.get(name, b"") for name in names]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """`set` for several keys."""
        if len(keys) != len(values):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """True if append, multi_get and multi_set are single operations of the store."""
        return self._kind != "file"

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Append to a queue."""
        process = self._enter_queue("queue_push", key, answered=False)
        name, data, server = self._name(key), as_bytes(value), self.server

        def arrive() -> None:
            server.queues.setdefault(name, []).append(data)
            server.changed(name)

        if process.simulation.bus.heard:
            self._report(process, "queue_push", key)
        self._send(process, arrive)

    @_answered
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first element of a queue, and wait for one with `block`.

        Raises:
            QueueEmptyError: the queue is empty and `block` is False.
            DistStoreError: no element was pushed in time.
        """
        process = self._enter_queue("queue_pop", key, limit=self.timeout if block else None)
        name = self._name(key)
        queues = self.server.queues
        if not block and not queues.get(name):
            raise dist.QueueEmptyError("queue is empty")
        self._wait(process, [name], over=lambda: bool(queues.get(name)), asks="queue_pop")
        return queues[name].pop(0)

    @_answered
    def queue_len(self, key: str) -> int:
        """Return the number of a queue's elements."""
        process = self._enter_queue("queue_len", key)
        if not self.server.distance_ns(process.host.name):
            self._poll(process, "queue_len", [self._name(key)])
        return len(self.server.queues.get(self._name(key), ()))

    def clone(self) -> SimStore:
        """Return another client of the same server."""
        other = SimStore(self.server, kind=self._kind, host=self.host, port=self.port, uses_libuv=self.libuvBackend)
        other.set_timeout(self.timeout)
        return other

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Park until `world_size` clients have called this with the same key; later ones go on at once.

        Raises:
            DistStoreError: not enough clients have called it in time; RuntimeError from a FileStore.
        """
        limit = self.timeout if timeout is None else timeout
        if self._kind == "tcp" and not isinstance(self, SimPrefixStore):
            self._meet(key, world_size, limit)
            return
        if self.add(f"{key}/num_members", 1) == world_size:
            self.set(f"{key}/last_member", "1")
        self.wait([f"{key}/last_member"], limit)

    # -- inside --------------------------------------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return key

    def _add(self, process: SimProcess, name: str, amount: int) -> int:
        held = _NUMBER.match(self.server.data.get(name, b"0"))
        if held is None:
            if self._kind != "tcp":
                raise ValueError("stoll")
            self._connection.closed = True
            raise self._lost(process, CLOSED)
        value = int(held[0]) + amount
        self.server.data[name] = str(value).encode()
        self.server.changed(name)
        return value

    @_answered
    def _meet(self, key: str, world_size: int, limit: timedelta) -> None:
        """A TCPStore's own barrier: its server counts callers under the key, and answers all when there are enough."""
        process = self._enter("barrier", key, limit=limit)
        name, server = self._name(key), self.server
        met = self._add(process, name, 1)
        if process.simulation.bus.heard:
            self._report(process, "add", key, met)
        self._wait(process, [name], limit, over=lambda: int(server.data.get(name, b"0")) >= world_size, asks="barrier")
        if process.simulation.bus.heard:
            self._report(process, "wait", key)

    def _enter(self, operation: str, key: str, *, answered: bool = True, limit: timedelta | None = None) -> SimProcess:
        """Announce the request, and park until it is at the server; the caller waits no longer than `limit`."""
        process = current_process()
        if process is None:
            raise SimdistError("a simulated store can only be used by simulated ranks")
        if self._kind != "tcp":
            return self._begin(process, operation, key, answered=answered, limit=limit)
        self._connection.begin(process)
        try:
            return self._begin(process, operation, key, answered=answered, limit=limit)
        except BaseException:
            if not answered:
                self._leave()
            raise

    def _begin(
        self, process: SimProcess, operation: str, key: str, *, answered: bool, limit: timedelta | None
    ) -> SimProcess:
        simulation = process.simulation
        simulation.check()
        self.server.clients[process] = None
        simulation.bus.record(store_asked(simulation.now_ns, process.rank, operation, key))
        if operation in QUESTIONS:
            simulation.polls += 1
        connection = self._connection
        connection.at_once = connection.at_once + 1 if connection.asked_ns == simulation.now_ns else 0
        if connection.at_once > _MOST_AT_ONCE:
            simulation.sleep(_POLL_NS)
        connection.asked_ns = simulation.now_ns
        if simulation.bus.wants(StoreRequested):
            connection.strike = None  # of a request that failed before it left
            left = self._judged(process, operation, key, limit)
            if left is not None:
                self._strike_later(process, *left)
        self.require_server(process, operation if answered else "")
        if answered and self.server.stopped:
            self.server.wait_for_answer(process)
            self.require_server(process, operation)
        if answered:
            most_ns = None if limit is None else max(0, connection.asked_ns + in_ns(limit) - simulation.now_ns)
            if self._travel(process, most_ns, behind_ns=connection.arrives_ns):
                self.require_server(process, operation)
        touch = simulation.policy.touch
        if touch is not None:
            if not answered:
                simulation.offer()  # a request with an answer did so in `_travel`
            touch_keys(touch, self.server, operation, [self._name(each) for each in key.split(",")])
        return process

    def _poll(self, process: SimProcess, operation: str, names: Iterable[str]) -> None:
        """Let the other ranks run before a request that takes no time."""
        process.simulation.sleep(_POLL_NS)
        touch = process.simulation.policy.touch
        if touch is not None:
            touch_keys(touch, self.server, operation, names)

    def _report(self, process: SimProcess, operation: str, keys: str | list[str], result: Any = None) -> None:
        """Report a request that is served now, or on its way."""
        bus = process.simulation.bus
        if not bus.hears(StoreServed) or result is False:
            return
        names = [self._name(key) for key in ([keys] if isinstance(keys, str) else keys)]
        values: list[bytes] = []
        if operation in ("get", "set", "add", "compare_set", "multi_get"):
            values = result if isinstance(result, list) else [str(result).encode() if operation == "add" else result]
        bus.report(StoreServed(process, self.server, operation, names, values))

    def _travel(self, process: SimProcess, most_ns: int | None = None, behind_ns: int = 0) -> bool:
        """Park while a request or an answer is on its way, at least until `behind_ns`; True if this took time.

        Under a random policy it may take longer than usual, and others may run even if it takes no time.
        """
        simulation = process.simulation
        usual_ns = self.server.distance_ns(process.host.name)
        duration_ns = max(usual_ns + simulation.policy.extra_ns(usual_ns), behind_ns - simulation.now_ns)
        if most_ns is not None:
            duration_ns = min(duration_ns, most_ns)
        if duration_ns:
            simulation.sleep(duration_ns)
            return True
        if simulation.preempts:
            simulation.offer()
        return False

    def require_server(self, process: SimProcess, operation: str = "check") -> None:
        """Fail as a request to a lost server does. `operation` is empty for a request without an answer.

        Raises:
            DistNetworkError: the server is gone, or has closed the connection.
        """
        connection = self._connection
        if self.server.gone or connection.closed:
            if connection.noticed:
                raise self._lost(process, BROKEN)
            connection.noticed = True
            if operation:  # a request without an answer is sent before the client notices the lost server
                raise self._lost(process, CLOSED, operation)

    def _lost(self, process: SimProcess, text: str, operation: str = "check") -> BaseException:
        return lost(process, (self.host, self.port), text, operation)

    def _judged(self, process: SimProcess, operation: str, key: str, limit: timedelta | None) -> Strike | None:
        verdict = process.simulation.bus.announce(StoreRequested(process, operation, key, self.server.launchers))
        limit_ns = None if limit is None else due_in(in_ns(limit))
        return carry_out(process, verdict, f"store.{operation}", limit_ns=limit_ns)

    def _strike_later(self, process: SimProcess, when: str, action: Callable[[], None]) -> None:
        simulation, distance_ns = process.simulation, self.server.distance_ns(process.host.name)
        if when == "after":
            self._connection.strike = action
        elif distance_ns:
            simulation.call_at(simulation.now_ns + distance_ns // 2, action)
        else:
            action()
            simulation.sleep(0)

    def _leave(self) -> None:
        """Let another thread of the process use the connection."""
        process = current_process()
        if process is not None and process in self._connection.turns:
            self._connection.end(process, process.simulation.current)

    def _end(self) -> None:
        """Do the strike that is due at the end of a request, before its caller goes on or gets the error."""
        action = self._connection.strike
        if action is not None:
            self._connection.strike = None
            action()
            process = current_process()
            if process is not None:
                process.simulation.sleep(0)

    def _enter_queue(
        self, operation: str, key: str, *, answered: bool = True, limit: timedelta | None = None
    ) -> SimProcess:
        if self._kind == "file":
            raise NotImplementedError("queue support is not implemented.")
        return self._enter(operation, key, answered=answered, limit=limit)

    def _send(self, process: SimProcess, arrive: Callable[[], None]) -> None:
        """Send a request that has no answer: it arrives later, unless the server is gone by then."""
        simulation, server, connection = process.simulation, self.server, self._connection
        distance_ns = server.distance_ns(process.host.name)
        if distance_ns:
            distance_ns += simulation.policy.extra_ns(distance_ns)
        if distance_ns:
            arrives_ns = simulation.now_ns + distance_ns
            connection.arrives_ns = max(arrives_ns, connection.arrives_ns)
            simulation.call_at(connection.arrives_ns, lambda: server.take(arrive))
        else:
            server.take(arrive)
        self._leave()
        self._end()

    def _is_late(self, process: SimProcess, limit: timedelta) -> bool:
        """True if the way to the server alone took as long as the caller's time limit."""
        asked_ns, now_ns = self._connection.asked_ns, process.simulation.now_ns
        return now_ns > asked_ns and now_ns >= asked_ns + due_in(in_ns(limit))

    def _wait(
        self,
        process: SimProcess,
        names: list[str],
        timeout: timedelta | None = None,
        *,
        over: Callable[[], bool] | None = None,
        asks: Literal["wait", "queue_pop", "barrier"] = "wait",
        what: str = "Wait timeout",
    ) -> None:
        """Park until `over()`; by default, until all `names` are there. `what` is a FileStore's text for a timeout."""
        server = self.server
        arrived = {name for name in names if server.has(name)}
        if over is None:

            def over() -> bool:
                if self._kind == "tcp":  # its server counts arrived keys, and does not check whether they stay
                    return arrived.issuperset(names)
                return all(server.has(name) for name in names)

        limit = self.timeout if timeout is None else timeout
        late = self._is_late(process, limit)
        if over() and not late:
            return
        simulation = process.simulation
        task = simulation.check()
        if asks == "barrier":
            what, wait = asks, KeyWait(server, names, asks)
        else:
            wait = KeyWait(server, [name for name in names if not server.has(name)])
        if late:
            self._give_up(names, limit, what, process)
        deadline_ns = self._connection.asked_ns + time_limit_ns(self._kind, limit)
        with server.expect(task, names, arrived, over):
            while not over():
                in_time = simulation.park(wait, deadline_ns)
                if simulation.policy.touch is not None:
                    touch_keys(simulation.policy.touch, server, asks, names)
                if over():
                    return  # even if the server is gone by now: it answered before
                if server.gone:
                    raise self._lost(process, CLOSED, "wait")
                if not in_time:
                    self._give_up(names, limit, what, process)

    def _give_up(self, names: list[str], limit: timedelta, what: str, process: SimProcess | None = None) -> NoReturn:
        if process is not None and self._kind == "tcp" and process.simulation.bus.wants(StoreRequested):
            # The client cancels its request, and waits for the answer (TCPStore::doWait).
            left = self._judged(process, "cancel_wait", ",".join(names), None)
            if left is not None:  # no request follows before the error
                left[1]()
        if process is not None and self.server.stopped:
            self.server.wait_for_answer(process)
            self.require_server(process, "wait")
        raise gave_up(self._kind, names, limit, what)


class SimPrefixStore(SimStore):
    """A view of another store in which every key has a prefix."""

    __slots__ = ("_joined", "prefix", "underlying_store")

    def __init__(self, prefix: str, store: SimStore) -> None:
        super().__init__(store.server, kind=store._kind, host=store.host, port=store.port, connection=store._connection)
        self.prefix = prefix
        self.underlying_store = store
        self._joined = store._name(f"{prefix}/")

    @property
    def _underlying_non_prefix_store(self) -> SimStore:
        store: SimStore = self.underlying_store
        return store._underlying_non_prefix_store if isinstance(store, SimPrefixStore) else store

    def _name(self, key: str) -> str:
        return self._joined + key

    def clone(self) -> SimStore:
        """Return another view, of a clone of the store."""
        return SimPrefixStore(self.prefix, self.underlying_store.clone())
