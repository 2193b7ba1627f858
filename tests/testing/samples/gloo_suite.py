"""A suite for torch's multi-process test case, in the shape of PyTorch's test_c10d_gloo.py. It knows no simdist.

Some of its tests fail or are skipped, on purpose: outcomes are compared, and these are outcomes too. One changed import
runs it on simulated ranks: `MultiProcessTestCase` from `simdist.testing`.
"""

# mypy: ignore-errors
# (torch's test helpers are untyped, and this is a suite as people have it)

import math
import os
import signal
import sys
import time
import unittest
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
import torch.distributed as c10d
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.common_distributed import requires_gloo, skip_if_lt_x_gpu

# isort: split
from torch.testing._internal.common_distributed import MultiProcessTestCase

LOOPBACK = "lo"


def simple_reduce_tests(rank: int, world_size: int) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    op = c10d.ReduceOp
    total = world_size * (world_size + 1) / 2
    tests: list[tuple[Any, torch.Tensor, torch.Tensor]] = [
        (op.SUM, torch.tensor([rank + 1.0]), torch.tensor([total])),
        (op.PRODUCT, torch.tensor([rank + 1.0]), torch.tensor([float(math.factorial(world_size))])),
        (op.MIN, torch.tensor([rank + 1.0]), torch.tensor([1.0])),
        (op.MAX, torch.tensor([rank + 1.0]), torch.tensor([float(world_size)])),
        (op.AVG, torch.tensor([rank + 1.0]), torch.tensor([total / world_size])),
        (op.SUM, torch.tensor([complex(rank + 1, rank + 1)]), torch.tensor([complex(total, total)])),
    ]
    for i in range(4):
        bits = torch.tensor([rank | (1 << i)], dtype=torch.int32)
        tests.append((op.BAND, bits, torch.tensor([1 << i], dtype=torch.int32)))
    for i in range(1, 5):
        values = [rank * i + j for j in range(i)]
        everybody = range(world_size * i)
        for which, fold in ((op.BOR, int.__or__), (op.BXOR, int.__xor__)):
            given, wanted = (torch.tensor([reduce(fold, each)], dtype=torch.int32) for each in (values, everybody))
            tests.append((which, given, wanted))
    return tests


class ProcessGroupGlooTest(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def opts(self, threads: int = 2) -> Any:
        opts = c10d.ProcessGroupGloo._Options()
        opts._timeout = 50.0
        opts._devices = [c10d.ProcessGroupGloo.create_device(interface=LOOPBACK)]
        opts._threads = threads
        return opts

    def create_group(self) -> Any:
        store = c10d.FileStore(self.file_name, self.world_size)
        pg = c10d.ProcessGroupGloo(store, self.rank, self.world_size, self.opts())
        dist.barrier(group=pg)
        return pg

    # -- reductions --------------------------------------------------------------------------------------------------

    @requires_gloo()
    def test_empty_tensors(self) -> None:
        pg = self.create_group()
        xs = [torch.FloatTensor([])]
        fut = pg.broadcast(xs).get_future()
        fut.wait()
        self.assertEqual(0, fut.value()[0].numel())

    @requires_gloo()
    def test_allreduce_basics(self) -> None:
        pg = self.create_group()
        for op, given, wanted in simple_reduce_tests(self.rank, self.world_size):
            opts = c10d.AllreduceOptions()
            opts.reduceOp = op
            fut = pg.allreduce([given.clone()], opts).get_future()
            fut.wait()
            self.assertEqual(wanted, fut.value()[0])
        fut = pg.allreduce(torch.tensor([self.rank + 1.0])).get_future()
        fut.wait()
        self.assertEqual(torch.tensor([10.0]), fut.value()[0])

    @requires_gloo()
    def test_allreduce_of_float16(self) -> None:
        pg = self.create_group()
        torch.manual_seed(self.rank)
        tensor = ((torch.rand(200, 1) * 2 - 1) * 65504 / self.world_size).to(torch.float16)
        output = [[torch.zeros_like(tensor) for _ in range(self.world_size)]]
        pg.allgather(output, [tensor]).wait()
        total = torch.stack(output[0]).sum(dim=0)
        pg.allreduce([tensor]).wait()
        self.assertEqual(total, tensor, rtol=1e-2, atol=1e-3)

    @requires_gloo()
    def test_allreduce_stress(self) -> None:
        pg = self.create_group()
        inputs = [torch.tensor([i + self.rank]) for i in range(100)]
        futures = [pg.allreduce(each).get_future() for each in inputs]
        for i, future in enumerate(futures):
            future.wait()
            self.assertEqual(torch.tensor([4 * i + 6]), future.value()[0], msg=f"Mismatch in iteration {i}")

    @requires_gloo()
    def test_allreduce_coalesced_basics(self) -> None:
        pg = self.create_group()
        opts = c10d.AllreduceCoalescedOptions()
        tensors = [torch.tensor([self.rank + 1.0]), torch.tensor([(self.rank + 1.0) ** 2])]
        pg.allreduce_coalesced(tensors, opts).wait()
        self.assertEqual([torch.tensor([10.0]), torch.tensor([30.0])], tensors)

    @requires_gloo()
    def test_reduce_basics(self) -> None:
        pg = self.create_group()
        for root in range(self.world_size):
            opts = c10d.ReduceOptions()
            opts.rootRank = root
            tensor = torch.tensor([self.rank + 1.0])
            pg.reduce([tensor], opts).wait()
            if self.rank == root:
                self.assertEqual(torch.tensor([10.0]), tensor)

    @requires_gloo()
    def test_reduce_scatter(self) -> None:
        self.start()
        torch.manual_seed(42)
        inputs = [torch.rand(i) for i in range(self.world_size)]
        output = torch.empty(self.rank)
        work = dist.reduce_scatter(output, inputs, async_op=True)
        assert work is not None
        work.wait()
        self.assertTrue(torch.allclose(output, inputs[self.rank] * self.world_size))

    @requires_gloo()
    def test_reduce_scatter_tensor(self) -> None:
        self.start()
        given = torch.arange(8.0) + self.rank
        output = torch.empty(2)
        dist.reduce_scatter_tensor(output, given)
        self.assertEqual(output, 4 * torch.arange(8.0)[2 * self.rank : 2 * self.rank + 2] + 6)

    # -- movement ----------------------------------------------------------------------------------------------------

    @requires_gloo()
    def test_broadcast_basics(self) -> None:
        pg = self.create_group()
        for root in range(self.world_size):
            opts = c10d.BroadcastOptions()
            opts.rootRank = root
            opts.rootTensor = 0
            fut = pg.broadcast([torch.tensor([self.rank])], opts).get_future()
            fut.wait()
            self.assertEqual(torch.tensor([root]), fut.value()[0])

    @requires_gloo()
    def test_broadcast_stress(self) -> None:
        pg = self.create_group()
        inputs = [torch.tensor([i * self.world_size + self.rank]) for i in range(100)]
        works = [pg.broadcast(each, root=i % self.world_size) for i, each in enumerate(inputs)]
        for i, work in enumerate(works):
            work.wait()
            self.assertEqual(torch.tensor([i * self.world_size + i % self.world_size]), inputs[i])

    @requires_gloo()
    def test_allgather_basics(self) -> None:
        pg = self.create_group()
        output = [[torch.tensor([-1]) for _ in range(self.world_size)]]
        pg.allgather(output, [torch.tensor([self.rank])]).wait()
        self.assertEqual([[torch.tensor([i]) for i in range(self.world_size)]], output)

    @requires_gloo()
    def test_allgather_into_tensor_coalesced(self) -> None:
        self.start()
        torch.manual_seed(42)
        inputs = [torch.rand(size, size) for size in (5, 10, 15)]
        outputs = [torch.empty(size * self.world_size, size) for size in (5, 10, 15)]
        group: Any = dist.group.WORLD
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        for output, each in zip(outputs, inputs, strict=True):
            self.assertTrue(torch.allclose(output, torch.cat([each] * self.world_size)))

    @requires_gloo()
    def test_gather_basics(self) -> None:
        pg = self.create_group()
        for root in range(self.world_size):
            opts = c10d.GatherOptions()
            opts.rootRank = root
            outputs = [[torch.tensor([-1]) for _ in range(self.world_size)]] if self.rank == root else []
            pg.gather(outputs, [torch.tensor([self.rank])], opts).wait()
            if self.rank == root:
                self.assertEqual([torch.tensor([i]) for i in range(self.world_size)], outputs[0])

    @requires_gloo()
    def test_scatter_basics(self) -> None:
        pg = self.create_group()
        given = [torch.tensor([self.rank]) for _ in range(self.world_size)]
        outputs = [torch.tensor([-1]) for _ in range(self.world_size)]
        works = []
        for root in range(self.world_size):
            opts = c10d.ScatterOptions()
            opts.rootRank = root
            works.append(pg.scatter([outputs[root]], [given] if root == self.rank else [], opts))
        for work in works:
            work.wait()
        self.assertEqual([torch.tensor([i]) for i in range(self.world_size)], outputs)

    @requires_gloo()
    def test_all_to_all(self) -> None:
        self.start()
        output = torch.empty(self.world_size)
        dist.all_to_all_single(output, torch.arange(4.0) + 10 * self.rank)
        self.assertEqual(output, torch.tensor([10.0 * i + self.rank for i in range(4)]))

    @requires_gloo()
    def test_objects(self) -> None:
        self.start()
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, {"rank": self.rank})
        self.assertEqual([each["rank"] for each in gathered], [0, 1, 2, 3])
        shared = [{"from": self.rank}]
        dist.broadcast_object_list(shared, src=2)
        self.assertEqual(shared, [{"from": 2}])

    # -- point to point ----------------------------------------------------------------------------------------------

    @requires_gloo()
    def test_send_recv_all_to_all(self) -> None:
        pg = self.create_group()
        outgoing = [torch.tensor([self.rank]) for _ in range(self.world_size)]
        incoming = [torch.tensor([-1]) for _ in range(self.world_size)]
        others = [i for i in range(self.world_size) if i != self.rank]
        sends = [pg.send([outgoing[i]], i, 0) for i in others]
        receives = [pg.recv([incoming[i]], i, 0) for i in others]
        for work in sends + receives:
            work.wait()
        for i in others:
            self.assertEqual(torch.tensor([i]), incoming[i])

    @requires_gloo()
    def test_recv_from_anyone(self) -> None:
        self.start()
        if self.rank:
            dist.send(torch.tensor([float(self.rank)]), 0)
            return
        box, senders = torch.zeros(1), []
        for _ in range(3):
            senders.append(dist.recv(box))
            self.assertEqual(box.item(), float(senders[-1]))
        self.assertEqual(sorted(senders), [1, 2, 3])

    @requires_gloo()
    def test_batch_isend_irecv(self) -> None:
        self.start()
        right, left = (self.rank + 1) % 4, (self.rank - 1) % 4
        given, taken = torch.full((3,), float(self.rank)), torch.zeros(3)
        operations = [dist.P2POp(dist.isend, given, right), dist.P2POp(dist.irecv, taken, left)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        self.assertEqual(taken, torch.full((3,), float(left)))

    @requires_gloo()
    def test_tags(self) -> None:
        self.start()
        if self.rank == 0:
            requests = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (7, 8)]
            for request in requests:
                assert request is not None
                request.wait()
        elif self.rank == 1:
            box = torch.zeros(1)
            for tag in (8, 7):
                dist.recv(box, 0, tag=tag)
                self.assertEqual(box.item(), float(tag))

    # -- what is refused ---------------------------------------------------------------------------------------------

    @requires_gloo()
    def test_broadcast_checks(self) -> None:
        pg = self.create_group()
        t1, t2, t3 = torch.zeros([1]), torch.zeros([1], dtype=torch.float64), torch.zeros([2])
        for root_rank, root_tensor, tensors, text in (
            (-1, 0, [t1], "invalid root rank"),
            (self.world_size, 0, [t1], "invalid root rank"),
            (self.rank, -1, [t1], "invalid root tensor"),
            (self.rank, 0, [], "invalid root tensor"),
            (self.rank, 0, [t1, t2], "invalid tensor type"),
            (self.rank, 0, [t1, t3], "invalid tensor size"),
        ):
            opts = c10d.BroadcastOptions()
            opts.rootRank, opts.rootTensor = root_rank, root_tensor
            with self.assertRaisesRegex(RuntimeError, text):
                pg.broadcast(tensors, opts)

    @requires_gloo()
    def test_allreduce_checks(self) -> None:
        pg = self.create_group()
        t1, t2, t3 = torch.zeros([1]), torch.zeros([1], dtype=torch.float64), torch.zeros([2])
        for tensors, text in (
            ([], "requires non-empty tensor list"),
            ([t1, t2], "invalid tensor type"),
            ([t1, t3], "invalid tensor size"),
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                pg.allreduce(tensors, c10d.AllreduceOptions())

    @requires_gloo()
    def test_scatter_checks(self) -> None:
        pg = self.create_group()
        t1 = torch.zeros([1])
        opts = c10d.ScatterOptions()
        opts.rootRank = self.rank
        with self.assertRaisesRegex(RuntimeError, "Incorrect input list size 3. Input list size should be 4"):
            pg.scatter([t1], [[t1] * 3], opts)
        opts.rootRank = (self.rank + 1) % self.world_size
        with self.assertRaisesRegex(RuntimeError, "requires empty input on non-root"):
            pg.scatter([t1], [[t1] * 4], opts)

    def leave_together(self) -> None:
        """Nobody's process ends, and closes its connections, while rank 0 still waits."""
        store = c10d.FileStore(f"{self.file_name}_end", self.world_size)
        if self.rank == 0:
            store.set("rank 0 is done", "")
        store.wait(["rank 0 is done"], timedelta(seconds=30))

    # -- time --------------------------------------------------------------------------------------------------------

    @requires_gloo()
    def test_allreduce_op_timeout(self) -> None:
        pg = self.create_group()
        opts = c10d.AllreduceOptions()
        opts.timeout = timedelta(milliseconds=1)
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 1ms"):
                pg.allreduce([torch.zeros(1)], opts).wait()
        self.leave_together()

    @requires_gloo()
    def test_allreduce_overall_timeout(self) -> None:
        pg = self.create_group()
        pg.set_timeout(timedelta(milliseconds=1))
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 1ms"):
                pg.allreduce([torch.zeros(1)]).wait()
        self.leave_together()

    @requires_gloo()
    def test_a_rank_that_comes_late(self) -> None:
        self.start()
        if self.rank == 1:
            time.sleep(5)
        begin = time.monotonic()
        dist.barrier()
        waited = time.monotonic() - begin
        self.assertTrue(waited < 2 if self.rank == 1 else waited > 4)

    @requires_gloo()
    def test_recv_timeout(self) -> None:
        self.start()
        if self.rank == 0:
            box = torch.zeros(1)
            request = dist.irecv(box, 1)
            assert request is not None
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 1000ms for recv"):
                request.wait(timedelta(seconds=1))
        self.leave_together()

    @requires_gloo()
    def test_barrier_timeout(self) -> None:
        store = c10d.FileStore(self.file_name, self.world_size)
        limit = timedelta(seconds=5)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=limit)
        dist.barrier()
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 5000ms"):
                dist.barrier()
        self.leave_together()

    @requires_gloo()
    def test_set_gloo_pg_timeout(self) -> None:
        pg = self.create_group()
        pg.allreduce(torch.rand(10)).wait()
        self.assertEqual(pg.options._timeout, timedelta(seconds=50))
        pg._set_default_timeout(timedelta(seconds=23))
        self.assertEqual(pg.options._timeout, timedelta(seconds=23))

    @requires_gloo()
    def test_monitored_barrier_names_the_rank_that_is_missing(self) -> None:
        self.start()
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Rank 3 failed to pass monitoredBarrier in 1000 ms"):
                dist.monitored_barrier(timeout=timedelta(seconds=1))
        elif self.rank != 3:
            with self.assertRaises(RuntimeError):
                dist.monitored_barrier(timeout=timedelta(seconds=1))
        self.leave_together()

    # -- groups and stores -------------------------------------------------------------------------------------------

    def start(self) -> None:
        store = c10d.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    @requires_gloo()
    def test_sub_groups(self) -> None:
        self.start()
        low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
        tensor = torch.tensor([float(self.rank)])
        dist.all_reduce(tensor, group=low if self.rank < 2 else high)
        self.assertEqual(tensor.item(), 1.0 if self.rank < 2 else 5.0)

    @requires_gloo()
    def test_a_group_after_another(self) -> None:
        for round in range(2):
            where = f"file://{self.file_name}_{round}"
            dist.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.world_size)
            dist.barrier()
            dist.destroy_process_group()
        self.assertFalse(dist.is_initialized())

    @requires_gloo()
    def test_device_mesh(self) -> None:
        self.start()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        tensor = torch.tensor([float(self.rank)])
        dist.all_reduce(tensor, group=mesh.get_group("inner"))
        self.assertEqual(tensor.item(), 1.0 if self.rank < 2 else 5.0)

    @requires_gloo()
    def test_stores(self) -> None:
        store = c10d.PrefixStore("mine", c10d.FileStore(self.file_name, self.world_size))
        self.assertGreater(store.add("arrived", 1), 0)
        store.set(f"from {self.rank}", str(self.rank))
        store.wait([f"from {rank}" for rank in range(4)], timedelta(seconds=20))
        self.assertEqual(store.get("from 3"), b"3")
        with self.assertRaisesRegex(RuntimeError, "(?i)timeout|timed out"):
            store.wait(["never"], timedelta(seconds=1))

    # -- how tests end -----------------------------------------------------------------------------------------------

    @skip_if_lt_x_gpu(8)
    @requires_gloo()
    def test_broadcast_basics_cuda(self) -> None:
        self.fail("there are no eight GPUs")

    @unittest.skip("not today")
    def test_skipped_by_a_decorator(self) -> None:
        self.fail("skipped")

    def test_skipped_inside(self) -> None:
        raise unittest.SkipTest("not today either")

    @unittest.expectedFailure
    def test_expected_failure(self) -> None:
        self.assertEqual(self.rank, 0)

    def test_fails_on_one_rank(self) -> None:
        self.start()
        dist.barrier()
        self.assertNotEqual(self.rank, 2, "rank 2 is to blame")

    @requires_gloo()
    def test_survivors_of_a_rank_that_leaves(self) -> None:
        self.start()
        dist.barrier()
        if self.rank == 3:
            os._exit(0)
        with self.assertRaisesRegex(RuntimeError, "Connection|reset|closed"):
            dist.all_reduce(torch.ones(1000))


class ExitCodesTest(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self.special_return_code_checks = {
            test.__wrapped__: code
            for test, code in ((self.test_exit_code, 3), (self.test_abort, -signal.SIGABRT))
            if hasattr(test, "__wrapped__")  # only of the method that runs
        }
        self.skip_return_code_checks = [getattr(self.test_any_exit_code, "__wrapped__", None)]
        self._spawn_processes()

    def test_exit_code(self) -> None:
        sys.exit(3)

    def test_abort(self) -> None:
        os.abort()

    def test_any_exit_code(self) -> None:
        sys.exit(10 + 1 + self.rank)

    def test_unexpected_exit_code(self) -> None:
        sys.exit(4)

    def test_world_size_is_a_property(self) -> None:
        store = c10d.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        self.assertEqual(dist.get_world_size(), 2)


if __name__ == "__main__":
    unittest.main()
