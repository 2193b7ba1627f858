"""Suites written for torch's multi-process test case, on simulated ranks."""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

import torch
import torch.distributed as dist

from simdist.faults import Crash
from simdist.testing import MultiProcessTestCase, run_tests


class Suite(MultiProcessTestCase):
    __test__ = False  # run by hand below

    @property
    def world_size(self) -> int:
        return 3

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def start(self) -> None:
        where = f"file://{self.file_name}"
        dist.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.world_size)

    def test_sum(self) -> None:
        self.start()
        tensor = torch.tensor([float(self.rank)])
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 3.0)

    def test_one_rank_fails(self) -> None:
        self.assertNotEqual(self.rank, 1, "rank 1 is to blame")

    def test_skipped_inside(self) -> None:
        raise unittest.SkipTest("not today")

    def test_leaves_with_a_code(self) -> None:
        sys.exit(3)

    def test_hangs(self) -> None:
        self.start()
        if self.rank:
            dist.recv(torch.zeros(1), 3 - self.rank)

    def test_environment_is_its_own(self) -> None:
        os.environ["MINE"] = str(self.rank)
        self.start()
        dist.barrier()
        self.assertEqual(os.environ["MINE"], str(self.rank))


class ExpectsACode(Suite):
    def setUp(self) -> None:
        super().setUp()
        method: Any = self.test_leaves_with_a_code
        self.special_return_code_checks = {method.__wrapped__: 3}


class Faulty(Suite):
    sim_faults = (Crash(rank=1, op="all_reduce"),)


def outcome(case: unittest.TestCase) -> unittest.TestResult:
    result = unittest.TestResult()
    case.run(result)
    return result


def test_a_suite_passes_fails_and_skips_as_under_torch() -> None:
    assert outcome(Suite("test_sum")).wasSuccessful()
    assert "rank 1 is to blame" in outcome(Suite("test_one_rank_fails")).errors[0][1]
    assert outcome(Suite("test_skipped_inside")).skipped
    assert outcome(Suite("test_environment_is_its_own")).wasSuccessful()


def test_exit_codes_are_judged_by_torchs_rules() -> None:
    assert not outcome(Suite("test_leaves_with_a_code")).wasSuccessful()
    assert outcome(ExpectsACode("test_leaves_with_a_code")).wasSuccessful()


def test_a_hang_ends_in_a_failure_not_in_a_hang() -> None:
    result = outcome(Suite("test_hangs"))

    assert not result.wasSuccessful()


def test_faults_strike_the_ranks_of_a_suite() -> None:
    assert not outcome(Faulty("test_sum")).wasSuccessful()


def test_a_report_names_every_test_with_its_verdict() -> None:
    report = run_tests(Suite, "suite", patterns=["sum", "fails", "skipped"])

    assert report.names("pass") == ["test_sum"]
    assert report.names("fail") == ["test_one_rank_fails"]
    assert report.names("skip") == ["test_skipped_inside"]
    assert "rank 1 is to blame" in report.outcomes[0].reason
