"""Ranks under pydevd, the debugger of VS Code and PyCharm: a stand-in with its interface, and the real one."""

from __future__ import annotations

import itertools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.process import current_process


class Command:
    """A person's request to the debugger."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.ask = ask
        self.answers: list[object] = []

    def do_it(self, debugger: PyDB) -> None:
        self.answers.append(self.ask())


class PyDB:
    """The methods of pydevd's class that simdist replaces, with their purpose."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.traced: list[tuple[str, threading.Thread | None]] = []
        self.seen: list[list[str]] = []
        self.waited = threading.Event()

    def enable_tracing(self) -> None:
        registered = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        self.traced.append((threading.current_thread().name, registered))

    def set_suspend(self, thread: threading.Thread) -> None: ...

    def post_internal_command(self, command: Any, thread_id: str) -> None:
        self.commands.put(command)

    def do_wait_suspend(self) -> float:
        self.seen.append(sorted(thread.name for thread in threading.enumerate()))
        began = time.monotonic()
        self.waited.wait(0.01)  # waits for the person
        while not self.commands.empty():
            self.commands.get().do_it(self)
        return time.monotonic() - began


class TimeoutTracker:
    def call_on_timeout(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: None, name="watches an evaluation")
        thread.start()
        return thread


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[PyDB]:
    made = PyDB()
    contents: dict[str, dict[str, object]] = {
        "pydevd": {"PyDB": PyDB},
        "_pydevd_bundle.pydevd_constants": {"get_global_debugger": lambda: made},
        "_pydevd_bundle.pydevd_timeout": {"TimeoutTracker": TimeoutTracker},
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    methods = dict(vars(PyDB))
    yield made
    assert dict(vars(PyDB)) == methods


def steps(order: list[str], stop: Callable[[], object]) -> Callable[[], int]:
    def body() -> int:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        dist.barrier()
        order.append(f"{rank} arrives")
        if rank == 0:
            stop()
        order.append(f"{rank} leaves")
        dist.all_reduce(torch.ones(1))
        return rank

    return body


def test_a_stopped_rank_keeps_the_others_and_the_clock_where_they_are(debugger: PyDB) -> None:
    plain = simdist.run(steps([], lambda: None), world_size=2)
    order: list[str] = []
    waited: list[float] = []

    result = simdist.run(steps(order, lambda: waited.append(debugger.do_wait_suspend())), world_size=2)

    assert result.values == [0, 1]
    assert result.digest == plain.digest
    assert order == ["0 arrives", "0 leaves", "1 arrives", "1 leaves"]
    assert 0 < waited[0] < 60  # of real time
    assert [[name for name in names if "rank" in name] for names in debugger.seen] == [["rank 0", "rank 1"]]


def test_a_debugger_that_is_the_program_itself_stops_ranks(debugger: PyDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyCharm starts it: its class is in `__main__`, and the module `pydevd` has another class of that name."""
    monkeypatch.setattr(sys.modules["pydevd"], "PyDB", type("PyDB", (), dict(vars(PyDB))))
    order: list[str] = []

    result = simdist.run(steps(order, lambda: debugger.do_wait_suspend()), world_size=2)

    assert result.values == [0, 1]
    assert order == ["0 arrives", "0 leaves", "1 arrives", "1 leaves"]
    assert "rank 0" in debugger.seen[0]


def test_what_a_person_asks_for_is_worked_out_on_the_rank_and_alone(debugger: PyDB) -> None:
    order: list[str] = []

    def ask() -> tuple[int, str]:
        time.sleep(5)
        return dist.get_rank(), threading.current_thread().name

    asked = Command(ask)

    def stop() -> None:
        debugger.post_internal_command(asked, "1")
        debugger.do_wait_suspend()

    result = simdist.run(steps(order, stop), world_size=2)

    assert asked.answers == [(0, "MainThread")]
    assert result.virtual_time_ns > 5_000_000_000
    assert order == ["0 arrives", "0 leaves", "1 arrives", "1 leaves"]


def test_others_run_if_a_person_asks_for_what_needs_them(debugger: PyDB) -> None:
    order: list[str] = []
    asked = Command(lambda: dist.all_reduce(torch.ones(1)))

    def stop() -> None:
        debugger.post_internal_command(asked, "1")
        debugger.do_wait_suspend()

    result = simdist.run(steps(order, stop), world_size=2)

    assert asked.answers == [None]
    assert order == ["0 arrives", "1 arrives", "1 leaves", "0 leaves"]
    assert result.ranks[1].value == 1
    assert "Connection closed by peer" in str(result.ranks[0].exception)  # no rank is left for its own all_reduce


def test_what_is_asked_outside_of_ranks_is_worked_out_there(debugger: PyDB) -> None:
    asked = Command(lambda: threading.current_thread() is threading.main_thread())

    def posts() -> None:
        debugger.post_internal_command(asked, "*")

    simdist.run(posts, world_size=1).raise_for_failure()
    debugger.do_wait_suspend()

    assert asked.answers == [True]


def test_a_rank_waits_for_its_devices_before_it_stops(debugger: PyDB) -> None:
    answers: list[object] = []

    def body() -> None:
        dist.init_process_group("nccl")
        tensor = torch.ones(1, device=f"cuda:{dist.get_rank()}")
        dist.all_reduce(tensor)
        debugger.set_suspend(threading.current_thread())
        began_ns = time.monotonic_ns()
        answers.append(tensor.item())
        assert time.monotonic_ns() == began_ns  # nothing to wait for

    simdist.run(body, world_size=2, backend="nccl").raise_for_failure()

    assert answers == [2.0, 2.0]


def test_a_process_has_its_main_thread_before_it_is_traced(debugger: PyDB) -> None:
    simdist.run(lambda: None, world_size=2).raise_for_failure()

    assert [(name, getattr(thread, "_name", None)) for name, thread in debugger.traced] == [
        ("MainThread", "MainThread")
    ] * 2


def test_what_was_kept_of_a_thread_before_it_was_a_ranks_is_forgotten(
    debugger: PyDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = ModuleType("_pydevd_sys_monitoring._pydevd_sys_monitoring")
    kept = keeper._thread_local_info = threading.local()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, keeper.__name__, keeper)
    seen: list[object] = []

    def body() -> None:
        simulation: Any = current_process().simulation  # type: ignore[union-attr]
        start = simulation.start_thread

        def asking_first(function: Callable[..., None], arguments: tuple[object, ...]) -> int:
            def begin(*arguments: object) -> None:
                kept.thread_info = "a dummy"
                function(*arguments)

            return int(start(begin, arguments))

        simulation.start_thread = asking_first
        thread = threading.Thread(target=lambda: seen.append(dict(vars(kept))))
        thread.start()
        thread.join()

    kept.thread_info = "the host's"
    simdist.run(body, world_size=1).raise_for_failure()

    assert seen == [{}]
    assert kept.thread_info == "the host's"


def test_threads_that_watch_an_evaluation_are_the_hosts(debugger: PyDB) -> None:
    made: list[threading.Thread] = []

    def body() -> int:
        made.append(TimeoutTracker().call_on_timeout())
        return len([thread for thread in threading.enumerate() if thread is made[0]])

    result = simdist.run(body, world_size=1)

    assert result.values == [0]
    made[0].join()
    assert not made[0].is_alive()


# -- the real one ----------------------------------------------------------------------------------------------------

PROGRAM = """\
import threading
import torch
import torch.distributed as dist
import simdist

def worker(data):
    data.append(1)
    return data

def body():
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    thread = threading.Thread(target=worker, args=([],))
    thread.start()
    thread.join()
    return tensor.item()

print(simdist.run(body, world_size=2).values)
"""


class Editor:
    """One end of the debug adapter protocol, as an editor speaks it."""

    def __init__(self, port: int) -> None:
        self._numbers = itertools.count(1)
        self._seen: list[dict[str, Any]] = []
        for _ in range(600):
            try:
                self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, command: str, **arguments: object) -> Any:
        number = self.send(command, **arguments)
        answer = self.next(lambda message: message.get("request_seq") == number)
        assert answer["success"], answer
        return answer.get("body")

    def send(self, command: str, **arguments: object) -> int:
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return number

    def next(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for message in self._seen:
                if wanted(message):
                    self._seen.remove(message)
                    return message
            length = int(self._lines.readline().partition(b":")[2])
            self._lines.readline()
            self._seen.append(json.loads(self._lines.read(length)))


@pytest.mark.real
@pytest.mark.usefixtures("internet_sockets")
def test_an_editor_stops_ranks_and_their_threads(tmp_path: Path) -> None:
    pytest.importorskip("debugpy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-Xfrozen_modules=off", "-m", "debugpy", "--listen", str(port), "--wait-for-client", str(program)]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    editor = Editor(port)
    try:
        editor.ask("initialize", adapterID="tests", pathFormat="path")
        editor.send("attach", justMyCode=True)
        editor.next(lambda message: message.get("event") == "initialized")
        lines = [
            {"line": PROGRAM.splitlines().index(line) + 1} for line in ("    data.append(1)", "    thread.start()")
        ]
        editor.ask("setBreakpoints", source={"path": str(program)}, breakpoints=lines)
        editor.ask("configurationDone")
        stops = []
        while (message := editor.next(lambda each: each.get("event") in ("stopped", "terminated")))[
            "event"
        ] == "stopped":
            thread = message["body"]["threadId"]
            names = {each["id"]: each["name"] for each in editor.ask("threads")["threads"]}
            frame = editor.ask("stackTrace", threadId=thread)["stackFrames"][0]
            shown = editor.ask("evaluate", expression="dist.get_rank()", frameId=frame["id"])["result"]
            stops.append((names[thread], frame["name"], shown))
            editor.ask("continue", threadId=thread)
        editor.ask("disconnect")
        editor.close()
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
        editor.close()

    assert output == "[2.0, 2.0]\n"
    assert stops == [
        ("rank 0", "body", "0"),
        ("rank 1", "body", "1"),
        ("Thread-1 (worker)", "worker", "0"),
        ("Thread-1 (worker)", "worker", "1"),
    ]
