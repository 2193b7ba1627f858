"""Programs that a rank starts: they get what is the rank's, and what would leave the simulation is refused."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import pytest

import simdist
from simdist.errors import UnsupportedError

ECHO = 'echo "$RANK of $WORLD_SIZE, $MINE"'


def by_run() -> str:
    return subprocess.run(["sh", "-c", ECHO], capture_output=True, text=True, check=True).stdout


def by_output() -> str:
    return subprocess.check_output(ECHO, shell=True).decode()


def by_popen() -> str:
    with os.popen(ECHO) as pipe:
        return pipe.read()


def by_system() -> str:
    assert os.system(ECHO) == 0
    return ""


def by_stream() -> str:
    subprocess.run(ECHO, shell=True, check=True, stdout=sys.stdout)
    return ""


@pytest.mark.parametrize("start", [by_run, by_output, by_popen, by_system, by_stream])
def test_a_child_has_the_environment_of_its_rank(start: Callable[[], str]) -> None:
    def body() -> str:
        os.environ["MINE"] = f"set by {os.environ['RANK']}"
        return start()

    result = simdist.run(body, world_size=2)

    said = [(rank.value or "") + rank.stdout for rank in result.ranks]
    assert said == ["0 of 2, set by 0\n", "1 of 2, set by 1\n"]
    assert result.virtual_time_ns == 0


def test_an_environment_that_is_given_is_all_that_a_child_has() -> None:
    def body() -> str:
        return subprocess.check_output("/bin/echo -$RANK-$ONLY-", shell=True, env={"ONLY": "this"}, text=True)

    assert simdist.run(body, world_size=1).values == ["--this-\n"]


def test_what_a_child_prints_is_output_of_its_rank_where_it_waits_for_it(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        print("before")
        time.sleep(1)
        subprocess.run("echo out; echo err >&2", shell=True, check=True)
        time.sleep(1)
        print("after")

    heard: list[tuple[int, str, str]] = []

    result = simdist.run(
        body, world_size=1, echo=lambda rank, time_ns, stream, line: heard.append((time_ns, stream, line))
    )

    assert (result.ranks[0].stdout, result.ranks[0].stderr) == ("before\nout\nafter\n", "err\n")
    assert heard == [
        (0, "stdout", "before"),
        (1_000_000_000, "stdout", "out"),
        (1_000_000_000, "stderr", "err"),
        (2_000_000_000, "stdout", "after"),
    ]
    assert capfd.readouterr() == ("", "")


def test_a_child_reads_nothing_unless_it_is_given_something() -> None:
    def body() -> tuple[str, str]:
        nothing = subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout
        return nothing, subprocess.run(["cat"], input="given", capture_output=True, text=True, check=True).stdout

    assert simdist.run(body, world_size=1).values == [("", "given")]


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9), ("true", 0)])
def test_system_returns_the_status_that_wait_gives(command: str, status: int) -> None:
    def body() -> int:
        return os.system(command)

    assert simdist.run(body, world_size=1).values == [status]


def test_a_child_of_the_host_stays_the_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    simdist.run(by_stream, world_size=1)

    assert os.system("echo ours") == 0
    subprocess.run("echo $RANK-", shell=True, check=True)

    assert capfd.readouterr().out == "ours\n-\n"


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (multiprocessing.Manager, "multiprocessing.Manager is not simulated"),
        (lambda: connection.Listener(), "multiprocessing.connection.Listener and Client are not simulated"),
        (lambda: connection.Client(("localhost", 1)), "Listener and Client are not simulated"),
        (lambda: os.execv(sys.executable, ["python"]), "os.execv, which would replace the whole world,"),
        (lambda: os.execlp("true", "true"), "os.execv, which would replace the whole world,"),
        (lambda: os.execve(sys.executable, ["python"], {}), "os.execve, which would replace the whole world,"),
    ],
)
def test_what_would_leave_the_simulation_unseen_is_refused(start: Callable[[], Any], named: str) -> None:
    result = simdist.run(start, world_size=1)

    error = result.ranks[0].exception
    assert isinstance(error, UnsupportedError)
    assert named in str(error)
    assert multiprocessing.active_children() == []
