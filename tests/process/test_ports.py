"""Ports that the system chooses have the same numbers in each run with a seed, whatever other programs use."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch.distributed as dist

import simdist

pytestmark = pytest.mark.usefixtures("internet_sockets")

DATAGRAMS = (socket.AF_INET, socket.SOCK_DGRAM)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def three_free_ports() -> list[int]:
    return [free_port() for _ in range(3)]


def drawn(program: Any = three_free_ports, world_size: int = 2, **settings: Any) -> Any:
    result = simdist.run(program, world_size=world_size, **settings)
    result.raise_for_failure()
    return result.values


@contextmanager
def in_use_outside(ports: list[int], kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """The host has sockets with these ports, unless another program has."""
    with ExitStack() as stack:
        for port in ports:
            sock = stack.enter_context(socket.socket(socket.AF_INET, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                sock.bind(("127.0.0.1", port))
                if kind == socket.SOCK_STREAM:
                    sock.listen()
        yield


def test_each_rank_has_ports_of_its_own_which_follow_from_the_seed() -> None:
    first, second = drawn()
    assert len({*first, *second}) == 6
    assert all(32_768 <= port < 61_000 for port in (*first, *second))
    assert drawn() == [first, second]
    assert drawn(seed=1) != [first, second]


def test_a_port_that_another_program_has_keeps_its_number() -> None:
    first, second = drawn()
    with in_use_outside([first[0], second[1]]):
        assert drawn() == [first, second]


def conversation() -> tuple[Any, ...]:
    """Rank 0 serves rank 1, which gets the port from it; return the addresses that each sees of both ends."""
    dist.init_process_group("gloo")
    rank, box = dist.get_rank(), [None]
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))
        dist.broadcast_object_list([server.getsockname()])
        sock, came_from = server.accept()
        assert sock.getsockname() == server.getsockname()
        assert came_from == sock.getpeername()
        server.close()
    else:
        dist.broadcast_object_list(box)
        sock = socket.create_connection(box[0])  # type: ignore[arg-type]  # filled by the broadcast
        assert sock.getpeername() == box[0]
    with sock:
        sock.sendall(b"from %d" % rank)
        return sock.recv(100), sock.getsockname(), sock.getpeername()


def test_both_ends_of_a_connection_see_the_same_numbers_in_each_run() -> None:
    (heard, own, other), (heard_there, own_there, other_there) = found = drawn(conversation)
    assert (heard, heard_there) == (b"from 1", b"from 0")
    assert (own, other) == (other_there, own_there)
    with in_use_outside([own[1]]):
        assert drawn(conversation) == found
    assert simdist.check_determinism(conversation, world_size=2).ok


def datagrams() -> tuple[Any, ...]:
    """A thread answers the datagrams of its rank, wherever they come from."""
    with socket.socket(*DATAGRAMS) as server, socket.socket(*DATAGRAMS) as client:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            data, sender = server.recvfrom(100)
            server.sendto(data * 2, sender)

        thread = threading.Thread(target=answer)
        thread.start()
        client.sendto(b"ab", server.getsockname())
        thread.join()
        buffer = bytearray(10)
        size, sender = client.recvfrom_into(buffer)
        assert sender == server.getsockname()
        return bytes(buffer[:size]), sender, client.getsockname()[1]


def test_datagrams_are_answered_at_the_port_that_their_receiver_sees() -> None:
    ((answer, server, client),) = found = drawn(datagrams, 1)
    assert answer == b"abab"
    with in_use_outside([server[1], client], socket.SOCK_DGRAM):
        assert drawn(datagrams, 1) == found


def served_later() -> tuple[int, bytes]:
    """Find a free port, and serve there afterwards, as launchers do."""
    port = free_port()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(10))
        writer.close()

    async def main() -> bytes:
        async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
            assert server.sockets[0].getsockname()[1] == port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            writer.write_eof()
            data = await reader.read()
            writer.close()
            return data

    return port, asyncio.run(main())


def test_a_port_that_was_free_for_a_rank_stays_free_for_it() -> None:
    ((port, heard),) = found = drawn(served_later, 1)
    assert heard == b"hello"
    with in_use_outside([port]):
        assert drawn(served_later, 1) == found


def test_a_port_that_a_program_chooses_itself_may_be_in_use() -> None:
    def chosen(port: int) -> int | None:
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError as error:
                return error.errno
        return None

    def twice() -> int | None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return chosen(server.getsockname()[1])

    with socket.create_server(("127.0.0.1", 0)) as outside:
        assert drawn(lambda: chosen(outside.getsockname()[1]), 1) == [errno.EADDRINUSE]
    assert drawn(twice, 1) == [errno.EADDRINUSE]


def test_bad_addresses_are_refused_as_by_the_system() -> None:
    def refused() -> list[str]:
        texts = []
        for address in (("127.0.0.1",), ("127.0.0.1", "80"), ("127.0.0.1", 70_000), 5):
            with socket.socket() as sock:
                try:
                    sock.bind(address)  # type: ignore[arg-type]  # that is the test
                except (TypeError, OverflowError) as error:
                    texts.append(f"{type(error).__name__}: {error}")
        return texts

    assert drawn(refused, 1) == [refused()]
