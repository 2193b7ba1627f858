"""TCPStore: a server that a rank or the launcher's agent hosts, and clients that connect to it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from simdist.c10d.surface._store import SimStore
from simdist.c10d.surface._store_server import LATE_NS, StoreServer
from simdist.kernel import Task
from simdist.process import SimProcess, address_of_host, current_process, current_runtime

__all__ = ["host_server", "is_served", "open_tcp_store"]

Servers = dict[tuple[Hashable, ...], Any]  # servers, and tables of the tasks that wait for a server
_FREE_PORTS = range(32768, 61000)  # Linux's range, which has no default port of torch such as the rendezvous's 29400
_HERE = ("", "localhost", "0.0.0.0", "::", "::1", "127.0.0.1")  # names by which a machine reaches itself
_NOT_THERE = (
    "simdist: no rank serves a store at {address}. Ranks have torchrun's environment here, where the launcher serves "
    "it, at {launchers}, and rank 0 does not (TORCHELASTIC_USE_AGENT_STORE). A program that sets MASTER_ADDR or "
    "MASTER_PORT itself, as for torch.multiprocessing.spawn, runs with simdist.spawn, or with "
    "simdist launch --launcher srun --nproc-per-node 1; here it has to leave them."
)


class _Connecting:
    def __init__(self, address: str) -> None:
        self._address = address

    def describe(self) -> str:
        return f"connecting to the store at {self._address}"

    def waits_for(self) -> Iterable[Task]:
        return ()


def host_server(
    servers: Servers, host: str, port: int, distance_ns: Callable[[str], int], *, on: str, launchers: bool = True
) -> StoreServer:
    """Open a server `on` a host of the cluster, by default the agent's, which no rank hosts.

    The host's own name leads to it as well. `distance_ns` gives the latency from a host.
    """
    name = f"{host}:{port}"
    server = StoreServer(name, launchers=launchers, distance_ns=distance_ns)
    place = _place(host, port)
    if not (place == _loopback(port) and _listening(servers, place)):  # another host's server keeps the place
        servers[place] = server
    servers[_place_of_host(on, port)] = server
    return server


def _place(host: str, port: int) -> tuple[str, str, int]:
    """Return the key under which a server is found: the same for all names of an address."""
    return _loopback(port) if host in _HERE else ("tcp", address_of_host(host) or host, port)


def _loopback(port: int) -> tuple[str, str, int]:
    return "tcp", "127.0.0.1", port


def _place_of_host(name: str, port: int) -> tuple[str, str, int]:
    """Return the key of a host's server, which does not depend on the name under which the server was opened."""
    return "tcp of host", name, port


def is_served(servers: Servers, host: str, port: int) -> bool:
    """True if a simulated server listens at an address."""
    process = current_process()
    assert process is not None
    return _server_at(servers, _place(host, port), process.host.name) is not None


def open_tcp_store(
    servers: Servers,
    host: str,
    port: int,
    *,
    world_size: int | None,
    is_master: bool,
    timeout: timedelta,
    wait_for_workers: bool,
    multi_tenant: bool,
    use_libuv: bool,
    latency_ns: Callable[[str, str], int],
) -> SimStore:
    """Return a client of the server at this address; the master makes the server, the others wait for it.

    `latency_ns` gives the latency between two hosts of the cluster.

    Raises:
        DistNetworkError: the address is taken, or no server was opened there in time.
        DistStoreError: the master waited for `world_size` clients in vain.
    """
    process = current_process()
    assert process is not None
    simulation = process.simulation
    simulation.check()
    touch = simulation.policy.touch
    if touch is not None and port == 0:
        touch("ports", writes=True)
    own = process.host.name
    if is_master and port == 0:
        port = next(p for p in _FREE_PORTS if servers.keys().isdisjoint((_place(host, p), _place_of_host(own, p))))
    key = _place(host, port)
    if touch is not None:
        touch(("port", port), writes=is_master)
    deadline_ns = simulation.now_ns + round(timeout.total_seconds() * 1e9) + LATE_NS
    waiting = servers.setdefault(("waiting", *key), {})
    taken = _place_of_host(own, port)  # a server listens at all addresses of its host, under any name
    if key != _loopback(port) and not _listening(servers, taken):
        taken = key
    opened: StoreServer | None = None
    if is_master and multi_tenant and _listening(servers, taken) and servers[taken].tenants_of is process:
        opened = servers[taken]  # torch shares multi-tenant servers within a process
    elif is_master:
        if _listening(servers, taken):
            raise dist.DistNetworkError(
                f"The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, "
                "code: -98, name: EADDRINUSE, message: address already in use"
            )
        opened = server = host_server(servers, host, port, functools.partial(latency_ns, own), on=own, launchers=False)
        server.tenants_of = process if multi_tenant else None
        process.end_listeners[_closing(server)] = None
        others = (servers.get(("waiting", *place), {}) for place in (_place(own, port), _loopback(port)))
        for task in functools.reduce(operator.or_, others, waiting):
            simulation.wake(task)
    task = simulation.check()
    while _server_at(servers, key, own) is None:
        waiting[task] = None
        in_time = simulation.park(_Connecting(f"{host}:{port}"), deadline_ns)
        waiting.pop(task, None)
        if touch is not None:
            touch(("port", port), writes=False)
        if not in_time and _server_at(servers, key, own) is None:
            error = dist.DistNetworkError(
                f"The client socket has timed out after {round(timeout.total_seconds() * 1e3)}ms "
                f"while trying to connect to ({host}, {port})."
            )
            launchers = _launchers_address(servers)
            if launchers:
                error.add_note(_NOT_THERE.format(address=f"{host}:{port}", launchers=launchers))
            raise error
    found = _server_at(servers, key, own)
    assert found is not None
    if found.stopped:
        found.wait_for_answer(process)
    store = SimStore(found, kind="tcp", host=host, port=port, uses_libuv=use_libuv)
    if opened is not None:
        _close_when_dropped(store, opened, process)
    store.set_timeout(timeout)
    if world_size is not None and wait_for_workers:
        _wait_for_workers(store, process, world_size, is_master=is_master, timeout=timeout)
    return store


def _launchers_address(servers: Servers) -> str:
    """Return the address of the launcher's store; empty if no launcher is simulated."""
    servers_of_launcher = (each for each in servers.values() if isinstance(each, StoreServer) and each.launchers)
    return next((each.name for each in servers_of_launcher if not each.gone), "")


def _server_at(servers: Servers, key: tuple[str, str, int], own: str) -> StoreServer | None:
    """Return the server that host `own` reaches at a key; the name of a server's host also leads to the server."""
    _, address, port = key
    nearest = (_place_of_host(own, port), key) if key == _loopback(port) else (key,)
    for place in nearest:
        if _listening(servers, place):
            return servers[place]  # type: ignore[no-any-return]
    on_hosts = ((place, each) for place, each in servers.items() if place[0] == "tcp of host" and not each.gone)
    return next((each for (_, name, its), each in on_hosts if its == port and address_of_host(name) == address), None)


def _listening(servers: Servers, key: tuple[str, str, int]) -> bool:
    return key in servers and not servers[key].gone


def _wait_for_workers(
    store: SimStore, process: SimProcess, world_size: int, *, is_master: bool, timeout: timedelta
) -> None:
    # Every client adds itself to a count; only the master waits until all have (TCPStore::waitForWorkers).
    server = store.server
    simulation = process.simulation
    touch = simulation.policy.touch
    if touch is not None:
        touch(("clients", server.name), writes=is_master)  # the order of clients does not matter
    server.joined += 1
    if server.joined >= world_size and server.master is not None:
        simulation.wake(server.master)
    if not is_master:
        return
    server.master = simulation.check()
    seconds = int(timeout.total_seconds()) + 1  # torch counts whole seconds, to the first one above the timeout
    deadline_ns = simulation.now_ns + seconds * 1_000_000_000 + LATE_NS
    while server.joined < world_size:
        if not simulation.park(_Connecting(server.name), deadline_ns) and server.joined < world_size:
            raise dist.DistStoreError(
                f"Timed out after {seconds} seconds waiting for clients. {server.joined}/{world_size} clients joined."
            )
    server.master = None


def _close_when_dropped(store: SimStore, server: StoreServer, process: SimProcess) -> None:
    """Close a server when the last store that opened it is dropped, as torch does; its clients lose the connection."""
    server.masters += 1

    def close() -> None:
        server.masters -= 1
        if not server.masters and process.running and not server.gone:
            server.close()

    process.when_dropped(store, close)
    runtime = current_runtime()
    assert runtime is not None
    runtime.collect_in_rounds()  # garbage collection drops a store in a cycle, and its clients see that


def _closing(server: StoreServer) -> Callable[[SimProcess], None]:
    def close(process: SimProcess) -> None:
        server.close()

    return close
