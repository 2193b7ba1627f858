"""Behaviour of every backend of torch.distributed, here over Gloo: rendezvous, timeouts, groups, sequence numbers.

`seeds.py` says which of PyTorch's tests these are. There are also the bodies of AbstractCommTest (sequence numbers,
membership, warnings of outsiders, mismatched types), local-sync groups, debug levels, complex and boolean tensors.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from tests.c10d.worlds import calls_of_mixed_types
from tests.conformance.arms import Bodies, on_both_arms
from tests.conformance.echo import Echo, c10d, dist


@on_both_arms
class TestRendezvous(Bodies):
    ranks = 1

    def test_tcp_init(self) -> None:
        store, rank, size = next(dist.rendezvous("tcp://127.0.0.1:0", rank=0, world_size=1))

        self.assertEqual((rank, size), (0, 1))
        self.assertNotEqual(store.port, 0)

    def test_logging_init(self) -> None:
        os.environ.update(WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0")
        before = list(logging.root.handlers)
        dist.init_process_group("gloo", init_method="env://")

        self.assertEqual(logging.root.handlers, before)
        dist.destroy_process_group()

    def check_store_timeout(self, init_method: str) -> None:
        dist.init_process_group(
            "gloo", init_method=init_method, world_size=1, rank=0, timeout=timedelta(milliseconds=300)
        )
        started = time.monotonic()
        with self.assertRaisesRegex(RuntimeError, "(?i)timeout"):
            c10d._get_default_store().get("nobody sets this")

        waited = time.monotonic() - started
        self.assertTrue(0.29 < waited < 3, waited)
        dist.destroy_process_group()

    def test_default_store_timeout_gloo_file(self) -> None:
        self.check_store_timeout(f"file://{self.file_name}")

    def test_default_store_timeout_gloo_tcp(self) -> None:
        self.check_store_timeout("tcp://127.0.0.1:0")

    def test_store_used_for_two_worlds_one_after_the_other(self) -> None:
        for index in range(2):
            store = dist.FileStore(f"{self.file_name}{index}", 1)
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            dist.barrier()
            dist.destroy_process_group()
            Path(f"{self.file_name}{index}").unlink(missing_ok=True)

        self.assertFalse(dist.is_initialized())


@on_both_arms
class TestStoreBasedBarrier(Bodies):
    """Torch waits at least 10 s, so the three kinds of stores wait at the same time, with three ranks each."""

    ranks = 9

    def test_store_based_barrier(self) -> None:
        """Wait at each store for four ranks, of which one is missing."""
        kind, rank = divmod(self.rank, 3)
        port = 20_000 + sum(self.file_name.encode()) * 7 % 10_000
        store = (
            dist.FileStore(self.file_name)
            if kind == 0
            else dist.TCPStore("localhost", port, 4, is_master=rank == 0, wait_for_workers=False)
            if kind == 1
            else dist.HashStore()
        )
        with self.assertRaisesRegex(
            dist.DistStoreError, "Timed out initializing process group in store based barrier"
        ) as caught:
            c10d._store_based_barrier(
                rank=rank, store=store, group_name="_", rendezvous_count=4, timeout=timedelta(seconds=3)
            )
        self.assertIsInstance(caught.exception, dist.DistError)
        time.sleep(0.3)  # the first may host the store


@on_both_arms
class TestInitTimeouts(Bodies):
    ranks = 2

    def test_a_rank_that_never_comes_fails_the_init_of_the_other(self) -> None:
        if self.rank == 1:
            time.sleep(0.6)
            return
        started = time.monotonic()
        with self.refused("Wait timeout"):
            self.init(timeout=timedelta(milliseconds=300))

        self.assertTrue(0.25 < time.monotonic() - started < 5)

    def test_a_group_of_its_own_times_out_likewise(self) -> None:
        if self.rank == 1:
            time.sleep(0.6)
            return
        with self.refused("Wait timeout"):
            dist.ProcessGroupGloo(self.store(), self.rank, self.world_size, timedelta(milliseconds=300))


@on_both_arms
class TestSequenceNumbers(Bodies):
    def verify(self, group: Any, others: Any) -> int:
        """Check that the number is the same on all ranks; compares it in another group, whose calls do not count."""
        numbers: list[Any] = [None] * dist.get_world_size(others)
        dist.all_gather_object(numbers, group._get_sequence_number_for_group(), group=others)
        self.assertEqual(len(set(numbers)), 1)
        number: int = numbers[0]
        return number

    def check_incremented(self, group: Any, ranks: list[int]) -> None:
        others = dist.new_group(ranks=ranks, backend="gloo")
        if self.rank not in ranks:
            return
        first = self.verify(group, others)
        tensor = torch.ones(1)
        for i in range(10):
            dist.all_reduce(tensor, group=group)
            self.assertEqual(self.verify(group, others), first + i + 1)
        if dist.get_rank(group) not in (0, 2):  # these two fall behind
            dist.all_reduce(tensor, group=group, async_op=True)
        numbers: list[Any] = [None] * len(ranks)
        dist.all_gather_object(numbers, group._get_sequence_number_for_group(), group=others)
        behind = first + 10
        self.assertEqual(numbers, [behind if rank in (0, 2) else behind + 1 for rank in range(len(ranks))])

    def test_sequence_num_incremented_gloo_default(self) -> None:
        self.init()
        self.check_incremented(c10d._get_default_group(), list(range(self.world_size)))

    def test_sequence_num_incremented_gloo_subgroup(self) -> None:
        self.init()
        self.check_incremented(dist.new_group([0, 1, 2]), [0, 1, 2])

    def test_sequence_num_set_default_pg_gloo(self) -> None:
        self.init()
        number = c10d._get_default_group()._get_sequence_number_for_group()
        numbers: list[Any] = [None] * self.world_size
        dist.all_gather_object(numbers, number)

        self.assertEqual(set(numbers), {number})

    def test_sequence_num_set_gloo_new_group(self) -> None:
        self.init()
        group = dist.new_group([0, 1])
        if self.rank < 2:
            numbers: list[Any] = [None] * 2
            number = group._get_sequence_number_for_group()
            dist.all_gather_object(numbers, number, group=group)
            self.assertEqual(set(numbers), {number})


@on_both_arms
class TestGroups(Bodies):
    def test_gloo_warn_not_in_group(self) -> None:
        self.init()
        ranks = [0, 2]
        group = dist.new_group(ranks)
        one, several = torch.zeros(2, 2), [torch.zeros(2, 2) for _ in ranks]
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("all_gather", lambda: dist.all_gather(several, one, group=group)),
            ("all_reduce", lambda: dist.all_reduce(one, group=group)),
            ("barrier", lambda: dist.barrier(group=group)),
            ("broadcast", lambda: dist.broadcast(one, src=0, group=group)),
        ]
        for name, call in calls:
            if self.rank in ranks:
                call()
            else:
                with self.assertWarnsRegex(UserWarning, f".*{name}.*does not belong to.*"):
                    call()

    def test_gloo_rank_membership(self) -> None:
        self.init()
        group = dist.new_group(ranks=[1])
        stranger = Echo(self.rank, self.world_size)

        self.assertEqual((dist.get_group_rank(group, 1), dist.get_global_rank(group, 0)), (0, 1))
        self.assertEqual(dist.get_process_group_ranks(group), [1])
        for call, rank in ((dist.get_group_rank, 0), (dist.get_global_rank, 1)):
            with self.assertRaisesRegex(ValueError, "not part of group"):
                call(group, rank)
            with self.assertRaisesRegex(ValueError, "not registered"):
                call(stranger, 0)

    def test_gloo_barrier_device_ids(self) -> None:
        self.init()
        dist.barrier(device_ids=[self.rank])  # there are no devices; older versions of torch refused

    def test_new_group_local_sync(self) -> None:
        self.init()
        pair = [self.rank // 2 * 2, self.rank // 2 * 2 + 1]
        group = dist.new_group(pair, use_local_synchronization=True)
        tensor = torch.tensor([float(self.rank)])
        dist.all_reduce(tensor, group=group)

        self.assertEqual(tensor, torch.tensor([float(sum(pair))]))
        with self.assertRaisesRegex(ValueError, "not part of group"):
            dist.get_group_rank(group, (self.rank + 2) % 4)

    def test_new_group_local_sync_sanity_check(self) -> None:
        self.init()
        outsiders = [(self.rank + 1) % 4]
        self.assertIsNone(dist.new_group(outsiders, use_local_synchronization=True))

    def test_new_group_local_sync_duplicated_pg(self) -> None:
        self.init()
        pair = [self.rank // 2 * 2, self.rank // 2 * 2 + 1]
        groups = [dist.new_group(pair, use_local_synchronization=True) for _ in range(2)]
        tensors = [torch.tensor([float(self.rank + 1)]) for _ in groups]
        for group, tensor in zip(groups, tensors, strict=True):
            dist.all_reduce(tensor, group=group)

        self.assertNotEqual(groups[0].group_name, groups[1].group_name)
        self.assertEqual(tensors, [torch.tensor([float(sum(pair) + 2)])] * 2)

    def test_new_group_in_another_order_of_ranks(self) -> None:
        self.init()
        group = dist.new_group([3, 1, 0, 2])
        tensor = torch.tensor([self.rank])
        dist.broadcast(tensor, src=3, group=group)

        self.assertEqual(tensor.item(), 3)
        self.assertEqual(dist.get_process_group_ranks(group)[dist.get_rank(group)], self.rank)

    def test_group_rank_arguments(self) -> None:
        self.init()
        group = dist.new_group([1, 3])
        if self.rank not in (1, 3):
            return
        tensor = torch.tensor([self.rank])
        dist.broadcast(tensor, group_src=1, group=group)
        self.assertEqual(tensor.item(), 3)
        if self.rank == 1:
            dist.send(torch.tensor([11]), group_dst=1, group=group)
        else:
            dist.recv(tensor, group_src=0, group=group)
            self.assertEqual(tensor.item(), 11)

    def test_debug_level(self) -> None:
        names = {"OFF": dist.DebugLevel.OFF, "INFO": dist.DebugLevel.INFO, "DETAIL": dist.DebugLevel.DETAIL}
        for name, level in names.items():
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = name
            dist.set_debug_level_from_env()
            self.assertEqual(dist.get_debug_level(), level)
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "foo"
        with self.assertRaisesRegex(ValueError, "The value of TORCH_DISTRIBUTED_DEBUG must"):
            dist.set_debug_level_from_env()
        dist.set_debug_level(dist.DebugLevel.OFF)

    def test_get_and_destroy_twice(self) -> None:
        self.init()
        self.assertEqual((dist.get_rank(), dist.get_world_size(), dist.get_backend()), (self.rank, 4, "gloo"))
        dist.barrier()
        dist.destroy_process_group()

        with self.assertRaisesRegex(ValueError, "Default process group has not been initialized"):
            dist.get_rank()


@on_both_arms
class TestTensorTypes(Bodies):
    ranks = 2

    def test_tensor_dtype_mismatch(self) -> None:
        self.init()
        for call in calls_of_mixed_types(torch.ones(2, 2), [torch.zeros(2, 2) for _ in range(2)]):
            with self.assertRaisesRegex(ValueError, "tensors with different dtypes"):
                call()

    def test_tensor_dtype_complex(self) -> None:
        self.init()
        own = torch.view_as_complex(torch.full((4, 2), float(self.rank + 1)))
        gathered = [torch.zeros_like(own) for _ in range(2)]
        dist.all_gather(gathered, own)
        self.assertEqual(gathered, [torch.full((4,), complex(n, n)) for n in (1, 2)])
        reduced = own.clone()
        dist.all_reduce(reduced)
        self.assertEqual(reduced, torch.full((4,), 3 + 3j))
        whole = torch.zeros(8, dtype=torch.cfloat)
        dist.all_gather_into_tensor(whole, own)
        self.assertEqual(whole, torch.cat(gathered))

    def test_bool_tensors(self) -> None:
        self.init()
        own = torch.tensor([self.rank == 0, True])
        dist.broadcast(own, src=0)
        self.assertEqual(own.tolist(), [True, True])
        mine = torch.tensor([self.rank == 0, False])
        gathered = [torch.zeros(2, dtype=torch.bool) for _ in range(2)]
        dist.all_gather(gathered, mine)
        self.assertEqual([tensor.tolist() for tensor in gathered], [[True, False], [False, False]])
        dist.all_reduce(mine, op=dist.ReduceOp.BOR)
        self.assertEqual(mine.tolist(), [True, False])

    def test_broadcast_coalesced_gloo_cpu(self) -> None:
        self.init()
        sizes = [10, 10, 200, 3, 3, 1, 100]
        types = [torch.float, torch.double, torch.float, torch.half, torch.float, torch.long, torch.float]
        for root in range(2):
            expected = [torch.full((size,), root + 1, dtype=dtype) for size, dtype in zip(sizes, types, strict=True)]
            tensors = [tensor.clone() if self.rank == root else torch.zeros_like(tensor) for tensor in expected]
            dist._broadcast_coalesced(dist.group.WORLD, tensors, 256, root)
            self.assertEqual(tensors, expected)
