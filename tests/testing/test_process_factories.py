"""Suites that start their processes in their own way, and whose main process talks to the ranks meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

from simdist.testing import MultiProcessTestCase, run_tests, simulated


class Talks(MultiProcessTestCase):
    """Gives each rank an end of a pipe before its usual arguments; the main process has the other ends."""

    __test__ = False  # run by hand below
    main_end: Any

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        for end in self.ends:
            end.close()

    @property
    def world_size(self) -> int:
        return 3

    @classmethod
    def _run(cls, end: Any, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        cls.main_end = end
        super()._run(rank, test_name, file_name, parent_pipe)

    def _spawn_processes(self) -> None:
        process: Any = torch.multiprocessing.get_context("spawn").Process
        pipes = [torch.multiprocessing.Pipe() for _ in range(self.world_size)]
        self.ends = [mine for mine, _ in pipes]
        theirs = iter([end for _, end in pipes])

        def make(*positional: Any, args: Any, **named: Any) -> Any:
            return process(*positional, args=(next(theirs), *args), **named)

        self._start_processes(make)

    def _join_processes(self, fn: Any) -> None:
        with mock.patch("sys.exit"):
            fn()
        super()._join_processes(fn)

    @property
    def is_main(self) -> bool:
        return self.rank == self.MAIN_PROCESS_RANK

    def test_a_question_and_an_answer(self) -> None:
        if self.is_main:
            for rank, end in enumerate(self.ends):
                assert end.recv() == ("ready", rank, 1000 + rank)
            for end in self.ends:
                end.send("go on")
            return
        dist.init_process_group("gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=3)
        self.main_end.send(("ready", self.rank, os.getpid()))
        assert self.main_end.recv() == "go on"
        dist.barrier()

    def test_time_passes_alike_for_both_sides(self) -> None:
        began = time.monotonic()
        if self.is_main:
            assert not self.ends[0].poll(2.0)
            assert time.monotonic() - began == pytest.approx(
                2.0001, abs=1e-9
            )  # a poll that times out ends a little late
            time.sleep(3.0)
            self.ends[0].send("now")
            return
        if self.rank == 0:
            self.main_end.recv()
            assert time.monotonic() - began == pytest.approx(5.0, abs=0.01)

    def test_a_rank_is_waited_for_and_killed(self) -> None:
        if self.is_main:
            self.processes[0].join(timeout=1.5)
            assert self.processes[0].exitcode is None
            assert self.processes[0].is_alive()
            os.kill(self.processes[0].pid, signal.SIGKILL)
            self.processes[0].join()
            assert self.processes[0].exitcode == -9
            self.processes[1].join()
            assert self.processes[1].exitcode == 5
            return
        if self.rank == 1:
            sys.exit(5)
        time.sleep(10.0 if self.rank == 0 else 0.0)

    def test_what_a_rank_says_last_is_read_after_its_end(self) -> None:
        if self.is_main:
            self.processes[2].join()
            assert [end.recv() for end in self.ends] == [0, 1, 2]
            return
        self.main_end.send(self.rank)

    def test_the_main_process_fails(self) -> None:
        if self.is_main:
            raise ValueError("not as it should be")
        self.main_end.recv()

    def test_each_side_waits_for_the_other(self) -> None:
        (self.ends[0] if self.is_main else self.main_end).recv()

    def test_the_main_process_waits_for_a_rank_that_has_ended(self) -> None:
        if self.is_main:
            self.ends[0].recv()

    def test_a_rank_fails(self) -> None:
        if not self.is_main:
            assert self.rank != 1, "rank 1 is to blame"

    def _check_return_codes(self, elapsed_time: float) -> None:  # as torch 2.6 declares it
        if "killed" not in self._current_test_name():
            super()._check_return_codes(elapsed_time)


_TorchCase: Any = common_distributed.MultiProcessTestCase


class Upstream(_TorchCase):  # type: ignore[misc]  # torch's class is untyped
    """A suite as in a file of torch, from which `simulated` derives."""

    __test__ = False
    main_end: Any
    ends: list[Any]
    world_size, is_main = Talks.world_size, Talks.is_main
    _spawn_processes: Any = Talks._spawn_processes
    test_a_question_and_an_answer = Talks.test_a_question_and_an_answer

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        for end in self.ends:
            end.close()

    @classmethod
    def _run(cls, end: Any, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        cls.main_end = end
        super()._run(rank, test_name, file_name, parent_pipe)

    def _join_processes(self, fn: Any) -> None:
        fn()
        super()._join_processes(fn)


class OlderRun(MultiProcessTestCase):
    """A suite whose `_run` has no keyword arguments, as before torch 2.6."""

    __test__ = False
    world_size = Talks.world_size

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any) -> None:
        super()._run(rank, test_name, file_name, pipe)

    def test_runs(self) -> None:
        assert self.rank in range(3)


def unless_skipped(check: Any) -> Any:
    def wrapper(self: Any, *args: Any) -> Any:
        return check(self, *args)

    return wrapper


class Decorated(OlderRun):
    """A suite with torch 2.6's signature of the check, behind a decorator that hides it."""

    __test__ = False
    judged: list[float]

    @unless_skipped
    def _check_return_codes(self, elapsed_time: float) -> None:
        self.judged = [elapsed_time]


def outcome(case: unittest.TestCase) -> unittest.TestResult:
    result = unittest.TestResult()
    case.run(result)
    return result


@pytest.mark.parametrize(
    "name",
    [
        "test_a_question_and_an_answer",
        "test_time_passes_alike_for_both_sides",
        "test_a_rank_is_waited_for_and_killed",
        "test_what_a_rank_says_last_is_read_after_its_end",
    ],
)
def test_the_main_process_talks_to_its_ranks_while_they_run(name: str) -> None:
    result = outcome(Talks(name))

    assert result.wasSuccessful(), (result.errors + result.failures)[0][1]
    assert not hasattr(Talks, "main_end")


def test_what_goes_wrong_on_either_side_fails_the_test() -> None:
    assert "not as it should be" in outcome(Talks("test_the_main_process_fails")).errors[0][1]
    assert "rank 1 is to blame" in outcome(Talks("test_a_rank_fails")).errors[0][1]
    assert "terminated or timed out" in outcome(Talks("test_each_side_waits_for_the_other")).errors[0][1]
    assert "EOFError" in outcome(Talks("test_the_main_process_waits_for_a_rank_that_has_ended")).errors[0][1]


def test_pipes_of_a_suite_are_the_hosts_again_after_its_world() -> None:
    case = Talks("test_a_question_and_an_answer")
    ends: list[Any] = []

    case.tearDown = lambda: ends.extend(case.ends)  # type: ignore[method-assign]

    assert outcome(case).wasSuccessful()
    assert all(os.get_blocking(end.fileno()) for end in ends)
    for end in ends:
        end.close()


def test_a_class_of_torch_keeps_what_it_overrides() -> None:
    report = run_tests(simulated(Upstream), "suite")

    assert report.names("pass") == ["test_a_question_and_an_answer"]


def test_run_is_called_with_the_arguments_that_it_has() -> None:
    assert outcome(OlderRun("test_runs")).wasSuccessful()


def test_a_judge_behind_a_decorator_is_called_with_the_arguments_it_has() -> None:
    case = Decorated("test_runs")

    assert outcome(case).wasSuccessful()
    assert len(case.judged) == 1


def test_what_is_no_process_is_refused_by_name() -> None:
    class Odd(Talks):
        __test__ = False

        def _spawn_processes(self) -> None:
            self._start_processes(lambda **named: "a thing")

    [(_, text)] = outcome(Odd("test_a_question_and_an_answer")).errors

    assert "the process factory of this suite made 'a thing'" in text
