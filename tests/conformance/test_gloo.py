"""ProcessGroupGloo's collectives, called on the group itself.

`seeds.py` says which of PyTorch's tests these are. There are also reduce's checks, basics and stress.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from tests.conformance.arms import Bodies, on_both_arms, options
from tests.conformance.operands import FIRST, ROUNDS, Tensor, dist, mixed_types, reductions, sparse_operands, value_of


@on_both_arms
class TestBroadcast(Bodies):
    def test_broadcast_checks(self) -> None:
        group = self.gloo()
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
        sparse = torch.sparse_coo_tensor(FIRST, [1.0], size=(1,))

        def refused(text: str, tensors: list[Tensor], root: int, tensor: int = 0) -> None:
            with self.refused(f"ProcessGroupGloo::broadcast: {text}"):
                group.broadcast(tensors, options(dist.BroadcastOptions, rootRank=root, rootTensor=tensor))

        refused("invalid root rank: -1", [one], -1)
        refused("invalid root rank: 4", [one], 4)
        refused("invalid root tensor: -1", [one], self.rank, -1)
        refused("invalid root tensor: 1", [one], self.rank, 1)
        refused("invalid root tensor: 0", [], self.rank)
        refused("only supports dense tensors", [sparse], self.rank)
        refused("invalid tensor size at index 0 (expected (1), got (2))", [one, two], self.rank)
        with self.refused(mixed_types("broadcast", 0)):
            group.broadcast([one, double], options(dist.BroadcastOptions, rootRank=self.rank))

    def test_broadcast_basics(self) -> None:
        group = self.gloo()

        def broadcast(tensors: list[Tensor], root: int, tensor: int) -> Any:
            return value_of(group.broadcast(tensors, options(dist.BroadcastOptions, rootRank=root, rootTensor=tensor)))

        for root in range(self.world_size):
            self.assertEqual(broadcast([torch.tensor([self.rank])], root, 0), [torch.tensor([root])])
            for index in range(2):
                pair = [torch.tensor([2.0 * self.rank]), torch.tensor([2.0 * self.rank + 1])]
                self.assertEqual(broadcast(pair, root, index), [torch.tensor([2.0 * root + index])] * 2)
                self.assertEqual(pair, [torch.tensor([2.0 * root + index])] * 2)
            number = torch.tensor([complex(self.rank, self.rank)])
            self.assertEqual(broadcast([number], root, 0), [torch.tensor([complex(root, root)])])
        self.assertEqual(value_of(group.broadcast(torch.tensor([self.rank + 1.0]), root=0)), [torch.tensor([1.0])])

    def test_broadcast_stress(self) -> None:
        group = self.gloo(threads=8)
        tensors = [torch.tensor([i * self.world_size + self.rank]) for i in range(ROUNDS)]
        works = [group.broadcast(tensor, root=i % self.world_size) for i, tensor in enumerate(tensors)]
        for work in works:
            work.wait()

        roots = [i * self.world_size + i % self.world_size for i in range(ROUNDS)]
        self.assertEqual(torch.cat(tensors).tolist(), roots)

    def test_empty_tensors(self) -> None:
        group = self.gloo()
        empty = torch.FloatTensor([])
        value = value_of(group.broadcast([empty]))

        self.assertEqual(value[0].numel(), 0)
        self.assertIs(value[0].dtype, torch.float32)

    def test_multi_device_constructor(self) -> None:
        opts = dist.ProcessGroupGloo._Options()
        opts._timeout = 5.0
        opts._devices = [dist.ProcessGroupGloo.create_device(interface="lo") for _ in range(2)]
        group = dist.ProcessGroupGloo(self.store(), self.rank, self.world_size, opts)
        futures = [group.allreduce(torch.ones(i + 1)).get_future() for i in range(4)]

        self.assertEqual([future.wait() for future in futures], [[torch.full((i + 1,), 4.0)] for i in range(4)])


@on_both_arms
class TestAllReduce(Bodies):
    def test_allreduce_checks(self) -> None:
        group = self.gloo()
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)

        with self.refused("ProcessGroupGloo::allreduce: requires non-empty tensor list"):
            group.allreduce([], dist.AllreduceOptions())
        with self.refused(mixed_types("allreduce", 0)):
            group.allreduce([one, double], dist.AllreduceOptions())
        with self.refused("ProcessGroupGloo::allreduce: invalid tensor size at index 0 (expected (1), got (2))"):
            group.allreduce([one, two], dist.AllreduceOptions())

    def test_allreduce_op_timeout(self) -> None:
        group = self.gloo()
        opts = options(dist.AllreduceOptions, timeout=timedelta(milliseconds=1))

        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 1ms"):
                group.allreduce([torch.zeros(1)], opts).wait()

    def test_allreduce_overall_timeout(self) -> None:
        group = self.gloo()
        group.set_timeout(timedelta(milliseconds=1))

        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 1ms"):
                group.allreduce([torch.zeros(1)]).wait()

    def test_set_gloo_pg_timeout(self) -> None:
        group = self.gloo()
        group.allreduce(torch.ones(10))
        before = group.options._timeout
        group._set_default_timeout(timedelta(seconds=23))

        self.assertEqual((before, group.options._timeout), (timedelta(seconds=50), timedelta(seconds=23)))

    def test_allreduce_basics(self) -> None:
        group = self.gloo()
        for kind, own, expected in reductions(self.rank, self.world_size):
            value = value_of(group.allreduce([own], options(dist.AllreduceOptions, reduceOp=kind)))
            self.assertEqual(value, [expected])
        self.assertEqual(value_of(group.allreduce(torch.tensor([self.rank + 1.0]))), [torch.tensor([10.0])])

    def test_allreduce_of_several_tensors_of_a_rank(self) -> None:
        group = self.gloo()
        size = self.world_size
        for kind, first, result in (
            (dist.ReduceOp.SUM, 0, size * (2 * size - 1)),
            (dist.ReduceOp.PRODUCT, 1, math.factorial(2 * size)),
            (dist.ReduceOp.MIN, 1, 1),
            (dist.ReduceOp.MAX, 1, 2 * size),
        ):
            pair = [torch.tensor([2.0 * self.rank + first + j]) for j in range(2)]
            value = value_of(group.allreduce(pair, options(dist.AllreduceOptions, reduceOp=kind)))
            self.assertEqual(value, [torch.tensor([float(result)])] * 2)
        pair = [torch.tensor([self.rank + 1.0]), torch.tensor([self.rank + 1.0])]
        value = value_of(group.allreduce(pair, options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.AVG)))
        self.assertEqual(value, [torch.tensor([5.0]), torch.tensor([20.0])])  # only the first is divided

    def test_allreduce_basics_in_half_precision(self) -> None:
        group = self.gloo()
        torch.manual_seed(self.rank)
        own = ((torch.rand(200, 1) * 2 - 1) * 65504 / self.world_size).to(torch.float16)
        gathered = value_of(group.allgather([[torch.zeros_like(own) for _ in range(self.world_size)]], [own]))
        total = torch.stack(gathered).sum(dim=0)

        self.assertEqual(value_of(group.allreduce([own]))[0], total, rtol=1e-2, atol=1e-3)

    def test_allreduce_stress(self) -> None:
        group = self.gloo(threads=8)
        futures = [group.allreduce(torch.tensor([i + self.rank])).get_future() for i in range(ROUNDS)]

        self.assertEqual([future.wait()[0].item() for future in futures], [4 * i + 6 for i in range(ROUNDS)])


@on_both_arms
class TestCoalescedAllReduce(Bodies):
    def test_allreduce_coalesced_checks(self) -> None:
        group = self.gloo()
        one, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
        sparse = torch.sparse_coo_tensor(FIRST, [1], size=(1,))

        def refused(text: str, tensors: list[Tensor]) -> None:
            with self.refused(f"ProcessGroupGloo::allreduce_coalesced: {text}"):
                group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())

        refused("requires non-empty tensor list", [])
        refused("tensors must all have the same type", [one, double])
        refused("invalid tensor layout at index 1 (expected Strided, got Sparse)", [one, sparse])
        refused("unsupported layout", [sparse, sparse.clone()])

    def test_allreduce_coalesced_basics(self) -> None:
        group = self.gloo()
        rank, size = self.rank, self.world_size
        for kind, own, expected in (
            (dist.ReduceOp.SUM, (rank + 1, (rank + 1) ** 2), (10, 30)),
            (dist.ReduceOp.PRODUCT, (rank + 1, rank + 2), (math.factorial(size), math.factorial(size + 1))),
            (dist.ReduceOp.MIN, (rank, rank + 1), (0, 1)),
            (dist.ReduceOp.MAX, (rank + 1, rank + 2), (size, size + 1)),
        ):
            tensors = [torch.tensor([float(number)]) for number in own]
            opts = options(dist.AllreduceCoalescedOptions, reduceOp=kind)
            value = value_of(group.allreduce_coalesced(tensors, opts))
            self.assertEqual(value, [torch.tensor([float(number)]) for number in expected])

    def test_allreduce_coalesced_stress(self) -> None:
        group = self.gloo(threads=8)
        futures = [group.allreduce_coalesced(2 * [torch.tensor([i + self.rank])]).get_future() for i in range(ROUNDS)]

        sums = [[tensor.item() for tensor in future.wait()] for future in futures]
        self.assertEqual(sums, [[4 * i + 6] * 2 for i in range(ROUNDS)])

    def test_allreduce_coalesced_async(self) -> None:
        self.init()
        futures = [dist.all_reduce_coalesced(2 * [torch.tensor([i + self.rank])], async_op=True) for i in range(2)]
        torch.futures.wait_all(futures)

        self.assertEqual([future.wait() for future in futures], [2 * [torch.tensor([4 * i + 6])] for i in range(2)])


@on_both_arms
class TestSparseAllReduce(Bodies):
    def test_sparse_allreduce_checks(self) -> None:
        group = self.gloo()
        dense = torch.zeros(1)
        small, large = (torch.sparse_coo_tensor(FIRST, [1], size=(length,)) for length in (2, 4))

        def refused(text: str, tensors: list[Tensor], **values: Any) -> None:
            with self.refused(f"ProcessGroupGloo::allreduce: {text}"):
                group.allreduce(tensors, options(dist.AllreduceOptions, **values))

        refused("requires non-empty tensor list", [])
        refused("invalid tensor layout at index 1 (expected Strided, got Sparse)", [dense, small])
        refused("invalid tensor size at index 0 (expected (2), got (4))", [small, large])
        only_sums = "unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)"
        for kind in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            refused(only_sums, [large], reduceOp=kind)

    def test_sparse_allreduce_basics(self) -> None:
        group = self.gloo()
        for per_rank in (1, 2):
            for tensors, total in sparse_operands(self.rank, self.world_size, per_rank):
                value = value_of(group.allreduce(tensors))
                self.assertEqual(tensors, [total] * per_rank)
                self.assertEqual(value, [total] * per_rank)


@on_both_arms
class TestReduce(Bodies):
    def test_reduce_checks(self) -> None:
        group = self.gloo()
        one = torch.zeros(1)

        def refused(text: str, tensors: list[Tensor], root: int, tensor: int = 0) -> None:
            with self.refused(f"ProcessGroupGloo::reduce: {text}"):
                group.reduce(tensors, options(dist.ReduceOptions, rootRank=root, rootTensor=tensor))

        refused("invalid root rank: -1", [one], -1)
        refused("invalid root rank: 4", [one], 4)
        refused("invalid root tensor: 1", [one], self.rank, 1)
        refused("requires a single-element tensor list", [one, one], self.rank)

    def test_reduce_basics(self) -> None:
        group = self.gloo()
        for kind, own, expected in reductions(self.rank, self.world_size):
            for root in range(self.world_size):
                opts = options(dist.ReduceOptions, reduceOp=kind, rootRank=root, rootTensor=0)
                value = value_of(group.reduce([own.clone()], opts))
                if root == self.rank:
                    self.assertEqual(value, [expected])

    def test_reduce_stress(self) -> None:
        group = self.gloo(threads=8)
        rounds = ROUNDS // 4
        tensors = [torch.tensor([i + self.rank]) for i in range(rounds) for _ in range(self.world_size)]
        works = [
            group.reduce([tensor], options(dist.ReduceOptions, rootRank=i % self.world_size))
            for i, tensor in enumerate(tensors)
        ]
        for work in works:
            work.wait()

        mine = [tensors[i * self.world_size + self.rank].item() for i in range(rounds)]
        self.assertEqual(mine, [4 * i + 6 for i in range(rounds)])


@on_both_arms
class TestReduceScatter(Bodies):
    def test_reduce_scatter(self) -> None:
        self.init()
        torch.manual_seed(42)
        inputs = [torch.rand(length) for length in range(self.world_size)]  # a different length for each rank
        output = torch.empty(self.rank)
        dist.reduce_scatter(output, inputs, async_op=True).wait()

        self.assertEqual(output, inputs[self.rank] * self.world_size)

    def test_reduce_scatter_checks(self) -> None:
        group = self.gloo()
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)

        with self.refused("reduce_scatter only supports 1 output"):
            group.reduce_scatter([one, one], [[one] * 4])
        with self.refused("requires input/output tensor lists to have the same length"):
            group.reduce_scatter([one], [])
        with self.refused("invalid input tensor list size, must be world size"):
            group.reduce_scatter([one], [[one] * 3])
        with self.refused("Check failed: outputs[0].dtype() == inputs[0][i].dtype() (float vs. double). \n"):
            group.reduce_scatter([one], [[double] * 4])
        with self.refused("Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec() (1 vs. 2). \n"):
            group.reduce_scatter([one], [[two] * 4])

    def test_reduce_scatter_tensor(self) -> None:
        self.init()
        torch.manual_seed(42)
        whole = torch.rand(20 * self.world_size, 20)
        output = torch.empty(20, 20)
        dist.reduce_scatter_tensor(output, whole, async_op=True).wait()

        self.assertEqual(output, whole.chunk(self.world_size)[self.rank] * self.world_size)

    def test_reduce_scatter_tensor_coalesced(self) -> None:
        self.init()
        torch.manual_seed(42)
        wholes = [torch.rand(n * self.world_size, n) for n in (5, 10, 15)]
        outputs = [torch.empty(n, n) for n in (5, 10, 15)]
        group: Any = dist.group.WORLD
        group.reduce_scatter_tensor_coalesced(outputs, wholes).wait()

        self.assertEqual(outputs, [whole.chunk(self.world_size)[self.rank] * self.world_size for whole in wholes])
