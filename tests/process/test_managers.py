"""Managers and listeners of `multiprocessing` on ranks, as ordinary programs use them.

Without simdist the programs run on real processes: the `real` test requires the same result of both.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, managers
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values
from tests.host_state import host_state
from tests.process.test_multiprocessing import failure_of, open_files


class Board:
    """An object that a manager serves."""

    def __init__(self) -> None:
        self._scores: dict[str, int] = {}

    def put(self, name: str, score: int) -> int:
        self._scores[name] = score
        return max(self._scores.values())


class Boards(managers.BaseManager):
    """The program's own manager."""


Boards.register("Board", Board)


def work(numbers: Any, squares: Any, lock: Any, ready: Any, number: int) -> None:
    numbers.put(number)
    assert ready.wait(20)
    with lock:
        squares[number] = number**2


def shares_results(method: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    with context.Manager() as manager:
        numbers, squares, lock, ready = manager.Queue(), manager.dict(), manager.Lock(), manager.Event()
        workers = [context.Process(target=work, args=(numbers, squares, lock, ready, n)) for n in range(3)]
        for worker in workers:
            worker.start()
        came = sorted(numbers.get(timeout=20) for _ in workers)
        ready.set()
        for worker in workers:
            worker.join()
        empty = failure_of(lambda: numbers.get(timeout=0.1))
        missing = failure_of(lambda: manager.list()[3])
        return came, sorted(squares.items()), [worker.exitcode for worker in workers], empty, missing


def add(pair: tuple[Any, int]) -> int:
    space, number = pair
    return int(space.base + number)


def serves_pools(method: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    manager = context.Manager()  # never shut down explicitly
    space = manager.Namespace()
    space.base = 10
    with context.Pool(2) as pool:
        return pool.map(add, [(space, number) for number in range(3)])


def serves_its_own_class(method: str) -> Any:
    with Boards(ctx=multiprocessing.get_context(method)) as manager:
        board = manager.Board()  # type: ignore[attr-defined]  # registered
        return board.put("one", 3), board.put("two", 2)


def listens(method: str) -> Any:
    heard: list[Any] = []

    def serve(listener: connection.Listener) -> None:
        for _ in range(2):
            try:
                with listener.accept() as end:
                    heard.append(end.recv())
                    end.send("thanks")
            except multiprocessing.AuthenticationError as error:
                heard.append(str(error))

    with connection.Listener(("localhost", 0), authkey=b"key") as listener:
        address = listener.address
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with connection.Client(listener.address, authkey=b"key") as client:
            client.send({"a": 1})
            answer = client.recv()
        refused = failure_of(lambda: connection.Client(listener.address, authkey=b"other"))
        server.join()
    gone = failure_of(lambda: connection.Client(address))
    return heard, answer, refused[0], gone[0]


PROGRAMS = [shares_results, serves_pools, serves_its_own_class, listens]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_ranks_have_managers(program: Callable[[str], Any], method: str) -> None:
    expected: dict[Callable[[str], Any], Any] = {
        shares_results: ([0, 1, 2], [(0, 0), (1, 1), (2, 4)], [0, 0, 0], ("Empty", ""), _MISSING),
        serves_pools: [10, 11, 12],
        serves_its_own_class: (3, 3),
        listens: ([{"a": 1}, "digest received was wrong"], "thanks", "AuthenticationError", "ConnectionRefusedError"),
    }
    before, files = host_state(), open_files()

    assert values(program, 2, args=(method,)) == [expected[program]] * 2
    assert host_state() == before
    assert open_files() == files
    assert _addresses_with_proxies() == []


def _addresses_with_proxies() -> list[Any]:
    return list(vars(managers.BaseProxy)["_address_to_local"])


_MISSING = ("IndexError", "list index out of range")


@pytest.mark.real
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_real_processes_have_them_too(program: Callable[[str], Any], method: str) -> None:
    simulated = simdist.run(program, args=(method,), world_size=1)

    assert simulated.values == [program(method)]


def test_another_rank_reaches_a_listener_and_waits_in_virtual_time() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        if dist.get_rank():
            dist.barrier()
            time.sleep(2)
            with connection.Client(("localhost", 5000)) as client:
                client.send(os.getpid())
            return None
        with connection.Listener(("localhost", 5000)) as listener:
            dist.barrier()
            with listener.accept() as end:
                return end.recv() != os.getpid(), time.monotonic() > 2

    assert simdist.run(body, world_size=2).values == [(True, True), None]


def test_who_waits_for_a_client_that_never_comes_hangs_by_name() -> None:
    result = simdist.run(lambda: connection.Listener(("localhost", 5000)).accept(), world_size=1)

    assert result.ranks[0].status == "hung"
    assert result.ranks[0].waiting == "Listener.accept at ('localhost', 5000)"


def test_a_queue_on_a_thread_of_the_rank_is_served() -> None:
    def body() -> int:
        waiting: queue.Queue[int] = queue.Queue()

        class Queues(managers.BaseManager):
            pass

        Queues.register("get", callable=lambda: waiting)
        server = Queues(address=("127.0.0.1", 6000), authkey=b"k").get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Queues(address=("127.0.0.1", 6000), authkey=b"k")
        client.connect()
        client.get().put(7)  # type: ignore[attr-defined]  # registered
        return waiting.get()

    assert simdist.run(body, world_size=1).values == [7]


def test_a_temporary_folder_of_the_programs_own_stays(tmp_path: Path) -> None:
    def body() -> str:
        multiprocessing.Lock()  # from now on the rank has its own process object
        process: Any = multiprocessing.current_process()
        process._config["tempdir"] = str(tmp_path)  # as in programs for which the usual path is too long
        with multiprocessing.Manager() as manager:
            return str(Path(str(manager.address)).parent)

    assert simdist.run(body, world_size=1).values == [str(tmp_path)]
    assert tmp_path.exists()


def test_a_manager_that_was_killed_leaves_no_temporary_folder() -> None:
    def body() -> None:
        manager = multiprocessing.Manager()
        print(manager.address)
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        print(Path(str(manager.address)).parent.exists())
        os.kill(os.getpid(), signal.SIGKILL)

    address, existed = simdist.run(body, world_size=1).ranks[0].stdout.split()

    assert existed == "True"  # as on Linux, where the folder stays
    assert not Path(address).parent.exists()
