"""Numbers of ports that the system chooses, as a function of the run's seed, the rank and its life.

A program that binds a socket to port 0, or connects, sees a number that is drawn here. It is the real number, unless
another program of the machine has it, or the system still keeps it after an earlier run: then the socket gets another
port, and ranks see the one that was drawn. A port that a program has chosen itself is the real one.

In doubt: code in C, and programs that a rank starts, see the real ports, as they do of a socket that connects without
having been bound. A program that looks by `bind` whether a program that it has started has its port yet is misled.
"""

from __future__ import annotations

import _socket
import errno
import socket
from collections.abc import Callable, Iterable
from typing import Any

from simdist.process._process import SimProcess
from simdist.process.stdlib._entropy import drawn_from

__all__ = ["INTERNET", "LOCAL", "PAIR", "Key", "Ports", "is_here", "is_loopback", "key_of", "names_of"]
__all__ += ["other_address", "own_address", "own_name"]

INTERNET = (socket.AF_INET, socket.AF_INET6)
_Socket = _socket.socket
Key = tuple[int | str, object]
"""The name that both ends of a connection have for an address."""

PAIR: Key = ("pair", None)
"""The name of the ends of a pair, which have no address."""

LOCAL = ("pair", "path")
"""The first parts of names of sockets that deliver data at once."""

_Port = tuple[int, int]  # the type of its sockets, and the number
_FIRST, _COUNT = 32_768, 28_232  # those that Linux chooses from
_HERE = frozenset(("", "0.0.0.0", "::", "::1", "localhost"))  # to be reached, not to be bound

own_address: Callable[[_Socket], Any] = vars(_socket.socket)["getsockname"]
"""Return the real address of a socket."""

other_address: Callable[[_Socket], Any] = vars(_socket.socket)["getpeername"]
"""Return the real address of a socket's other end.

Raises:
    OSError: it has none.
"""


def key_of(sock: _Socket, address: Any) -> Key | None:
    """The name that both ends have for an address; None for an end without one."""
    if sock.family in INTERNET:
        return (int(sock.type), address[1]) if address and address[1] else None
    return ("path", address) if address else PAIR


def names_of(sock: _Socket) -> tuple[Key | None, Key | None]:
    """The names of a socket and of its other end."""
    try:
        peer = other_address(sock)
    except OSError:
        return own_name(sock), None
    return own_name(sock), key_of(sock, peer)


def own_name(sock: _Socket) -> Key | None:
    """The name of a socket's own end."""
    try:
        return key_of(sock, own_address(sock))
    except OSError:  # closed
        return None


class Ports:
    """The ports of one world that the system has chosen."""

    def __init__(self) -> None:
        self._drawn: set[_Port] = set()
        self._real: dict[_Port, int] = {}  # real numbers by those that ranks see, where they differ
        self._seen: dict[_Port, int] = {}  # the other way round

    def real(self, sock: _Socket, address: object) -> object:
        """Return an address that ranks see with the real number of its port."""
        return _with_port(sock, address, self._real)

    def seen(self, sock: _Socket, address: object) -> object:
        """Return a real address as ranks see it."""
        return _with_port(sock, address, self._seen)

    def bind(
        self, bind: Callable[..., None], sock: _Socket, address: object, process: SimProcess, used: Iterable[int]
    ) -> None:
        """Bind a socket. `used` are the real ports of the world's sockets of its type."""
        wanted = address[1] if isinstance(address, tuple) and len(address) > 1 else None
        if sock.family not in INTERNET or not isinstance(address, tuple) or type(wanted) is not int:
            bind(sock, address)
            return
        kind = int(sock.type)
        taken = {self._seen.get((kind, port), port) for port in used}
        port = wanted or self._draw(kind, process, taken)
        try:
            bind(sock, (address[0], port, *address[2:]))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port in taken or (kind, port) not in self._drawn:
                raise
            bind(sock, (address[0], 0, *address[2:]))
            self._show(sock, port)
        else:
            if port not in taken:  # what is known of it is of a socket that is closed
                self._real.pop((kind, port), None)
                self._seen.pop((kind, port), None)

    def choose(self, sock: _Socket, process: SimProcess, used: Iterable[int]) -> None:
        """Draw the number that ranks see of a port that the system has chosen already."""
        if sock.family in INTERNET and own_address(sock)[1]:
            kind = int(sock.type)
            self._show(sock, self._draw(kind, process, {self._seen.get((kind, port), port) for port in used}))

    def _show(self, sock: _Socket, port: int) -> None:
        kind, real = int(sock.type), int(own_address(sock)[1])
        self._real[kind, port], self._seen[kind, real] = real, port

    def _draw(self, kind: int, process: SimProcess, taken: set[int]) -> int:
        while True:
            port = _FIRST + int.from_bytes(drawn_from(process, "port", 4)) % _COUNT
            if port not in taken:
                self._drawn.add((kind, port))
                return port


def _with_port(sock: _Socket, address: object, numbers: dict[_Port, int]) -> object:
    if numbers and sock.family in INTERNET and isinstance(address, tuple) and len(address) > 1:
        found = numbers.get((int(sock.type), address[1]))
        if found is not None and is_here(sock, address):
            return (address[0], found, *address[2:])
    return address


def is_here(sock: _Socket, address: Any) -> bool:
    """True for an address of this machine."""
    if sock.family not in INTERNET:
        return True
    host = address[0]
    return is_loopback(host) or host == own_address(sock)[0]


def is_loopback(host: str) -> bool:
    """True for the name or address of a loopback interface, or of all interfaces."""
    return host in _HERE or host.startswith("127.")
