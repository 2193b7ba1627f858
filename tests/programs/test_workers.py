"""Workers give the results of tasks in their order, whatever becomes of the processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simdist.errors import ArgumentError, SimdistError
from simdist.programs import Worker, Workers, died_words
from tests.programs.pools import standing_in


class Squares(Worker[int, int]):
    """Squares numbers, and learns which it has seen."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def do(self, task: int) -> int:
        self.seen[str(task)] = True
        return task * task

    def learnt(self) -> dict[str, Any]:
        return dict(self.seen)

    def learn(self, found: Mapping[str, Any]) -> None:
        self.seen |= found


@contextmanager
def squares() -> Iterator[Squares]:
    yield Squares()


EXPECTED = [(number, number * number) for number in range(100)]


def test_results_are_in_the_order_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Squares()
    with standing_in(monkeypatch) as pools, Workers(here, squares, 3) as workers:
        found = list(workers.run(range(100), 100))

    assert found == EXPECTED
    assert pools.made == 1
    assert 0 < sum(map(len, pools.submitted)) < 100
    assert len(here.seen) == 100
    assert workers.died == 0


def test_few_tasks_are_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch) as pools, Workers(Squares(), squares, 3) as workers:
        found = list(workers.run(range(5), 5))

    assert found == EXPECTED[:5]
    assert pools.made == 0


def test_tasks_are_drawn_a_little_ahead_and_no_more_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    with standing_in(monkeypatch), Workers(Squares(), squares, 2) as workers:
        results = workers.run(tasks())
        first = next(results)

    assert first == (0, 0)
    assert len(drawn) < 30


@pytest.mark.parametrize("dies_at", [(1,), (3,), (2, 3), (1, 2, 9)])
def test_what_a_worker_had_that_died_is_done_again(monkeypatch: pytest.MonkeyPatch, dies_at: tuple[int, ...]) -> None:
    with standing_in(monkeypatch, *dies_at) as pools, Workers(Squares(), squares, 2) as workers:
        found = list(workers.run(range(100), 100))

    assert found == EXPECTED
    assert (workers.died, pools.made) == (len(dies_at), 1)
    assert 0 < pools.renewed <= len(dies_at)


def test_after_a_death_each_task_is_tried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch, 1) as pools, Workers(Squares(), squares, 2) as workers:
        list(workers.run(range(100), 100))

    begun = sorted(pools.submitted)
    assert begun[:3] == [[0], [1], [2]]
    assert {len(part) for part in begun} == {1, 4}


class Fatal(Squares):
    """Kills its process at one task."""

    def do(self, task: int) -> int:
        if multiprocessing.parent_process() is not None and task == 13:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().do(task)

    def killed(self, number: int, task: int, how: str) -> int:
        assert (number, how) == (13, "was killed by SIGSEGV")
        return -task


@contextmanager
def fatal() -> Iterator[Fatal]:
    yield Fatal()


@pytest.mark.real
def test_a_task_of_which_processes_die_has_a_result_and_the_others_theirs() -> None:
    with Workers(Fatal(), fatal, 2, apart=True) as workers:
        found = list(workers.run(range(100), 100))

    assert found == [*EXPECTED[:13], (13, -13), *EXPECTED[14:]]
    assert workers.died == 3
    assert multiprocessing.active_children() == []


def test_a_task_of_which_workers_die_all_the_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        standing_in(monkeypatch, deadly=lambda task: task == 0),
        Workers(Squares(), squares, 2) as workers,
        pytest.raises(
            SimdistError, match=r"that began task 0 died, the last one was killed by SIGKILL: .* \(--workers 1\)"
        ),
    ):
        list(workers.run(range(100), 100))

    assert workers.died == 3


def test_workers_that_can_not_begin_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        standing_in(monkeypatch, *range(1, 100), unborn=True) as pools,
        Workers(Squares(), squares, 2) as workers,
        pytest.raises(SimdistError, match=r"no worker process can start: 3 died .* needs `if __name__ == '__main__':`"),
    ):
        list(workers.run(range(100), 100))

    assert pools.submitted == []


def test_apart_this_process_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle(Squares):
        def do(self, task: int) -> int:
            raise AssertionError(task)

    with standing_in(monkeypatch) as pools, Workers(Idle(), squares, 1, apart=True) as workers:
        found = list(workers.run(range(5), 5))

    assert found == EXPECTED[:5]
    assert pools.submitted


def test_deaths_are_counted_in_words() -> None:
    assert died_words(1) == "worker processes died once; what they had begun was done again"
    assert died_words(2).startswith("worker processes died 2 times;")


def test_what_another_process_cannot_import_is_refused() -> None:
    @contextmanager
    def local() -> Iterator[Squares]:
        yield Squares()

    with pytest.raises(ArgumentError, match=r"^workers: another process can't import the program"):
        Workers(Squares(), local, 2)


class Mortal(Squares):
    """Its process dies at its first task, if it is the first that does."""

    def __init__(self, flag: Path) -> None:
        super().__init__()
        self.flag = flag

    def do(self, task: int) -> int:
        if multiprocessing.parent_process() is not None:
            with suppress(FileExistsError):
                self.flag.touch(exist_ok=False)
                os._exit(1)
        return super().do(task)


@contextmanager
def mortal(flag: Path) -> Iterator[Mortal]:
    yield Mortal(flag)


@pytest.mark.real
def test_the_tasks_of_a_process_that_dies_are_done_again(tmp_path: Path) -> None:
    flag = tmp_path / "dead"
    with Workers(Mortal(flag), partial(mortal, flag), 2) as workers:
        found = list(workers.run(range(100), 100))

    assert found == EXPECTED
    assert workers.died == 1
    assert multiprocessing.active_children() == []


def _import_slowly(folder: Path) -> None:
    (folder / f"{os.getpid()}").touch()
    sys.modules["imported_slowly"] = types.ModuleType("imported_slowly")


class Importing(Squares):
    """Says whether its process has imported what it needs before there was any task."""

    def do(self, task: int) -> int:
        return super().do(task) if "imported_slowly" in sys.modules else -1


@contextmanager
def importing() -> Iterator[Importing]:
    yield Importing()


@pytest.mark.real
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere processes are spawned")
def test_processes_share_what_is_imported_once(tmp_path: Path) -> None:
    warm = partial(_import_slowly, tmp_path)
    with Workers(Importing(), importing, 3, warm=warm, apart=True) as workers:
        found = list(workers.run(range(100), 100))

    assert found == EXPECTED
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.real
def test_processes_that_are_spawned_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.programs._processes._HAS_FORK", False)
    with Workers(Fatal(), fatal, 2, apart=True) as workers:
        found = list(workers.run(range(40), 40))

    assert found == [*EXPECTED[:13], (13, -13), *EXPECTED[14:40]]
    assert multiprocessing.active_children() == []


def broken() -> AbstractContextManager[Squares]:
    raise ZeroDivisionError("no program")


@pytest.mark.real
def test_an_error_of_a_worker_is_raised_here() -> None:
    with (
        pytest.raises(ZeroDivisionError, match="no program"),
        Workers(Squares(), broken, 1, apart=True) as workers,
    ):
        list(workers.run(range(3), 3))

    assert multiprocessing.active_children() == []
