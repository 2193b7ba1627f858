"""The board: processes of a real run report their progress to it, and wait for each other there.

It is a server in the launching process, with one thread for each client. A request is a tuple of a method's name and
its arguments; the answer is the method's result. Every wait has a limit, and its answer shows if the limit has passed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError, connection
from typing import Any

__all__ = ["Board", "BoardClient"]


class Board:
    """The facts of one run, and the server that answers requests for them.

    Example:
        >>> with Board(world_size=2, address=("127.0.0.1", 0), key=b"secret") as board:
        ...     client = BoardClient(board.address, b"secret")
        ...     client.call("end", 0, 0)
    """

    def __init__(self, world_size: int, address: tuple[str, int], key: bytes) -> None:
        self._size = world_size
        self._changed = threading.Condition()
        self._begun: dict[int, set[int]] = {}
        self._origin_ns: int | None = None
        self._begun_at_ns: dict[int, int] = {}
        self._entered: set[object] = set()
        self._ended: dict[int, set[int]] = {}
        self._given: dict[int, Any] = {}
        self._struck: dict[str, int] = {}
        self._server = socket.create_server(address, backlog=4 * world_size + 16)
        self._closed = False
        self._key = key
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, name="simdist board", daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> tuple[str, int]:
        """The address on which it listens."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, close every connection, and end all threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # the accepting thread only looks at `_closed` after a connection
            socket.create_connection(self.address).close()
        self._threads[0].join(5)
        self._server.close()
        for client in self._clients:
            with contextlib.suppress(OSError):  # gone already
                client.shutdown(socket.SHUT_RDWR)  # which wakes the thread that reads from it
        for thread in self._threads[1:]:
            thread.join(5)

    # -- calls of clients ----------------------------------------------------------------------------------------

    def begin(self, life: int, rank: int, limit_s: float) -> tuple[int, int] | None:
        """Wait until all ranks of this life are ready; return when run and life began, None if they never are."""
        with self._changed:
            ready = self._begun.setdefault(life, set())
            ready.add(rank)
            if len(ready) == self._size:
                self._begun_at_ns[life] = time.time_ns()
                if self._origin_ns is None:
                    self._origin_ns = self._begun_at_ns[life]
                self._changed.notify_all()
            self._wait(lambda: life in self._begun_at_ns, limit_s)
            if life not in self._begun_at_ns or self._origin_ns is None:
                return None
            return self._origin_ns, self._begun_at_ns[life]

    def wait_begun(self, limit_s: float) -> int | None:
        """Wait until the run has begun; return when that was, None if it never begins."""
        with self._changed:
            self._wait(lambda: self._origin_ns is not None, limit_s)
            return self._origin_ns

    def enter(self, what: object) -> None:
        """Note that a rank is about to enter an operation."""
        with self._changed:
            self._entered.add(what)
            self._changed.notify_all()

    def wait_entered(self, whats: Sequence[object], limit_s: float) -> bool:
        """Wait until all of these have been entered; False if they never are."""
        with self._changed:
            return self._wait(lambda: self._entered.issuperset(whats), limit_s)

    def wait_entered_or_ended(self, what: object, life: int, rank: int, limit_s: float) -> tuple[bool, bool]:
        """Wait until this has been entered, or the rank is dead; return which of the two has happened."""
        with self._changed:
            self._wait(lambda: what in self._entered or rank in self._ended.get(life, ()), limit_s)
            return what in self._entered, rank in self._ended.get(life, ())

    def struck(self, name: str, time_ns: int) -> None:
        """Note when a fault with a name has struck, counted from the run's begin; only the first time counts."""
        with self._changed:
            self._struck.setdefault(name, time_ns)
            self._changed.notify_all()

    def wait_struck(self, names: Sequence[str], limit_s: float) -> dict[str, int]:
        """Wait until some of these faults have struck; return when, by name."""
        with self._changed:
            self._wait(lambda: not self._struck.keys().isdisjoint(names), limit_s)
            return {name: self._struck[name] for name in names if name in self._struck}

    def end(self, life: int, rank: int) -> None:
        """Note the end of the rank's process."""
        with self._changed:
            self._ended.setdefault(life, set()).add(rank)
            self._changed.notify_all()

    def wait_ended(self, life: int, but: int, limit_s: float) -> bool:
        """Wait until at most `but` processes of this life are left; False if more still are."""
        with self._changed:
            return self._wait(lambda: len(self._ended.get(life, ())) >= self._size - but, limit_s)

    def give(self, node: int, content: object) -> None:
        """Hand in the files that a node's ranks have left, for the report."""
        with self._changed:
            self._given[node] = content
            self._changed.notify_all()

    def take(self, nodes: int, limit_s: float) -> dict[int, Any]:
        """Wait for the files of all nodes; return those that have arrived when the limit passes."""
        with self._changed:
            self._wait(lambda: len(self._given) >= nodes, limit_s)
            return dict(self._given)

    # -- the server ----------------------------------------------------------------------------------------------

    def _wait(self, true: Callable[[], bool], limit_s: float) -> bool:
        self._changed.wait_for(lambda: self._closed or true(), limit_s)
        return bool(true())

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                continue  # the client is gone again
            if self._closed:
                client.close()
                return
            self._clients.append(client)
            thread = threading.Thread(target=self._answer, args=(client,), name="simdist board client", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _answer(self, client: socket.socket) -> None:
        # The challenge is in this thread, and not where clients are accepted, as `connection.Listener` has it: a silent
        # client keeps only its own thread.
        with client, connection.Connection(os.dup(client.fileno())) as channel:
            try:
                connection.deliver_challenge(channel, self._key)
                connection.answer_challenge(channel, self._key)
                while not self._closed:
                    name, *arguments = channel.recv()
                    channel.send(getattr(self, name)(*arguments))
            except (EOFError, OSError, AuthenticationError):
                return  # the client is not one of ours, or gone, or the board is closed


class BoardClient:
    """A connection to the board; `call` may be used by several threads, one after the other."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._connection = connection.Client(address, authkey=key)
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: object) -> Any:
        """Send a request to the board; return its answer."""
        with self._lock:
            self._connection.send((method, *arguments))
            return self._connection.recv()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
