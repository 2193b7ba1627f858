"""Sockets of ranks: those that join tasks of the world block in virtual time, all others really.

A socket is a real one. If its other end is in the world too (a server on a thread of the rank, on another rank, a
pair), a task that would block parks until another task has written, connected or read, and its timeout is virtual. For
data from outside, from a service or the host's own threads, a task waits while it keeps the baton: virtual time stands
still meanwhile, as it does for programs that ranks start, and `RunResult.programs` names the connection.

The other end is in the world if it has the address of a socket that a rank holds. All this begins with the first
socket that a rank makes. The system must not keep small packets back for 40 real milliseconds (Nagle's algorithm):
virtual time would pass meanwhile. So it sends them at once (`TCP_NODELAY`), whatever ranks set and are shown.

In doubt: bytes between tasks take no virtual time. The operating system decides how many fit into a buffer, and so how
often a task parks that sends more than some hundred kilobytes at once. A rank that accepts, or receives datagrams from
any sender, waits for this world only, so a server on a rank is not for clients outside; a socket that the host made is
the host's. Encrypted connections (`ssl`) read and write in C: they are set not to block, and this module waits for the
event that they ask for.
"""

from __future__ import annotations

import _socket
import errno
import functools
import math
import select
import socket
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.kernel import BEYOND, Task, TaskKilled
from simdist.process._events import report_hand_over
from simdist.process._lateness import due_at
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, Replacement, Runtime, current_process, current_runtime
from simdist.process.stdlib._host_names import address_of_host
from simdist.process.stdlib._ports import (
    INTERNET,
    LOCAL,
    PAIR,
    Key,
    Ports,
    is_here,
    is_loopback,
    key_of,
    names_of,
    other_address,
    own_name,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["METHODS", "Sockets", "install"]

_T = TypeVar("_T")
_Socket = _socket.socket
_READ, _WRITE = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 4)
_AT_ONCE: int = getattr(socket, "MSG_DONTWAIT", 0)
_send: Callable[[_Socket, ReadableBuffer, int], int] = vars(_socket.socket)["send"]
_close: Callable[[_Socket], None] = vars(_socket.socket)["close"]
_set_option: Callable[[_Socket, int, int, int], None] = vars(_socket.socket)["setsockopt"]
_NO_DELAY = (getattr(socket, "IPPROTO_TCP", 6), getattr(socket, "TCP_NODELAY", 1))
_PATIENCE_MS = 50.0  # real time within which the system delivers data of which a task was notified
_really_poll: Any = vars(type(select.poll()))["poll"] if hasattr(select, "poll") else None


class _Wait:
    """What a task waits on that blocks on a socket."""

    __slots__ = ("event", "names", "notified", "what")
    interruptible = True  # by signals

    def __init__(self, event: int, what: str, names: tuple[Key | None, Key | None]) -> None:
        self.event = event
        self.what = what
        self.names = names  # of its own end and of the other; the sockets that may wake it have them swapped
        self.notified = False  # such a socket was used, but the system may need a moment to deliver

    def describe(self) -> str:
        """In words."""
        return f"{self.what} a socket"

    def waits_for(self) -> Iterable[Task]:
        """No task in particular: any may have the other end."""
        return ()


class Sockets:
    """What is known of the sockets of one world."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.ports = Ports()
        self._named: dict[int, tuple[Key, SimProcess]] = {}  # by number: ranks' sockets that have an address
        self._to_outside: dict[int, None] = {}  # numbers of sockets that have sent datagrams outside
        self._waits: dict[Task, _Wait] = {}
        self.undelayed: set[int] = set()  # numbers of those for which ranks have set `TCP_NODELAY`
        self._encrypts = False  # True once a rank has an encrypted connection
        self._living: dict[weakref.ref[socket.socket], dict[SimProcess, None]] = {}  # and who has them
        runtime.child_begins.append(self._inherit)

    def follow(self, sock: socket.socket, process: SimProcess) -> None:
        """Close a socket when its process ends. One that is collected before was closed by that: waiting tasks look."""
        self._living[weakref.ref(sock, self._went)] = {process: None}
        process.end_listeners[self._leave] = None

    def _inherit(self, parent: SimProcess, child: SimProcess, forked: bool) -> None:
        for holders in self._living.values() if forked else ():
            if parent in holders:
                holders[child] = None
                child.end_listeners[self._leave] = None

    def _leave(self, process: SimProcess) -> None:
        """Close what no living process has any more."""
        held = [known for known, holders in self._living.items() if process in holders]
        for known in held:
            sock, holders = known(), self._living[known]
            del holders[process]
            if holders or sock is None or sock.fileno() < 0:
                continue
            names, number = names_of(sock), sock.fileno()
            _close(sock)
            self.forget(number)
            self.unfollow(sock)
            self.notify(names, process)

    def unfollow(self, sock: _Socket) -> None:
        """Stop following a closed socket: when its object is collected does not matter any more."""
        if isinstance(sock, socket.socket):
            self._living.pop(weakref.ref(sock), None)

    def _went(self, sock: weakref.ref[socket.socket]) -> None:
        self._living.pop(sock, None)
        if current_runtime() is self._runtime:
            polling = [task for process in self._runtime.processes.values() for task in process.polling]
            for task in [*self._waits, *polling]:
                self._runtime.simulation.wake(task)

    def notice(self) -> None:
        """From now on notice what ranks do with sockets."""
        self._runtime.notice_writes()

    def encrypt(self, kind: type) -> None:
        """Replace methods of this class of encrypted connections when a rank makes the first."""
        if not self._encrypts:
            self._encrypts = True
            for name, make in _ENCRYPTED:
                self._runtime.patches.wrap(kind, name, make)

    def name(self, sock: _Socket, process: SimProcess, number: int = -1) -> None:
        """Note that a socket has an address now, or that a new one with this `number` has the same address."""
        if process.simulation.policy.touch is not None:
            process.simulation.policy.touch(BEYOND, writes=True)
        key = own_name(sock)
        if key is not None:
            self._named[sock.fileno() if number < 0 else number] = key, process

    def used(self, sock: _Socket) -> list[int]:
        """Return the real ports of the world's sockets of this one's type."""
        return [port for (kind, port), _ in self._named.values() if kind == sock.type and isinstance(port, int)]

    def forget(self, number: int) -> None:
        """Forget a socket that is closed, or whose number a new one has."""
        self._named.pop(number, None)
        self._to_outside.pop(number, None)
        self.undelayed.discard(number)

    def joins(self, sock: _Socket) -> bool:
        """True if what the socket receives can only come from this world."""
        try:
            peer = other_address(sock)
        except OSError:  # it has none: it accepts, or is for datagrams
            return sock.fileno() in self._named and sock.fileno() not in self._to_outside
        return self.has(sock, peer)

    def has(self, sock: _Socket, address: object) -> bool:
        """True if a socket of a rank has the address."""
        key = key_of(sock, address) if is_here(sock, address) else None
        return key in (PAIR, *(known for known, _ in self._named.values()))

    def sent(self, sock: _Socket, process: SimProcess, address: object) -> None:
        """Note that a socket, which has an address now, has connected or sent something to `address`."""
        number = sock.fileno()
        if number not in self._named:
            self.ports.choose(sock, process, self.used(sock))
            self.name(sock, process)
        if not self.has(sock, address):
            if number not in self._to_outside:
                where = ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)
                self._runtime.programs.connected(process, where, sys._getframe(1))
            self._to_outside[number] = None

    def wait(self, sock: _Socket, process: SimProcess, event: int, what: str) -> None:
        """Park until the socket is ready, unless it waits for something outside the world.

        Raises:
            TimeoutError: its timeout came first.
        """
        number, timeout_s = sock.fileno(), sock.gettimeout()
        if number < 0 or timeout_s == 0 or process.polls_really or _is_ready(number, event) or not self.joins(sock):
            return
        simulation = process.simulation
        task = simulation.check()
        deadline_ns = None if timeout_s is None else due_at(process, math.ceil(timeout_s * 1e9))
        wait = self._waits[task] = _Wait(event, what, names_of(sock))
        try:
            while True:
                if task.doomed:
                    raise TaskKilled
                in_time = simulation.park(wait, deadline_ns)
                process.drain()
                notified, wait.notified = wait.notified, False
                if sock.fileno() != number or _is_ready(number, event, _PATIENCE_MS if notified else 0):
                    return
                if not in_time:
                    raise TimeoutError("timed out")
        finally:
            del self._waits[task]

    def notify(self, names: tuple[Key | None, Key | None], process: SimProcess, reader: _Socket | None = None) -> None:
        """Wake tasks that wait, after a task has done something with a socket that has these addresses.

        `reader` is the socket if the task has read.
        """
        own, other = names
        simulation = process.simulation
        report_hand_over(simulation.current, self, gives=reader is None)
        for task, wait in list(self._waits.items()):
            meant = wait.names in ((other, own), (other, None))
            if not meant or (reader is not None and wait.event == _READ):
                continue
            # There may be no room yet after a read, but certainly when all has been read.
            wait.notified = (other is not None and other[0] not in LOCAL) and (
                reader is None or not _is_ready(reader.fileno(), _READ)
            )
            simulation.wake(task)
        for each in dict.fromkeys([process, *(holder for _, holder in self._named.values())]):
            for task in list(each.polling):
                simulation.wake(task)


def _is_ready(number: int, event: int, real_ms: float = 0) -> bool:
    poll = select.poll()
    poll.register(number, event)
    return bool(_really_poll(poll, real_ms))


def _send_at_once(sock: _Socket) -> None:
    if _is_tcp(sock):
        _set_option(sock, *_NO_DELAY, 1)


def _is_tcp(sock: _Socket) -> bool:
    return sock.family in INTERNET and sock.type == socket.SOCK_STREAM


def _numeric(sock: _Socket, address: object) -> object:
    """Replace the name of a simulated host in an address, which the system does not know, by the host's address."""
    if sock.family == socket.AF_INET and isinstance(address, tuple) and address:
        return (address_of_host(address[0]) or address[0], *address[1:])
    return address


def _known() -> tuple[Sockets, SimProcess] | None:
    runtime, process = current_runtime(), current_process()
    if runtime is None or process is None:
        return None
    found = runtime.extras.get(Sockets)
    if found is None:
        found = runtime.extras[Sockets] = Sockets(runtime)
    return found, process


# -- encrypted connections -------------------------------------------------------------------------------------------


def _encrypted(wants: int) -> Make:
    """For a method of `ssl.SSLSocket` that reads, or writes, or both in turn."""

    def make(original: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(original)
        def call(self: Any, *args: object, **kwargs: object) -> _T:  # an `ssl.SSLSocket`
            known, timeout_s = _known(), self.gettimeout()
            if known is None or self._sslobj is None or known[1].polls_really:
                return original(self, *args, **kwargs)
            sockets, process = known
            if timeout_s == 0:
                try:
                    return original(self, *args, **kwargs)
                finally:  # it may have written part of a handshake
                    sockets.notify(names_of(self), process, self if wants == _READ else None)
            ssl = sys.modules["ssl"]
            while sockets.joins(self):
                _set_timeout(self, 0)
                try:
                    return original(self, *args, **kwargs)
                except ssl.SSLWantReadError:
                    event, what = _READ, "wait for data from"
                except ssl.SSLWantWriteError:
                    event, what = _WRITE, "wait for room in"
                finally:
                    if self.fileno() >= 0:
                        _set_timeout(self, timeout_s)
                        sockets.notify(names_of(self), process, self if wants == _READ else None)
                sockets.wait(self, process, event, what)
            return original(self, *args, **kwargs)

        return call

    return make


_set_timeout: Callable[[_Socket, float | None], None] = vars(_socket.socket)["settimeout"]
_ENCRYPTED = (
    ("do_handshake", _encrypted(_READ | _WRITE)),
    ("read", _encrypted(_READ)),
    ("write", _encrypted(_WRITE)),
    ("send", _encrypted(_WRITE)),
    ("unwrap", _encrypted(_READ | _WRITE)),
)


# -- the methods -----------------------------------------------------------------------------------------------------


def _blocking(event: int, what: str) -> Make:
    """For a method that blocks until there is something to read, or room to write."""

    def make(original: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(original)
        def call(self: _Socket, *args: object, **kwargs: object) -> _T:
            known = _known()
            if known is None:
                return original(self, *args, **kwargs)
            sockets, process = known
            sockets.wait(self, process, event, what)
            done = original(self, *args, **kwargs)
            sockets.notify(names_of(self), process, self if event == _READ else None)
            return done

        return call

    return make


def _from(original: Callable[..., Any]) -> Callable[..., tuple[object, ...]]:
    """For a method that reads, and returns at the end where its data come from."""
    read: Callable[..., Any] = _blocking(_READ, "wait for data from")(original)

    @functools.wraps(original)
    def call(self: _Socket, *args: object, **kwargs: object) -> tuple[object, ...]:
        known = _known()
        *found, address = read(self, *args, **kwargs)
        return (*found, address if known is None else known[0].ports.seen(self, address))

    return call


def _accept(original: Callable[[_Socket], tuple[int, object]]) -> Callable[[_Socket], tuple[int, object]]:
    @functools.wraps(original)
    def accept(self: _Socket) -> tuple[int, object]:
        known = _known()
        if known is None:
            return original(self)
        sockets, process = known
        sockets.wait(self, process, _READ, "wait for a connection to")
        number, address = original(self)
        report_hand_over(process.simulation.current, sockets, gives=False)
        sockets.forget(number)
        sockets.name(self, process, number)
        if self.fileno() in sockets.undelayed:
            sockets.undelayed.add(number)
        return number, sockets.ports.seen(self, address)

    return accept


def _sendall(original: Callable[[_Socket, ReadableBuffer, int], None]) -> Callable[..., None]:
    @functools.wraps(original)
    def sendall(self: _Socket, data: ReadableBuffer, flags: int = 0, /) -> None:
        known = _known()
        if known is None or self.gettimeout() == 0:
            original(self, data, flags)
            if known is not None:
                known[0].notify(names_of(self), known[1])
            return
        sockets, process = known
        left = memoryview(data).cast("B")
        while True:
            sockets.wait(self, process, _WRITE, "wait for room in")
            # Without blocking: room for one byte need not be room for all.
            left = left[_send(self, left, flags | _AT_ONCE) if sockets.joins(self) else _send(self, left, flags) :]
            sockets.notify(names_of(self), process)
            if not left:
                return

    return sendall


def _sendto(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def sendto(self: _Socket, data: ReadableBuffer, *where: object) -> int:
        known = _known()
        if known is None:
            return original(self, data, *where)
        if where:
            where = (*where[:-1], known[0].ports.real(self, _numeric(self, where[-1])))
        done = original(self, data, *where)
        if where:
            sockets, process = known
            sockets.sent(self, process, where[-1])
            sockets.notify((own_name(self), key_of(self, where[-1])), process)
        return done

    return sendto


def _connect(original: Callable[[_Socket, object], int | None]) -> Callable[[_Socket, object], int | None]:
    @functools.wraps(original)
    def connect(self: _Socket, address: object, /) -> int | None:
        known = _known()
        if known is not None:
            address = known[0].ports.real(self, _numeric(self, address))
            _send_at_once(self)
        try:
            done = original(self, address)
        except BlockingIOError:
            done = None
            if known is None:
                raise
            _connected(self, *known, address)
            raise
        if known is not None and done in (None, 0, errno.EINPROGRESS):
            _connected(self, *known, address)
        return done

    return connect


def _connected(sock: _Socket, sockets: Sockets, process: SimProcess, address: object) -> None:
    if sock.type == socket.SOCK_STREAM:  # the other kind has not sent anything
        sockets.sent(sock, process, address)
        sockets.notify((own_name(sock), key_of(sock, address)), process)


def _bind(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def bind(self: _Socket, address: object, /) -> None:
        known = _known()
        if known is None:
            original(self, address)
            return
        sockets, process = known
        sockets.ports.bind(original, self, _numeric(self, address), process, sockets.used(self))
        sockets.name(self, process)

    return bind


def _listen(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def listen(self: _Socket, *args: object) -> None:
        known = _known()
        if known is not None:
            _send_at_once(self)  # as will those that it accepts
        original(self, *args)
        if known is not None:
            known[0].name(self, known[1])

    return listen


def _setsockopt(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def setsockopt(self: _Socket, *args: Any) -> None:
        known = _known()
        original(self, *args)
        if known is None or args[:2] != _NO_DELAY:
            return
        if any(args[2]) if isinstance(args[2], bytes) else args[2]:
            known[0].undelayed.add(self.fileno())
        else:
            known[0].undelayed.discard(self.fileno())
            _send_at_once(self)

    return setsockopt


def _getsockopt(original: Callable[..., int | bytes]) -> Callable[..., int | bytes]:
    @functools.wraps(original)
    def getsockopt(self: _Socket, *args: Any) -> int | bytes:
        found, known = original(self, *args), _known()
        if known is None or args[:2] != _NO_DELAY or self.fileno() in known[0].undelayed:
            return found
        return 0 if isinstance(found, int) else bytes(len(found))

    return getsockopt


def _ending(original: Callable[..., int | None]) -> Callable[..., int | None]:
    @functools.wraps(original)
    def end(self: _Socket, *args: object) -> int | None:
        known = _known()
        if known is None:
            return original(self, *args)
        sockets, process = known
        names, number = names_of(self), self.fileno()
        done = original(self, *args)
        if self.fileno() < 0 and done is None:  # `detach` returns the number, which stays in use
            sockets.forget(number)
            sockets.unfollow(self)
        sockets.notify(names, process)
        return done

    return end


def _own_address(original: Callable[[_Socket], Any]) -> Callable[[_Socket], object]:
    """For `getsockname`: a program that connects a datagram socket outside, and asks this, wants its host's address."""

    @functools.wraps(original)
    def getsockname(self: _Socket) -> object:
        found = original(self)
        known = _known()
        if known is None:
            return found
        seen: Any = known[0].ports.seen(self, found)
        if self.type != socket.SOCK_DGRAM or self.family != socket.AF_INET:
            return seen
        try:
            outside = not is_loopback(other_address(self)[0])
        except OSError:  # it has no other end
            return seen
        return (address_of_host(known[1].host.name) or seen[0], seen[1]) if outside else seen

    return getsockname


def _peer(original: Callable[[_Socket], object]) -> Callable[[_Socket], object]:
    @functools.wraps(original)
    def getpeername(self: _Socket) -> object:
        found = original(self)
        known = _known()
        return found if known is None else known[0].ports.seen(self, found)

    return getpeername


def _made(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: socket.socket, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        known = _known()
        if known is not None:
            sockets, process = known
            sockets.notice()
            existing = kwargs.get("fileno") is not None  # another object for an existing socket
            undelayed = existing and self.fileno() in sockets.undelayed
            sockets.forget(self.fileno())
            sockets.follow(self, process)
            if existing:
                sockets.name(self, process)
            if undelayed:
                sockets.undelayed.add(self.fileno())
            ssl = sys.modules.get("ssl")
            if ssl is not None and isinstance(self, ssl.SSLSocket):
                sockets.encrypt(ssl.SSLSocket)

    return init


METHODS: dict[str, Make] = {
    **dict.fromkeys(("recv", "recv_into"), _blocking(_READ, "wait for data from")),
    **dict.fromkeys(("recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"), _from),
    **dict.fromkeys(("send", "sendmsg"), _blocking(_WRITE, "wait for room in")),
    **dict.fromkeys(("connect", "connect_ex"), _connect),
    "bind": _bind,
    "listen": _listen,
    **dict.fromkeys(("shutdown", "close", "detach"), _ending),
    "getsockname": _own_address,
    "getpeername": _peer,
    "sendall": _sendall,
    "sendto": _sendto,
    "setsockopt": _setsockopt,
    "getsockopt": _getsockopt,
    "_accept": _accept,
}
"""By method of a socket: makes the method that ranks call."""

_REPLACEMENTS = (Replacement(socket.socket, "__init__", _made),)


def install(patches: Patches) -> None:
    """Notice the first socket that a rank makes."""
    patches.redirect(_REPLACEMENTS)
