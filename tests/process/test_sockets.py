"""Sockets between tasks of a world block in virtual time; waits for data from outside are real, and are named."""

from __future__ import annotations

import asyncio
import functools
import http.server
import multiprocessing
import multiprocessing.synchronize
import os
import select
import signal
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

import simdist

LATE_S = 100e-6  # a wait that times out ends so much later

pytestmark = pytest.mark.usefixtures("internet_sockets")


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers after a second."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def served() -> Any:
    """Serve clients on several threads at once, with more data than a buffer holds in both directions."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"

        def ask(size: int) -> int:
            with urllib.request.urlopen(url, data=bytes(size), timeout=60) as answer:
                return len(answer.read())

        with ThreadPoolExecutor(3) as pool:
            sizes = list(pool.map(ask, (1, 4_000_000, 10)))
        server.shutdown()
        thread.join()
    return sizes


def waits() -> Any:
    one, other = socket.socketpair()
    one.settimeout(2)
    with pytest.raises(TimeoutError, match="timed out"):
        one.recv(1)
    threading.Timer(1, other.sendall, (b"late",)).start()
    threading.Timer(2, other.close).start()
    found = one.recv(10), one.recv(10)
    one.close()
    return found


def datagrams() -> Any:
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        one.bind(("127.0.0.1", 0))

        def answer() -> None:
            text, address = one.recvfrom(10)
            time.sleep(1)
            one.sendto(text * 2, address)

        thread = threading.Thread(target=answer)
        thread.start()
        other.sendto(b"ab", one.getsockname())
        found = other.recv(10)
        thread.join()
    return found


def event_loop() -> Any:
    """Connect a client that blocks with a server that does not."""
    ports: list[int] = []
    ready = threading.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        await asyncio.sleep(1)
        writer.write(line.upper())
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.sleep(2)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    with socket.create_connection(("localhost", ports[0])) as client:
        client.sendall(b"abc\n")
        found = client.recv(10), client.recv(10)
    thread.join()
    return found


# Made for this test, and useless for anything else: a key, and the certificate of "localhost" that is signed with it.
_CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg/lE07VsYCGe7IE4+
HeDfVpsxB01lAVxxeE5p2zNUgaGhRANCAATNacU1OHE44JhT60YPmTDVZEAHoSBI
+3/Qv8AEKfHS0c6v6x22o/f6zjWfLewFq8iL1DNfGCR6++i/kkd+jfPM
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfjCCASSgAwIBAgITMiRsM7+6xan0FIzomms7yE+wmTAKBggqhkjOPQQDAjAU
MRIwEAYDVQQDDAlsb2NhbGhvc3QwIBcNMjYxMTIzMDY0NjIwWhgPMjEyNjEwMzAw
NjQ2MjBaMBQxEjAQBgNVBAMMCWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49
AwEHA0IABM1pxTU4cTjgmFPrRg+ZMNVkQAehIEj7f9C/wAQp8dLRzq/rHbaj9/rO
NZ8t7AWryIvUM18YJHr76L+SR36N88yjUzBRMB0GA1UdDgQWBBQLdmdqzx8yDS1K
BrIoo0Eg8/vdRjAfBgNVHSMEGDAWgBQLdmdqzx8yDS1KBrIoo0Eg8/vdRjAPBgNV
HRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCICSn6YSGH8zDbM3iuYl/s4YF
gadU33UhRgvP0F01QLgqAiEAzQKobj03fQ4gpYOdjX/17FCsSgfviMjJMQ1JkbjD
Tb0=
-----END CERTIFICATE-----
"""


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server, and for its client."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(_CERTIFICATE)
        file.flush()
        server.load_cert_chain(file.name)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


def encrypted() -> Any:
    """Let a server and its client wait for each other in the handshake, for data, and for room in a buffer."""
    server, client = contexts()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with server.wrap_socket(plain, server_side=True) as end:
                time.sleep(1)
                end.sendall(bytes(int(end.recv(100))))
                end.settimeout(1)
                with pytest.raises(TimeoutError):
                    end.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        with client.wrap_socket(socket.create_connection(listener.getsockname())) as end:
            end.sendall(b"4000000")
            size = 0
            while size < 4_000_000:
                size += len(end.recv(100_000))
            thread.join()
    return size


# The result of each, and the seconds that it takes.
BODIES: dict[Callable[[], Any], tuple[Any, float]] = {
    served: ([1, 4_000_000, 10], 1 + 2 * LATE_S),
    waits: ((b"late", b""), 4 + 2 * LATE_S),
    datagrams: (b"abab", 1),
    event_loop: ((b"ABC\n", b""), 2 + 2 * LATE_S),
    encrypted: (4_000_000, 2 + LATE_S),
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_tasks_talk_over_sockets_in_virtual_time(body: Callable[[], Any]) -> None:
    found, seconds = BODIES[body]

    result = simdist.run(lambda: (body(), time.monotonic()), world_size=2)

    result.raise_for_failure()
    values: list[object] = [*result.values]
    assert values == [(found, pytest.approx(seconds, abs=1e-8))] * 2
    assert result.programs == ()


@pytest.mark.real
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_so_they_do_really(body: Callable[[], Any]) -> None:
    found, seconds = BODIES[body]
    began = time.monotonic()  # real time

    assert body() == found
    assert seconds <= time.monotonic() - began < seconds + 1


def test_ranks_talk_to_each_other() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        place: list[Any] = [None]
        if dist.get_rank() == 0:
            server = socket.create_server(("127.0.0.1", 0))
            place = [server.getsockname()]
        dist.broadcast_object_list(place)
        if dist.get_rank() > 0:
            time.sleep(dist.get_rank())
            with socket.create_connection(place[0]) as client:
                client.sendall(b"%d" % dist.get_rank())
                return client.recv(10)
        with server:
            callers = []
            for _ in range(2):
                caller, _ = server.accept()
                with caller:
                    callers.append(caller.recv(10))
                    caller.sendall(b"called")
        return callers

    assert simdist.run(body, world_size=3).values == [[b"1", b"2"], b"called", b"called"]


def test_who_waits_for_nobody_hangs_and_that_is_reported() -> None:
    def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()

    (rank,) = simdist.run(body, world_size=1).ranks

    assert (rank.status, rank.waiting) == ("hung", "wait for a connection to a socket")


def test_a_server_outside_is_waited_for_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller:
                caller.sendall(caller.recv(10) * 2)

        thread = threading.Thread(target=serve)
        thread.start()

        def body() -> Any:
            with socket.create_connection(server.getsockname()) as client:
                client.sendall(b"ab")
                return client.recv(10), time.monotonic()

        result = simdist.run(body, world_size=1)
        thread.join()
        assert result.values == [(b"abab", 0.0)]
        (line,) = result.programs
        port = server.getsockname()[1]
        assert line.startswith(f"connection to 127.0.0.1:{port}, started at test_sockets.py:")
        assert line.endswith("by rank 0")


def test_a_port_that_a_rank_has_let_go_of_is_no_longer_its_own() -> None:
    def body() -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = server.getsockname()
        try:
            return socket.create_connection(place)
        except OSError as error:
            return type(error)

    assert simdist.run(body, world_size=1).values == [ConnectionRefusedError]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("polls", [False, True])
def test_a_socket_that_goes_is_closed_for_who_reads_from_the_other_end(polls: bool) -> None:
    def main() -> tuple[bytes, float]:
        here, there = socket.socketpair()
        found: list[tuple[bytes, float]] = []

        def read() -> None:
            if polls:
                select.select([here], [], [])
            found.append((here.recv(1), time.monotonic()))

        reader = threading.Thread(target=read)
        reader.start()
        began = time.monotonic()
        time.sleep(2)
        del there  # it was not closed
        reader.join()
        here.close()
        return found[0][0], found[0][1] - began

    values: list[object] = [*simdist.run(main, world_size=1).values]
    assert values == [(b"", pytest.approx(2))]


def small_packets() -> tuple[list[bytes], float]:
    """Read the lines of a server that sends each by itself: the system keeps the second back until the first is
    acknowledged, which takes 40 ms of real time unless the connection is young."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            end, _ = listener.accept()
            with end, end.makefile("rb") as questions:
                while questions.readline():
                    for answer in (b"one\n", b"two\n", b"three\n"):
                        end.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        answers = []
        with socket.create_connection(listener.getsockname(), timeout=5) as end, end.makefile("rb") as lines:
            for _ in range(20):
                end.send(b"question\n")
                answers += [lines.readline() for _ in range(3)]
        thread.join()
    return answers, time.monotonic()


def test_small_packets_are_there_at_once() -> None:
    assert simdist.run(small_packets, world_size=1).values == [([b"one\n", b"two\n", b"three\n"] * 20, 0.0)]


def test_ranks_see_the_options_that_they_have_set() -> None:
    option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def body() -> list[int | bytes]:
        found: list[int | bytes] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with socket.create_connection(listener.getsockname()) as end:
                found += [listener.getsockopt(*option), end.getsockopt(*option), end.getsockopt(*option, 4)]
                for value in (1, 0):
                    end.setsockopt(*option, value)
                    found.append(end.getsockopt(*option))
            listener.setsockopt(*option, 1)
            with socket.create_connection(listener.getsockname()), listener.accept()[0], listener.accept()[0] as end:
                return [*found, end.getsockopt(*option)]

    assert simdist.run(body, world_size=1).values == [[0, 0, bytes(4), 1, 0, 1]]


def test_an_encrypted_server_may_poll() -> None:
    def body() -> bytes:
        server, client = contexts()
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                plain, _ = listener.accept()
                plain.setblocking(False)
                with server.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as end:
                    for step in (functools.partial(end.send, b"encrypted"), functools.partial(end.recv, 100)):
                        while True:
                            try:
                                step()
                                break
                            except ssl.SSLWantReadError:
                                select.select([end], [], [])

            thread = threading.Thread(target=serve)
            thread.start()
            with client.wrap_socket(socket.create_connection(listener.getsockname())) as end:
                found = end.recv(100)
                end.sendall(b"done")
            thread.join()
        return found

    assert simdist.run(body, world_size=1).values == [b"encrypted"]


@pytest.mark.parametrize("kind", ["select", "poll", "epoll"])
def test_a_loop_whose_sockets_are_always_ready_lets_others_run(kind: str) -> None:
    def body() -> float:
        one, other = socket.socketpair()
        polled = None if kind == "select" else getattr(select, kind)()
        done: list[bool] = []
        threading.Timer(0.01, done.append, (True,)).start()
        with one, other:
            if polled is not None:
                polled.register(one, select.POLLOUT)
            while not done:
                assert select.select([], [one], [])[1] if polled is None else polled.poll()
        return time.monotonic()

    assert simdist.run(body, world_size=1).values == [pytest.approx(0.01, abs=0.01)]


def connected_to(address: tuple[str, int], ready: multiprocessing.synchronize.Event) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(b"hello")
        ready.set()
        time.sleep(600)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_a_connection_is_closed_when_its_process_is_killed(stop: signal.Signals) -> None:
    def body() -> tuple[bytes, bytes, int | None]:
        context = multiprocessing.get_context("spawn")
        with socket.create_server(("127.0.0.1", 0)) as server:
            ready = context.Event()
            child = context.Process(target=connected_to, args=(server.getsockname(), ready))
            child.start()
            connection, _ = server.accept()
            ready.wait()
            os.kill(child.pid or 0, stop)
            with connection:
                connection.settimeout(1)
                found = connection.recv(16), connection.recv(16)
            child.join()
            return *found, child.exitcode

    assert simdist.run(body, world_size=1).values == [(b"hello", b"", -stop)]


def asleep() -> None:
    time.sleep(1)


def test_a_forked_child_keeps_the_connection_of_its_parent() -> None:
    def opened(address: tuple[str, int]) -> None:
        connection = socket.create_connection(address)
        multiprocessing.get_context("fork").Process(target=asleep).start()
        connection.sendall(b"hello")
        os._exit(0)

    def body() -> tuple[bytes, bytes, float]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            child = multiprocessing.get_context("fork").Process(target=opened, args=(server.getsockname(),))
            child.start()
            connection, _ = server.accept()
            with connection:
                return connection.recv(16), connection.recv(16), time.monotonic()

    first, last, at_s = simdist.run(body, world_size=1).values[0]

    assert (first, last) == (b"hello", b"")
    assert at_s - simdist.run(time.monotonic, world_size=1).values[0] == pytest.approx(1.0, abs=0.01)
