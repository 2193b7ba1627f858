"""A backend written in Python, the calls that are dispatched to it, and worlds of many ranks.

Covers, of the classes that PyTorch's test_c10d_common.py and test_c10d_gloo.py name: PythonProcessGroupExtensionTest,
GlooProcessGroupWithDispatchedCollectivesTests, LargeCommTest, ReduceOpTest.
"""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from tests.conformance.arms import Bodies, on_both_arms
from tests.conformance.echo import Echo, c10d, dist


@on_both_arms
class TestDispatchedCollectives(Bodies):
    ranks = 2

    def test_collectives(self) -> None:
        self.init()
        tensor = torch.full((2, 2), float(self.rank))
        dist.broadcast(tensor, 1)
        self.assertEqual(tensor, torch.ones(2, 2))
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2, 2), 2.0))
        dist.reduce(tensor, 0)
        if self.rank == 0:
            self.assertEqual(tensor, torch.full((2, 2), 4.0))
        own = torch.tensor([self.rank])
        outputs = [torch.tensor([-1]) for _ in range(2)]
        dist.all_gather(outputs, own)
        self.assertEqual(outputs, [torch.tensor([0]), torch.tensor([1])])
        dist.gather(own, outputs if self.rank == 0 else None, dst=0)
        dist.scatter(own, outputs if self.rank == 0 else None, src=0)
        self.assertEqual(own.item(), self.rank)
        dist.barrier()

    def test_all_to_all_single(self) -> None:
        self.init()
        output = torch.empty(4, dtype=torch.long)
        dist.all_to_all_single(output, torch.arange(4) + 10 * self.rank)
        self.assertEqual(output.tolist(), [2 * self.rank, 2 * self.rank + 1, 10 + 2 * self.rank, 11 + 2 * self.rank])
        uneven = torch.empty(3 if self.rank else 1, dtype=torch.long)
        sent = torch.arange(2) + 10 * self.rank
        receives, sends = ([1, 2], [0, 2]) if self.rank else ([1, 0], [1, 1])
        dist.all_to_all_single(uneven, sent, receives, sends)
        self.assertEqual(uneven.tolist(), [1, 10, 11] if self.rank else [0])

    def test_allgather_coalesced(self) -> None:
        self.init()
        outputs = [[torch.zeros(1), torch.zeros(2)] for _ in range(2)]
        dist.all_gather_coalesced(outputs, [torch.tensor([float(self.rank)]), torch.ones(2)])
        self.assertEqual(outputs, [[torch.tensor([float(rank)]), torch.ones(2)] for rank in range(2)])

    def test_allreduce_coalesced(self) -> None:
        self.init()
        tensors = [torch.ones(2), torch.full((3,), 2.0)]
        dist.all_reduce_coalesced(tensors)
        self.assertEqual(tensors, [torch.full((2,), 2.0), torch.full((3,), 4.0)])

    def test_monitored_barrier(self) -> None:
        self.init()
        dist.monitored_barrier(timeout=timedelta(seconds=5))
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Rank 1 failed to pass monitoredBarrier in 300 ms"):
                dist.monitored_barrier(timeout=timedelta(milliseconds=300))
        else:
            time.sleep(0.6)

    def test_init_process_group_optional_backend(self) -> None:
        dist.init_process_group(store=self.store(), rank=self.rank, world_size=self.world_size)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)

        self.assertEqual(tensor.item(), 2)

    def test_init_process_group_for_all_backends(self) -> None:
        self.init()
        group = c10d._get_default_group()

        self.assertEqual(group._get_backend(torch.device("cpu")).name(), "gloo")
        self.assertIn("gloo", dist.get_backend_config(group))
        self.assertTrue(dist.is_gloo_available())
        self.assertTrue(dist.is_backend_available("gloo"))
        self.assertFalse(dist.is_backend_available("nonexistent"))
        self.assertEqual(dist.Backend("GLOO"), "gloo")


@on_both_arms
class TestReduceOps(Bodies):
    ranks = 1

    def test_op_isinstance_of_reduceop(self) -> None:
        kinds = [
            getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
        ]
        for kind in kinds:
            self.assertIsInstance(kind, dist.ReduceOp)
        for scale in (torch.tensor(1.0), 2.0):
            self.assertIsInstance(torch._C._distributed_c10d._make_nccl_premul_sum(scale), dist.ReduceOp)

    def test_reduceop_copyable(self) -> None:
        for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
            kind = getattr(dist.ReduceOp, name)
            for copied in (copy.copy(kind), copy.deepcopy(kind), copy.copy(dist.ReduceOp(kind))):
                self.assertEqual(copied, kind)

    def test_reduceop_pickle(self) -> None:
        for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
            kind = getattr(dist.ReduceOp, name)
            self.assertEqual(pickle.loads(pickle.dumps(dist.ReduceOp(kind))), kind)

    def test_reduceop_equal(self) -> None:
        self.assertNotEqual(dist.ReduceOp.SUM, "some")
        self.assertTrue(dist.ReduceOp(dist.ReduceOp.SUM) == dist.ReduceOp.SUM)
        self.assertFalse(dist.ReduceOp(dist.ReduceOp.SUM) == dist.ReduceOp.MAX)


def _make_echo(store: Any, rank: int, size: int, timeout: timedelta) -> Echo:
    return Echo(rank, size)


@on_both_arms
class TestPythonBackend(Bodies):
    def register(self) -> None:
        dist.Backend.register_backend("echo", _make_echo)
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="6789")

    def world(self, backend: str) -> None:
        dist.init_process_group(backend, store=self.store(), rank=self.rank, world_size=self.world_size)

    def test_get_backend_name(self) -> None:
        self.assertEqual(Echo(0, 1).getBackendName(), "Echo")

    def test_backend_class_attr(self) -> None:
        self.register()

        self.assertEqual(dist.Backend.ECHO, "echo")
        self.assertIs(dist.Backend._plugins["ECHO"].creator_fn, _make_echo)

    def test_is_backend_available(self) -> None:
        self.assertFalse(dist.is_backend_available("echo"))
        self.register()
        self.assertTrue(dist.is_backend_available("echo"))

    def test_backend_config(self) -> None:
        self.register()
        config = dist.BackendConfig
        self.assertEqual(config(dist.Backend("gloo")).get_device_backend_map()["cpu"], "gloo")
        self.assertEqual(
            config(dist.Backend("cpu:gloo,cuda:echo")).get_device_backend_map(), {"cpu": "gloo", "cuda": "echo"}
        )
        for text in ("cpu:gloo,cuda", "cpu:gloo,cpu:echo"):
            with self.assertRaises(ValueError):
                config(dist.Backend(text))

    def test_collectives(self) -> None:
        self.register()
        self.world("echo")
        self.assertEqual((dist.get_rank(), dist.get_world_size()), (self.rank, 4))
        gathered = [torch.zeros(2, 2) for _ in range(2)]
        dist.all_gather(gathered, torch.ones(2, 2))
        self.assertEqual(gathered, [torch.ones(2, 2)] * 2)
        tensor = torch.ones(2, 2)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2, 2), 3.0))
        dist.broadcast(tensor, 0)
        self.assertEqual(tensor, torch.full((2, 2), 4.0))
        dist.barrier()
        output = torch.zeros(1)
        dist.reduce_scatter(output, [torch.tensor([float(rank)]) for rank in range(4)])
        self.assertEqual(output.item(), self.rank)

    def test_send_recv(self) -> None:
        self.register()
        self.world("echo")
        tensor = torch.zeros(2, 2)
        dist.send(tensor, (self.rank + 1) % 4)
        self.assertEqual(tensor, torch.ones(2, 2))
        dist.recv(tensor, (self.rank - 1) % 4)
        self.assertEqual(tensor, torch.full((2, 2), 3.0))
        with self.assertRaisesRegex(ValueError, "Invalid destination rank"):
            dist.send(tensor, dst=self.rank)


@on_both_arms
class TestLargeWorlds(Bodies):
    """Subsets of a world: some ranks call, the others do not, and all meet again at the end."""

    def check(self, call: Callable[[Any, list[int]], None]) -> None:
        self.init()
        ranks = [0, 2]
        group = dist.new_group(ranks)
        if self.rank in ranks:
            call(group, ranks)
        dist.barrier()

    def test_broadcast_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            tensor = torch.full((3,), float(self.rank))
            dist.broadcast(tensor, src=2, group=group)
            self.assertEqual(tensor, torch.full((3,), 2.0))

        self.check(call)

    def test_gather_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            outputs = [torch.zeros(1, dtype=torch.long) for _ in ranks] if self.rank == 2 else None
            dist.gather(torch.tensor([self.rank]), outputs, dst=2, group=group)
            if outputs is not None:
                self.assertEqual(torch.cat(outputs).tolist(), ranks)

        self.check(call)

    def test_scatter_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            parts = [torch.tensor([10 * rank]) for rank in ranks] if self.rank == 0 else None
            output = torch.zeros(1, dtype=torch.long)
            dist.scatter(output, parts, src=0, group=group)
            self.assertEqual(output.item(), 10 * self.rank)

        self.check(call)

    def test_object_collectives_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            everything: list[Any] = [None, None]
            dist.all_gather_object(everything, {"rank": self.rank}, group=group)
            self.assertEqual(everything, [{"rank": 0}, {"rank": 2}])
            gathered: Any = [None, None] if self.rank == 2 else None
            dist.gather_object(self.rank, gathered, dst=2, group=group)
            self.assertEqual(gathered, [0, 2] if self.rank == 2 else None)
            reported = [self.rank, "x" * self.rank]
            dist.broadcast_object_list(reported, src=2, group=group)
            self.assertEqual(reported, [2, "xx"])
            received: list[Any] = [None]
            dist.scatter_object_list(received, ["a", "b"] if self.rank == 0 else None, src=0, group=group)
            self.assertEqual(received, ["a" if self.rank == 0 else "b"])

        self.check(call)

    def test_send_recv_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            tensor = torch.tensor([self.rank])
            if self.rank == 0:
                dist.send(tensor, dst=2, group=group)
                dist.send_object_list(["hello"], dst=2, group=group)
            else:
                self.assertEqual(dist.recv(tensor, src=0, group=group), 0)
                objects: list[Any] = [None]
                dist.recv_object_list(objects, src=0, group=group)
                self.assertEqual((tensor.item(), objects), (0, ["hello"]))

        self.check(call)

    def test_batch_isend_irecv_subgroup(self) -> None:
        def call(group: Any, ranks: list[int]) -> None:
            peer = 2 - self.rank
            tensor = torch.tensor([-1])
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, torch.tensor([self.rank]), peer, group=group),
                    dist.P2POp(dist.irecv, tensor, peer, group=group),
                ]
            )
            for work in works:
                work.wait()
            self.assertEqual(tensor.item(), peer)

        self.check(call)
