from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import simdist
from simdist.errors import UnsupportedError
from simdist.faults import Crash
from simdist.result import RunResult
from tests.beside import wait_for_host
from tests.process.alone import alone

Log = list[str]


def rank_of() -> int:
    return int(os.environ["RANK"])


def sleep_ns(duration_ns: int) -> None:
    time.sleep(duration_ns / 1e9)


def ends(result: RunResult) -> list[tuple[str, int | None, int]]:
    return [(rank.status, rank.exit_code, rank.ended_ns) for rank in result.ranks]


def test_every_process_has_a_pid_of_its_own() -> None:
    seen: list[tuple[int, int]] = []

    def body() -> None:
        first = os.getpid()
        sleep_ns(10)
        seen.append((rank_of(), os.getpid()))
        assert os.getpid() == first
        sleep_ns(1_000_000)

    result = simdist.run(body, world_size=3, max_restarts=1, faults=[Crash(rank=1, at_ns=50)])

    pids = [event.data["pid"] for event in result.events if event.kind == "start"]
    assert [pid for _, pid in seen] == pids
    assert len(set(pids)) == 6
    assert os.getpid() not in pids


# -- returning and raising ------------------------------------------------------------------------------------------


def test_a_rank_that_returns_leaves_with_code_0() -> None:
    result = alone(lambda: 42)

    assert (result.status, result.exit_code, result.value, result.ok) == ("returned", 0, 42, True)


class Custom(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


@pytest.mark.parametrize("error", [ValueError("x"), Custom(code=3), KeyboardInterrupt(), GeneratorExit()])
def test_a_rank_that_raises_leaves_with_code_1_and_the_same_exception(error: BaseException) -> None:
    def body() -> None:
        raise error

    result = alone(body)

    assert (result.status, result.exit_code, result.ok) == ("raised", 1, False)
    assert result.exception is error


# -- sys.exit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        (None, 0, ""),
        (0, 0, ""),
        (3, 3, ""),
        (True, 1, ""),
        (-1, 255, ""),
        (256, 0, ""),
        ("out of memory", 1, "out of memory\n"),
        (1.5, 1, "1.5\n"),
        (("a", 1), 1, "('a', 1)\n"),
    ],
)
def test_sys_exit_leaves_with_its_argument(code: Any, exit_code: int, stderr: str) -> None:
    result = alone(lambda: sys.exit(code))

    assert (result.status, result.exit_code, result.stderr) == ("exited", exit_code, stderr)
    assert result.ok == (exit_code == 0)


def test_sys_exit_runs_finally_and_can_be_caught() -> None:
    log: Log = []

    def body() -> str:
        try:
            sys.exit(4)
        except SystemExit as leaving:
            log.append(f"caught {leaving.code}")
        finally:
            log.append("finally")
        return "stayed"

    assert alone(body).value == "stayed"
    assert log == ["caught 4", "finally"]


# -- os._exit, signals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (7, 7), (-1, 255), (256, 0)])
def test_os_exit_leaves_at_once(code: int, exit_code: int) -> None:
    log: Log = []

    def body() -> None:
        atexit.register(log.append, "atexit")
        try:
            os._exit(code)
        except BaseException:
            log.append("caught")
            raise
        finally:
            log.append("finally")

    result = simdist.run(body, world_size=1)

    assert ends(result) == [("exited", exit_code, 0)]
    # The thread is unwound at the end of the world: it has no effects, but its `finally` blocks run.
    assert log == ["caught", "finally"]


def dies(action: Callable[[], Any]) -> tuple[str, int | None]:
    result = alone(action)
    return result.status, result.exit_code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1])
def test_a_signal_kills(number: signal.Signals) -> None:
    assert dies(lambda: os.kill(os.getpid(), number)) == ("killed", -number)
    assert dies(lambda: signal.raise_signal(number)) == ("killed", -number)


def test_abort_is_sigabrt() -> None:
    assert dies(lambda: os.abort()) == ("killed", -6)


@pytest.mark.parametrize("number", [0, signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT])
def test_some_signals_do_nothing(number: int) -> None:
    def body() -> str:
        os.kill(os.getpid(), number)
        return "alive"

    assert alone(body).value == "alive"


def test_an_interrupt_is_raised_where_it_strikes() -> None:
    def body() -> str:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return "alive"

    assert alone(body).value == "alive"


def test_a_rank_can_kill_another_at_an_exact_time() -> None:
    def body() -> None:
        if rank_of() == 0:
            sleep_ns(700)
            os.kill(os.getpid() + 1, signal.SIGTERM)
        sleep_ns(5_000)

    result = simdist.run(body, world_size=3)

    assert ends(result) == [("returned", 0, 5_700), ("killed", -15, 700), ("returned", 0, 5_000)]


def test_a_rank_can_stop_another_and_let_it_go_on() -> None:
    def body() -> int:
        if rank_of() == 0:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                sleep_ns(1_000)
                os.kill(os.getpid() + 1, number)
        else:
            sleep_ns(1_500)
        return time.monotonic_ns()

    assert simdist.run(body, world_size=2).values == [2_000, 2_000]


def test_a_rank_that_stops_itself_hangs() -> None:
    def body() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    result = alone(body)

    assert (result.status, result.exit_code, result.ok) == ("hung", None, False)


def test_there_is_no_process_but_the_ranks() -> None:
    def body() -> None:
        if rank_of() == 0:
            sleep_ns(10)
            for pid in {os.getpid() + 1, os.getpid() + 77, HOST_PID} - {os.getpid()}:  # the host's may be the same
                with pytest.raises(ProcessLookupError, match="No such process"):
                    os.kill(pid, 0)

    simdist.run(body, world_size=2).raise_for_failure()


HOST_PID = os.getpid()


def test_an_ignored_signal_does_not_kill_in_silence() -> None:
    def body() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)

    assert alone(body).status == "returned"


def test_a_default_handler_may_be_asked_for() -> None:
    def body() -> object:
        return signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert alone(body).value is signal.SIG_DFL


# -- atexit ---------------------------------------------------------------------------------------------------------


def leave_by_returning() -> None:
    pass


def leave_by_exit() -> NoReturn:
    sys.exit(3)


def leave_by_raising() -> NoReturn:
    raise ValueError("x")


@pytest.mark.parametrize(
    ("leave", "status", "code"),
    [(leave_by_returning, "returned", 0), (leave_by_exit, "exited", 3), (leave_by_raising, "raised", 1)],
)
def test_atexit_functions_run_last_first_however_a_rank_leaves(
    leave: Callable[[], None], status: str, code: int
) -> None:
    log: Log = []
    before = atexit._ncallbacks()

    def body() -> None:
        rank = rank_of()
        assert atexit.register(log.append, f"{rank} first") == log.append
        atexit.register(log.append, f"{rank} second")
        sleep_ns(rank)
        leave()

    result = simdist.run(body, world_size=2)

    assert log == ["0 second", "0 first", "1 second", "1 first"]
    assert ends(result) == [(status, code, 0), (status, code, 1)]
    assert atexit._ncallbacks() == before


def loads_compiled_code(function: Callable[[], object]) -> None:
    """Call `function` as importlib calls the loader of a module of compiled code."""
    call: Any = vars(importlib)["_bootstrap"]._call_with_frames_removed
    call(lambda spec: function(), types.SimpleNamespace(name="json.compiled"))


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_module_registers_at_its_import_is_not_called_by_ranks(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    (tmp_path / "registers_exit.py").write_text("import atexit, json\natexit.register(json.log.append, 'exit')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(json, "log", log, raising=False)

    def program() -> None:
        if compiled:
            loads_compiled_code(lambda: atexit.register(log.append, "exit"))
        else:
            importlib.import_module("registers_exit")

    before = atexit._ncallbacks()
    simdist.run(program, world_size=1).raise_for_failure()
    sys.modules.pop("registers_exit", None)
    after = atexit._ncallbacks()
    atexit.unregister(log.append)

    assert (log, after - before) == ([], 1)


def test_atexit_functions_may_take_time_and_use_the_network() -> None:
    def body() -> None:
        atexit.register(sleep_ns, 500)

    assert ends(simdist.run(body, world_size=1)) == [("returned", 0, 500)]


def test_an_atexit_function_that_fails_is_reported_and_the_others_run() -> None:
    log: Log = []

    def fails() -> None:
        raise ValueError("in atexit")

    def body() -> str:
        atexit.register(log.append, "first")
        atexit.register(fails)
        return "value"

    result = alone(body)

    assert (result.status, result.exit_code, result.value) == ("returned", 0, "value")
    assert log == ["first"]
    assert "ValueError: in atexit" in result.stderr


def test_a_function_can_be_unregistered() -> None:
    log: Log = []

    def body() -> None:
        atexit.register(log.append, "gone")
        atexit.unregister(log.append)

    alone(body)

    assert log == []


def test_a_killed_rank_runs_no_atexit_function() -> None:
    log: Log = []

    def body() -> None:
        atexit.register(log.append, "ran")
        sleep_ns(100)

    simdist.run(body, world_size=1, faults=[Crash(rank=0, at_ns=50)])

    assert log == []


# -- programs that a rank may not start -----------------------------------------------------------------------------


def test_a_fork_is_refused() -> None:
    result = alone(os.fork)

    assert type(result.exception) is UnsupportedError
    assert isinstance(result.exception, NotImplementedError)
    assert str(result.exception).startswith("rank 0: ")
    assert str(result.exception).endswith("multiprocessing.Process starts a simulated child, and subprocess a program")


def test_the_host_may_start_threads_while_a_world_runs() -> None:
    go, done = threading.Event(), threading.Event()

    def host() -> None:
        go.wait(10)
        thread = threading.Thread(target=done.set)
        thread.start()
        thread.join()

    def body() -> None:
        go.set()
        wait_for_host(done)

    thread = threading.Thread(target=host)
    thread.start()
    simdist.run(body, world_size=1).raise_for_failure()
    thread.join()
