"""The name of the machine that a rank runs on: that of its simulated host, and not the real machine's.

`socket.gethostname`, `os.uname`, `platform.node` and what is made of them (`socket.getfqdn`, names of files and of
workers) return the name of the rank's host in the cluster. The name of each host of the cluster resolves to an address
of its own: hosts are numbered from 127.1.0.1 on. These are addresses of the loopback, so ranks can bind sockets to
theirs and connect to those of others, and two hosts can use one port. The real machine resolves every other name and
address, and all names for threads that are not ranks'.

The other fields of `os.uname` stay the real system's: programs ask for the kernel's release and the processor's kind
to choose among functions that they then really call. A rank that sends them finds a digest that holds for this kernel.

In doubt: every connection comes from 127.0.0.1, no matter which host it is on. On systems other than Linux only
127.0.0.1 can be bound to, and all hosts have that address.
"""

from __future__ import annotations

import _socket
import errno
import functools
import ipaddress
import os
import platform
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simdist.process._runtime import Extra, Make, Patches, Replacement, active_runtime, current_process

if TYPE_CHECKING:
    _HostEntry = tuple[str | None, list[str], list[str]]  # name, other names, addresses
    _AddressInfo = tuple[int, int, int, str | None, tuple[object, ...]]

__all__ = ["address_of_host", "install"]

_FIRST = int(ipaddress.IPv4Address("127.1.0.1"))
_NO_ADDRESS = getattr(socket, "EAI_NODATA", socket.EAI_NONAME)


_ADDRESSES: Extra[dict[str, str]] = Extra("addresses of hosts")
_UNAMES: Extra[dict[str, platform.uname_result]] = Extra("uname of hosts")


def _addresses() -> dict[str, str]:
    """The addresses of all hosts of the world, by name in lower case, in the cluster's order."""
    runtime = active_runtime()
    if runtime is None:
        return {}
    known = runtime.extras.get(_ADDRESSES)
    if known is None:
        apart = sys.platform == "linux"
        known = runtime.extras[_ADDRESSES] = {
            name.lower(): str(ipaddress.IPv4Address(_FIRST + number)) if apart else "127.0.0.1"
            for number, name in enumerate(runtime.hosts)
            if name.lower() != "localhost"
        }
    return known


def address_of_host(host: object) -> str | None:
    """The address of a simulated host, whose name this is, while a world lives; None for everything else."""
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "replace")
    return _addresses().get(host.lower()) if isinstance(host, str) else None


def _name_of(address: object) -> str | None:
    """The name of the simulated host that has the address."""
    runtime = active_runtime()
    if runtime is None or not isinstance(address, str):
        return None
    if sys.platform == "linux" and not address.startswith("127."):
        return None
    names: dict[str, str] = {}
    for name in runtime.hosts:
        names.setdefault(address_of_host(name) or "", name)
    return names.get(address)


def _own_name(original: Callable[[], str]) -> Callable[[], str]:
    @functools.wraps(original)
    def gethostname() -> str:
        process = current_process()
        return original() if process is None else process.host.name

    return gethostname


def _set_name(original: Callable[[str], None]) -> Callable[[str], None]:
    @functools.wraps(original)
    def sethostname(name: str, /) -> None:
        if current_process() is not None:  # it would be the real machine's
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        original(name)

    return sethostname


def _uname(original: Callable[[], os.uname_result]) -> Callable[[], os.uname_result]:
    @functools.wraps(original)
    def uname() -> os.uname_result:
        found = original()
        process = current_process()
        return found if process is None else type(found)((found[0], process.host.name, *found[2:]))

    return uname


def _uname_of_platform(original: Callable[[], platform.uname_result]) -> Callable[[], platform.uname_result]:
    """For `platform.uname`: Python caches its first result for good, so it must not be a rank's. Each host has one."""

    @functools.wraps(original)
    def uname() -> platform.uname_result:
        runtime, process = active_runtime(), current_process()
        if runtime is None or process is None:
            return original()
        known: Any = platform
        before, of_hosts = known._uname_cache, runtime.extras.setdefault(_UNAMES, {})
        known._uname_cache = of_hosts.get(process.host.name)
        try:
            found = of_hosts[process.host.name] = original()
        finally:
            known._uname_cache = before
        return found

    return uname


def _by_name(original: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(original)
    def gethostbyname(name: str, /) -> str:
        found = None if current_process() is None else address_of_host(name)
        return original(name) if found is None else found

    return gethostbyname


def _all_by_name(original: Callable[[str], _HostEntry]) -> Callable[[str], _HostEntry]:
    @functools.wraps(original)
    def gethostbyname_ex(name: str, /) -> _HostEntry:
        found = None if current_process() is None else address_of_host(name)
        return original(name) if found is None else (_name_of(found), [], [found])

    return gethostbyname_ex


def _by_address(original: Callable[[str], _HostEntry]) -> Callable[[str], _HostEntry]:
    @functools.wraps(original)
    def gethostbyaddr(host: str, /) -> _HostEntry:
        if current_process() is None:
            return original(host)
        address = address_of_host(host) or host
        name = _name_of(address)
        return original(host) if name is None else (name, [], [address])

    return gethostbyaddr


def _addresses_for(original: Callable[..., list[_AddressInfo]]) -> Callable[..., list[_AddressInfo]]:
    @functools.wraps(original)
    def getaddrinfo(
        host: str | bytes | None,
        port: str | bytes | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[_AddressInfo]:
        address = None if current_process() is None else address_of_host(host)
        if address is None or flags & socket.AI_NUMERICHOST:
            return original(host, port, family, type, proto, flags)
        if family == socket.AF_INET6 and not flags & socket.AI_V4MAPPED:
            raise socket.gaierror(_NO_ADDRESS, "No address associated with hostname")
        found = original(address, port, family, type, proto, flags & ~socket.AI_CANONNAME)
        if flags & socket.AI_CANONNAME:
            found[0] = (*found[0][:3], _name_of(address), found[0][4])
        return found

    return getaddrinfo


def _name_for(original: Callable[[object, int], tuple[str, str]]) -> Callable[[object, int], tuple[str, str]]:
    @functools.wraps(original)
    def getnameinfo(address: object, flags: int, /) -> tuple[str, str]:
        if current_process() is None or not isinstance(address, tuple) or not address:
            return original(address, flags)
        number = address_of_host(address[0]) or address[0]
        name = None if flags & socket.NI_NUMERICHOST else _name_of(number)
        if name is None:
            return original((number, *address[1:]), flags)
        return name, original((number, *address[1:]), flags | socket.NI_NUMERICHOST)[1]  # no name is looked up

    return getnameinfo


_MADE: tuple[tuple[object, str, Make], ...] = (
    (_socket, "gethostname", _own_name),
    (_socket, "sethostname", _set_name),
    (_socket, "gethostbyname", _by_name),
    (_socket, "gethostbyname_ex", _all_by_name),
    (_socket, "gethostbyaddr", _by_address),
    (_socket, "getaddrinfo", _addresses_for),
    (_socket, "getnameinfo", _name_for),
    (os, "uname", _uname),
    (platform, "uname", _uname_of_platform),
)
_REPLACEMENTS = tuple(Replacement(owner, name, make) for owner, name, make in _MADE if hasattr(owner, name))


def install(patches: Patches) -> None:
    """Give each rank's host its own name."""
    patches.redirect(_REPLACEMENTS)
