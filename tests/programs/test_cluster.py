"""Searches on a Dask cluster find what they find alone, whatever becomes of its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import simdist
from simdist.cli import main
from simdist.errors import ArgumentError
from simdist.programs import Workers
from simdist.programs import _pools as pools
from simdist.programs import _workers as workers_room
from tests.programs.test_workers import EXPECTED, Squares, squares
from tests.searches.programs import gives_up, lost_update

SILENT = "tcp://127.0.0.1:9"
FEW_WORLDS = 200


class Emptied:
    """A pool whose workers are all gone after a while, with what they had."""

    broken: tuple[type[BaseException], ...] = ()
    unborn: tuple[type[BaseException], ...] = ()
    lost: tuple[type[BaseException], ...] = ()

    def __init__(self, after: int) -> None:
        self.left = after
        self.closed = 0

    def size(self) -> int:
        return int(self.left > 0)

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Any]:
        self.left -= 1
        future: Future[Any] = Future()
        if self.left > 0:
            future.set_result(([task * task for task in tasks], {}))
        return future

    def renew(self) -> None:
        raise AssertionError("nobody died")

    def close(self, *, at_once: bool) -> None:
        self.closed += 1


@pytest.mark.parametrize("after", [1, 2, 9])
def test_what_a_pool_has_that_loses_all_workers_is_done_here(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    pool = Emptied(after)
    monkeypatch.setattr(workers_room, "_cluster", lambda address: pool)
    monkeypatch.setattr(workers_room, "_LOOK_S", 0.01)

    with Workers(Squares(), squares, SILENT) as workers:
        found = list(workers.run(range(100), 100))

    assert found == EXPECTED
    assert pool.closed == 1


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(ArgumentError, match=r"pip install 'simdist\[cluster\]'"):
        Workers(Squares(), squares, SILENT)


def test_an_address_that_is_none_is_refused_with_the_other_problems() -> None:
    with pytest.raises(ArgumentError) as raised:
        simdist.explore(lost_update, world_size=2, runs=0, workers="10.0.0.1")

    assert "workers: '10.0.0.1' is no address of a Dask scheduler, such as 'tcp://10.0.0.1:8786'" in str(raised.value)
    assert "runs: 0 is no count" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scheduler", "10.0.0.1"), "--scheduler: '10.0.0.1' is no address of a Dask scheduler"),
        (("--scheduler", SILENT, "--workers", "2"), "--workers: the workers of the --scheduler do the runs"),
    ],
)
@pytest.mark.parametrize("command", ["explore", "fuzz", "sweep"])
def test_options_that_can_not_be_are_refused(command: str, options: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, [command, "scenarios/ddp_digits.toml", *options])

    assert done.exit_code == 2
    assert said in done.output


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    python_path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", env={"PYTHONPATH": python_path}
    ) as cluster:
        yield cluster


_SEARCHES: dict[str, Callable[..., Any]] = {
    "fuzz": partial(simdist.fuzz, gives_up, world_size=3, runs=FEW_WORLDS),
    "explore": partial(simdist.explore, lost_update, world_size=2, runs=FEW_WORLDS),
}


def _has_forgotten() -> bool:
    return pools._begun is None


@pytest.mark.real
@pytest.mark.parametrize("search", _SEARCHES)
def test_a_cluster_finds_the_same_as_one_process(cluster: Any, search: str) -> None:
    one = _SEARCHES[search]()

    two = _SEARCHES[search](workers=cluster.scheduler_address)

    assert two == one
    assert str(two) == str(one)
    with cluster.get_client() as client:
        assert set(client.run(_has_forgotten).values()) == {True}


class Counted(Squares):
    """Says at its third task that it lives, and by which pid it can be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def do(self, task: int) -> int:
        (self.folder / str(os.getpid())).touch()
        threading.Event().wait(0.05)
        return super().do(task)


class CountedHere:
    def __init__(self, folder: Path) -> None:
        self.worker = Counted(folder)

    def __enter__(self) -> Counted:
        return self.worker

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""


@pytest.mark.real
def test_a_worker_that_is_killed_in_the_middle_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    killed: list[int] = []
    with Workers(Squares(), partial(CountedHere, tmp_path), cluster.scheduler_address) as workers:
        found = []
        for pair in workers.run(range(400), 400):
            found.append(pair)
            at_work = [int(each.name) for each in tmp_path.iterdir()]
            if at_work and not killed:
                killed.append(at_work[0])
                os.kill(at_work[0], signal.SIGKILL)

    assert killed
    assert found == [(number, number * number) for number in range(400)]


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address and the process of a scheduler with one worker, in processes of their own."""
    distributed = pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    started: list[subprocess.Popen[bytes]] = []

    def start(part: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--scheduler-file", str(file), *options]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, cwd=tmp_path))

    start("scheduler", "--port", "0", "--no-dashboard")
    try:
        while not file.exists():
            assert started[0].poll() is None
            time.sleep(0.05)
        start("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "5")
        address = json.loads(file.read_text())["address"]
        with distributed.Client(address) as client:
            client.wait_for_workers(1, timeout=30)
        yield address, started[0]
    finally:
        for each in started:
            each.kill()
            each.wait()


@pytest.mark.real
def test_a_scheduler_that_is_killed_in_the_middle_loses_nothing(
    scheduler: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    address, process = scheduler
    seen = tmp_path / "seen"
    seen.mkdir()
    with Workers(Squares(), partial(CountedHere, seen), address) as workers:
        found = []
        for pair in workers.run(range(400), 400):
            found.append(pair)
            if any(int(each.name) != os.getpid() for each in seen.iterdir()):
                process.kill()

    assert process.wait(10) == -signal.SIGKILL
    assert found == [(number, number * number) for number in range(400)]


@pytest.mark.real
def test_an_address_at_which_nobody_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("simdist.programs._cluster._ANSWERS_S", 1.0)

    with pytest.raises(ArgumentError, match=r"scheduler: none answers at tcp://127\.0\.0\.1:9"):
        Workers(Squares(), squares, SILENT)
