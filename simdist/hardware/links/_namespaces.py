"""Network namespaces with a TUN device each, made with system calls only: they vanish with the process that made them.

A namespace has no name and no file: it lives as long as a process is in it or holds a descriptor of it. Its TUN device
lives as long as a process holds it open. So nothing is left behind however the makers end, SIGKILL included, and the
host's own network is not changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simdist.inside.system import call

__all__ = ["DEVICE", "Namespace", "address_of", "call_inside", "enter", "make_namespace", "rank_at"]
__all__ += ["why_no_namespaces"]

DEVICE = "simdist0"
MTU = 65_000

# <linux/sched.h>, <linux/if_tun.h>, <linux/if.h>, <linux/sockios.h>
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_IFF_UP = 0x1
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8914, 0x8916, 0x891C, 0x8922, 0x8943
_QUEUE = 10_000  # packets; a switch in user space is late at times


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace: `tun` reads and writes its device's packets; `handle` keeps it and lets processes enter."""

    tun: int
    handle: int


def address_of(rank: int) -> str:
    """Return the address of a rank's device."""
    return f"10.201.{(rank + 1) >> 8}.{(rank + 1) & 255}"


def rank_at(address: bytes) -> int:
    """Return the rank that has this address; -1 if it is none of ours."""
    return ((address[2] << 8) | address[3]) - 1 if len(address) == 4 and address[:2] == b"\x0a\xc9" else -1


def make_namespace(rank: int) -> Namespace:
    """Move the calling thread into a new namespace, with the loopback device and the rank's own.

    Raises:
        OSError: the system has no namespaces, or not for this user.
    """
    call("unshare", _CLONE_NEWNET)
    with contextlib.suppress(OSError):  # one address less for programs to choose from; fails where there is no IPv6
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:

            def configure(request: int, device: str, value: bytes) -> None:
                fcntl.ioctl(control, request, struct.pack("16s24s", device.encode(), value))

            configure(_SIOCSIFADDR, DEVICE, _sockaddr(address_of(rank)))
            configure(_SIOCSIFNETMASK, DEVICE, _sockaddr("255.255.0.0"))
            configure(_SIOCSIFMTU, DEVICE, struct.pack("i", MTU))
            configure(_SIOCSIFTXQLEN, DEVICE, struct.pack("i", _QUEUE))
            for device in ("lo", DEVICE):
                configure(_SIOCSIFFLAGS, device, struct.pack("h", _IFF_UP))
        return Namespace(tun, os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        os.close(tun)
        raise


def enter(path: str) -> None:
    """Move the calling thread into the namespace whose handle is open at `path`; threads that it starts are in it, too.

    Raises:
        OSError: the namespace is gone.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call("setns", handle, _CLONE_NEWNET)
    finally:
        os.close(handle)


def call_inside(path: str, function: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket made inside the namespace, to which it then belongs; the caller's thread stays where it is.

    Raises:
        OSError: the namespace is gone.
    """
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def visit() -> None:
        try:
            enter(path)
            made.append(function())
        except OSError as error:
            errors.append(error)

    _in_thread(visit)
    for error in errors:
        raise error
    return made[0]


@functools.cache
def why_no_namespaces() -> str:
    """Return why this process can't make namespaces, empty if it can. It tries once."""
    if sys.platform != "linux":
        return f"they are Linux's, and this is {sys.platform}"
    if os.geteuid():
        return "this process is not root's"
    errors: list[str] = []

    def attempt() -> None:
        try:
            made = make_namespace(0)
        except (OSError, AttributeError) as error:
            errors.append(str(error))
        else:
            os.close(made.tun)
            os.close(made.handle)

    _in_thread(attempt)
    return errors[0] if errors else ""


def _in_thread(function: Callable[[], None]) -> None:
    # In a thread of its own, since a thread that has moved can't always move back.
    thread = threading.Thread(target=function, name="simdist namespace")
    thread.start()
    thread.join()


def _sockaddr(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
