"""Suites written for torch's threaded test case, on simulated ranks."""

from __future__ import annotations

import unittest
from typing import Any

import torch
import torch.distributed as dist

from simdist.testing import MultiThreadedTestCase, simulated, spawn_threads_and_init_comms


class Suite(MultiThreadedTestCase):
    __test__ = False  # run by hand below

    @property
    def world_size(self) -> int:
        return 3

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self) -> None:
        self.mine = dist.get_rank()

    def test_sum(self) -> None:
        tensor = torch.tensor([float(self.mine)])
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 3.0)

    def test_one_rank_fails(self) -> None:
        self.assertNotEqual(self.rank, 1)

    def test_skipped(self) -> None:
        raise unittest.SkipTest("not today")


class Decorated(unittest.TestCase):
    __test__ = False  # run by hand below

    @spawn_threads_and_init_comms(world_size=4)
    def test_size(self) -> None:
        self.assertEqual(dist.get_world_size(), 4)

    @spawn_threads_and_init_comms(world_size=2)
    def test_fails_on_rank_1(self) -> None:
        self.assertEqual(dist.get_rank(), 0)


def outcome(case: unittest.TestCase) -> unittest.TestResult:
    result = unittest.TestResult()
    case.run(result)
    return result


def test_a_suite_passes_fails_and_skips_as_under_torch() -> None:
    assert outcome(Suite("test_sum")).wasSuccessful()
    failed = outcome(Suite("test_one_rank_fails"))
    assert len(failed.failures) + len(failed.errors) == 1
    assert outcome(Suite("test_skipped")).skipped


def test_a_decorated_method_runs_on_every_rank() -> None:
    assert outcome(Decorated("test_size")).wasSuccessful()
    assert not outcome(Decorated("test_fails_on_rank_1")).wasSuccessful()


def test_an_existing_class_becomes_a_simulated_one() -> None:
    from torch.testing._internal.common_distributed import MultiThreadedTestCase as Original

    original: Any = Original

    class Existing(original):  # type: ignore[misc]
        @property
        def world_size(self) -> int:
            return 2

        def setUp(self) -> None:
            super().setUp()
            self._spawn_threads()

        def test_backend(self) -> None:
            self.assertEqual(dist.get_backend(), "gloo")

    case = simulated(Existing)

    assert outcome(case("test_backend")).wasSuccessful()


class OnDevices(Suite):
    sim_backend = "nccl"

    def test_each_thread_has_a_device(self) -> None:
        tensor = torch.ones(1, device="cuda")
        dist.all_reduce(tensor)
        self.assertEqual((tensor.item(), tensor.get_device()), (3.0, self.rank))


class Sizes(unittest.TestCase):
    __test__ = False

    @spawn_threads_and_init_comms(world_size=2)
    def test_sizes_in_tensors(self) -> None:
        sizes, sent, room = torch.ones(2, dtype=torch.int64), torch.full((2,), dist.get_rank()), torch.zeros(2).long()
        dist.all_to_all_single(room, sent, sizes, sizes)
        self.assertEqual(room.tolist(), [0, 1])


def test_a_threaded_suite_over_nccl_has_devices() -> None:
    result = outcome(OnDevices("test_each_thread_has_a_device"))

    assert result.wasSuccessful(), result.errors or result.failures


def test_split_sizes_may_be_tensors_as_in_torch_s_threaded_group() -> None:
    result = outcome(Sizes("test_sizes_in_tensors"))

    assert result.wasSuccessful(), result.errors
