"""A rank sees the name and address that the cluster gives its host; all other code sees the real machine."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from socket import gethostname  # taken early, as user code does it
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from simdist.cluster import Cluster, build
from simdist.errors import RunFailedError
from simdist.process import address_of_host
from simdist.process.stdlib import _host_names
from simdist.scenario import load, run_scenario
from simdist.world import World, WorldSpec
from tests.c10d.worlds import values

pytestmark = pytest.mark.usefixtures("internet_sockets")
ON_LINUX = pytest.mark.skipif(platform.system() != "Linux", reason="other systems have one loopback address only")


def two_hosts() -> Cluster:
    return build(4, hosts=2)


def names() -> list[str]:
    return [
        gethostname(),
        os.uname().nodename,
        platform.node(),
        platform.uname().node,
        socket.getfqdn(),
        socket.getfqdn("0.0.0.0"),
    ]


def test_ranks_and_their_threads_get_the_name_of_their_simulated_host() -> None:
    def look() -> tuple[list[str], list[str]]:
        on_thread: list[str] = []
        thread = threading.Thread(target=lambda: on_thread.extend(names()))
        thread.start()
        thread.join()
        return names(), on_thread

    before = names()
    result = simdist.run(look, world_size=4, cluster=two_hosts())

    result.raise_for_failure()
    expected = [f"host{rank // 2}" for rank in range(4)]
    assert result.values == [([name] * 6, [name] * 6) for name in expected]
    assert names() == before


def late_names(rank: int) -> list[str]:
    time.sleep(1)
    return names()


def test_threads_of_the_host_get_the_real_name_of_the_machine_in_a_world() -> None:
    real = names()
    world = World(WorldSpec(call=late_names, world_size=1))

    world.start()
    try:
        world.advance(500_000_000)
        amid = names(), address_of_host("host0") is None
        result = world.finish()
    finally:
        world.close()

    assert amid == (real, False)
    assert result.values == [["host0"] * 6]


def test_a_world_that_asks_first_leaves_no_name_of_its_own_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_uname_cache", None)

    result = simdist.run(platform.node, world_size=1)

    assert result.values == ["host0"]
    assert vars(platform)["_uname_cache"] is None
    assert platform.node() == socket.gethostname()


def test_other_fields_than_the_name_are_the_systems() -> None:
    real = os.uname()

    result = simdist.run(os.uname, world_size=1)

    found = result.values[0]
    assert type(found) is type(real)
    assert (found.sysname, *found[2:]) == (real.sysname, *real[2:])


@ON_LINUX
def test_names_of_hosts_lead_to_addresses_and_back() -> None:
    def look() -> list[Any]:
        stream = {"type": socket.SOCK_STREAM}
        return [
            socket.gethostbyname(socket.gethostname()),
            socket.gethostbyname_ex("HOST1"),
            socket.gethostbyaddr("host1"),
            socket.gethostbyaddr("127.1.0.1"),
            [each[4] for each in socket.getaddrinfo("host1", 80, **stream)],
            [each[3] for each in socket.getaddrinfo(b"host1", 80, flags=socket.AI_CANONNAME, **stream)],
            socket.getnameinfo(("127.1.0.2", 80), socket.NI_NUMERICSERV),
            socket.getnameinfo(("host1", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ]

    result = simdist.run(look, world_size=4, cluster=two_hosts())

    result.raise_for_failure()
    host1: tuple[str, list[str], list[str]] = ("host1", [], ["127.1.0.2"])
    rest = [host1, host1, ("host0", [], ["127.1.0.1"]), [("127.1.0.2", 80)], ["host1"]]
    named = [("host1", "80"), ("127.1.0.2", "80")]
    assert result.values == [[f"127.1.0.{1 + rank // 2}", *rest, *named] for rank in range(4)]
    assert address_of_host("host0") is None


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: socket.getaddrinfo("host0", 80, family=socket.AF_INET6), "No address associated with hostname"),
        (lambda: socket.getaddrinfo("host0", 80, flags=socket.AI_NUMERICHOST), "Name or service not known"),
        (lambda: socket.sethostname("other"), "Operation not permitted"),
    ],
    ids=["no address of the sixth kind", "no number", "not to be renamed"],
)
def test_what_a_host_has_not_is_refused_in_the_systems_words(ask: Callable[[], object], words: str) -> None:
    result = simdist.run(ask, world_size=1)

    assert isinstance(result.ranks[0].exception, OSError)
    with pytest.raises(RunFailedError, match=words):
        result.raise_for_failure()


def test_names_that_the_cluster_does_not_have_are_the_systems_affair() -> None:
    real = socket.gethostbyname("localhost"), socket.gethostbyaddr("127.0.0.1")

    result = simdist.run(
        lambda: (socket.gethostbyname("localhost"), socket.gethostbyaddr("127.0.0.1")),
        world_size=1,
        cluster=build(1, hosts=1),
    )

    assert result.values == [real]


def serve_under_names() -> Any:
    """Run a server on each host, at the same port if they have several addresses; ranks ask the other host's."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    host, serves = socket.gethostname(), rank % 2 == 0
    server = socket.create_server((host, 0)) if serves else None
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, server.getsockname()[1] if server else None)
    if server is not None:
        connection, _ = server.accept()
        with connection, server:
            connection.sendall(f"{host} at {server.getsockname()[0]}".encode())
        return None
    other = "host0" if host == "host1" else "host1"
    with socket.socket() as client:
        client.connect((other, found[0 if other == "host0" else 2]))
        return client.recv(100).decode(), client.getpeername()[0] == socket.gethostbyname(other)


@ON_LINUX
def test_sockets_are_bound_and_connected_by_names_between_hosts() -> None:
    result = simdist.run(serve_under_names, world_size=4, cluster=two_hosts())

    result.raise_for_failure()
    assert result.values == [None, ("host1 at 127.1.0.2", True), None, ("host0 at 127.1.0.1", True)]
    assert result.programs == ()


def test_datagrams_are_sent_by_name() -> None:
    def talk() -> bytes:
        with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
            one.bind((socket.gethostname(), 0))
            other.sendto(b"text", ("host0", one.getsockname()[1]))
            return one.recv(10)

    result = simdist.run(talk, world_size=1)

    result.raise_for_failure()
    assert (result.values, result.programs) == ([b"text"], ())


def stores() -> list[bool]:
    """Connect to the server by another name of the same host on each rank."""
    rank = int(os.environ["RANK"])
    opened: Any = dist
    TCPStore = opened.TCPStore  # the stubs leave it out
    one = TCPStore(["host0", "HOST0", "127.1.0.1", "host0"][rank], 29777, 4, rank == 0)
    two = TCPStore(["localhost", "127.0.0.1", "host0", "127.1.0.1"][rank], 29778, 4, rank == 0)
    return [one.add("count", 1) > 0, two.add("count", 1) > 0, TCPStore("host0", 29500, 4, False).add("x", 1) > 0]


@ON_LINUX
def test_a_store_is_found_under_every_name_of_its_host() -> None:
    assert values(stores, 4, cluster=two_hosts()) == [[True] * 3] * 4


def test_the_name_stands_in_the_environment_where_the_machines_did(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> str | None:
        return os.environ.get("HOSTNAME")

    monkeypatch.setenv("HOSTNAME", "machine")
    named = simdist.run(look, world_size=4, cluster=two_hosts())
    reported = simdist.run(look, world_size=1, env={"HOSTNAME": "mine"})
    monkeypatch.delenv("HOSTNAME")
    bare = simdist.run(look, world_size=1)

    assert named.values == ["host0", "host0", "host1", "host1"]
    assert (reported.values, bare.values) == (["mine"], [None])


def test_what_is_sent_of_the_host_is_the_same_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def say() -> None:
        dist.init_process_group("gloo")
        found: list[Any] = [None] * 4
        dist.all_gather_object(found, (names(), uuid.getnode()))
        print(found)

    here = simdist.run(say, world_size=4, cluster=two_hosts())
    monkeypatch.setattr(platform, "_uname_cache", None)
    monkeypatch.setenv("HOSTNAME", "another")
    there = simdist.run(say, world_size=4, cluster=two_hosts())

    assert here.digest == there.digest


def test_a_scenario_names_hosts_as_its_topology_does(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(
        'title = "names"\nworld_size = 4\n[workload]\ntarget = "socket:gethostname"\n[cluster]\nhosts = 2\n'
    )

    result = run_scenario(load(str(tmp_path / "scenario.toml"))).result

    assert result.values == ["host0", "host0", "host1", "host1"]


def test_a_child_process_lives_on_the_host_of_its_parent() -> None:
    def ask() -> str:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=lambda: answers.put(socket.gethostname()))
        child.start()
        name: str = answers.get()
        child.join()
        return name

    assert simdist.run(ask, world_size=2, cluster=build(2, hosts=2)).values == ["host0", "host1"]


def test_nobody_beyond_the_world_is_asked_for_the_name_of_a_host() -> None:
    def look() -> tuple[tuple[str, str], list[int]]:
        asked = []

        def resolver(address: object, flags: int) -> tuple[str, str]:
            asked.append(flags & socket.NI_NUMERICHOST)
            return "elsewhere", "80"

        return _host_names._name_for(resolver)(("127.1.0.2", 80), socket.NI_NUMERICSERV), asked

    found = simdist.run(look, world_size=4, cluster=two_hosts()).values

    assert found == [(("host1", "80"), [socket.NI_NUMERICHOST])] * 4
