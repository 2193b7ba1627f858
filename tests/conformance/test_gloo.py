"""ProcessGroupGloo's collectives, called on the group itself.

Covers, of PyTorch's test_c10d_gloo.py: test_multi_device_constructor, test_empty_tensors, test_broadcast_checks,
test_broadcast_basics, test_broadcast_stress, test_allreduce_checks, test_allreduce_op_timeout,
test_allreduce_overall_timeout, test_allreduce_basics, test_allreduce_stress, test_allreduce_coalesced_checks,
test_allreduce_coalesced_basics, test_allreduce_coalesced_stress, test_allreduce_coalesced_async,
test_sparse_allreduce_checks, test_sparse_allreduce_basics, test_allgather_into_tensor_coalesced, test_reduce_scatter,
test_reduce_scatter_tensor, test_reduce_scatter_tensor_coalesced, test_scatter_checks, test_scatter_basics,
test_set_gloo_pg_timeout, test_scatter_stress, test_gather_checks, test_gather_basics,
test_gather_noncontiguous_input, test_gather_stress, test_allgather_checks, test_allgather_basics,
test_allgather_noncontiguous_input, test_allgather_inference_mode, test_allgather_stress; and what the file has beyond
the part that we were given: allgather_coalesced's checks, reduce's checks, basics and stress, send_recv_all_to_all,
barrier_implies_wait, round robin's successors.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from tests.conformance.arms import Bodies, on_both_arms, options

Tensor = torch.Tensor
dist: Any = torch.distributed  # its stubs leave out much of what is called here
ROUNDS = 200  # torch's 1000 take as long as all the rest
FIRST = torch.tensor([[0]])  # indices of a sparse tensor with one entry

_TAIL = "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"


def described(dtype: str, layout: str = "Strided") -> str:
    """A tensor's options as C++ prints them."""
    return f"TensorOptions(dtype={dtype}, device=cpu, layout={layout}, {_TAIL}"


def mixed_types(operation: str, index: int) -> str:
    """The refusal of a double among floats."""
    said = f"(expected {described('float')}, got {described('double')})"
    return f"ProcessGroupGloo::{operation}: invalid tensor type at index {index} {said}"


def value_of(work: Any) -> Any:
    """Wait for the work's future, and take its value."""
    future = work.get_future()
    future.wait()
    return future.value()


def column(tensor: Tensor) -> Tensor:
    """The same single element, at the head of a column of a matrix: memory that is not dense."""
    return tensor.expand(2, 2).tril().contiguous()[:, 0]


def reductions(rank: int, size: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Operation, what the rank brings, what everybody gets."""
    own = torch.tensor([rank + 1.0])
    for kind, result in (
        (dist.ReduceOp.SUM, size * (size + 1) / 2),
        (dist.ReduceOp.PRODUCT, math.factorial(size)),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, size),
        (dist.ReduceOp.AVG, (size + 1) / 2),
    ):
        yield kind, own.clone(), torch.tensor([float(result)])
    for bit in range(4):
        yield (
            dist.ReduceOp.BAND,
            torch.tensor([rank | 1 << bit], dtype=torch.int32),
            torch.tensor([1 << bit], dtype=torch.int32),
        )
    for kind, function in ((dist.ReduceOp.BOR, operator.or_), (dist.ReduceOp.BXOR, operator.xor)):
        for share in range(1, 5):  # as if each rank stood for so many
            mine = functools.reduce(function, range(rank * share, (rank + 1) * share))
            everyone = functools.reduce(function, [rank * share + j for rank in range(size) for j in range(share)])
            yield kind, torch.tensor([mine], dtype=torch.int32), torch.tensor([everyone], dtype=torch.int32)
    for kind, part in ((dist.ReduceOp.SUM, size * (size + 1) / 2), (dist.ReduceOp.AVG, (size + 1) / 2)):
        yield kind, torch.tensor([complex(rank + 1, rank + 1)]), torch.tensor([complex(part, part)])


def sparse_operands(rank: int, size: int, per_rank: int) -> Iterator[tuple[list[Tensor], Tensor]]:
    """What the rank brings, and the sum over all ranks, with several numbers of sparse and dense dimensions."""

    def operand(index: int, sparse: int, dense: int) -> Tensor:
        count = size * per_rank
        rows = [torch.arange(index + 1)] + [torch.zeros(index + 1, dtype=torch.long)] * (sparse - 1)
        shape = [count] + [2] * dense + [count] * (sparse - 1)
        return torch.sparse_coo_tensor(torch.stack(rows), torch.ones([index + 1] + [2] * dense), shape)

    for sparse, dense in ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)):
        mine = [operand(per_rank * rank + j, sparse, dense) for j in range(per_rank)]
        everyone = [operand(index, sparse, dense) for index in range(size * per_rank)]
        yield mine, functools.reduce(operator.add, everyone)


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
        inputs = [torch.rand(length) for length in range(self.world_size)]  # of another length for each rank
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


@on_both_arms
class TestScatterAndGather(Bodies):
    def test_scatter_checks(self) -> None:
        group = self.gloo()
        self.check_rooted("scatter", "input", "output", lambda own, listed, opts: group.scatter(own, listed, opts))

    def test_gather_checks(self) -> None:
        group = self.gloo()
        self.check_rooted("gather", "output", "input", lambda own, listed, opts: group.gather(listed, own, opts))

    def check_rooted(self, operation: str, listed: str, own: str, call: Callable[[Any, Any, Any], Any]) -> None:
        """`listed` and `own` say which of input and output is the root's list, and which everyone's tensor."""
        kind: Any = dist.ScatterOptions if operation == "scatter" else dist.GatherOptions
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
        size, rank = self.world_size, self.rank

        def refused(text: str, tensors: list[Tensor], lists: list[list[Tensor]], root: int) -> None:
            with self.refused(f"ProcessGroupGloo::{operation}: {text}"):
                call(tensors, lists, options(kind, rootRank=root))

        refused("invalid root rank: -1", [one], [], -1)
        refused("invalid root rank: 4", [one], [], size)
        refused(f"requires a single-element {own} tensor list", [], [], 0)
        refused(f"requires a single-element {own} tensor list", [one, one], [], 0)
        needs_list = f"requires a single-element {listed} list containing a list with 4 tensors."
        refused(needs_list, [one], [], rank)
        refused(needs_list, [one], [[one] * size] * 2, rank)
        for length in (size - 1, size + 1):
            said = f"Incorrect {listed} list size {length}. {listed.title()} list size should be {size}"
            refused(f"{said}, same as size of the process group.", [one], [[one] * length], rank)
        refused("invalid tensor size at index 0 (expected (1), got (2))", [one], [[two] * size], rank)
        refused(f"requires empty {listed} on non-root", [one], [[one] * size], (rank + 1) % size)
        with self.refused(mixed_types(operation, 0)):
            call([one], [[double] * size], options(kind, rootRank=rank))

    def test_scatter_basics(self) -> None:
        group = self.gloo()
        own = [torch.tensor([self.rank]) for _ in range(self.world_size)]
        works = [
            group.scatter(
                [torch.tensor([-1])], [own] if root == self.rank else [], options(dist.ScatterOptions, rootRank=root)
            )
            for root in range(self.world_size)
        ]

        self.assertEqual([value_of(work) for work in works], [[torch.tensor([root])] for root in range(4)])

    def test_scatter_stress(self) -> None:
        group = self.gloo(threads=8)
        works = []
        for i, root in itertools.product(range(ROUNDS // 4), range(self.world_size)):
            lists = [[torch.tensor([i + self.rank]) for _ in range(4)]] if root == self.rank else []
            works.append(group.scatter([torch.tensor([-1])], lists, options(dist.ScatterOptions, rootRank=root)))
        received = [value_of(work)[0].item() for work in works]

        self.assertEqual(received, [i + root for i in range(ROUNDS // 4) for root in range(self.world_size)])

    def check_gather(self, layout: Callable[[Tensor], Tensor]) -> None:
        group = self.gloo()
        works = []
        for root in range(self.world_size):
            outputs = [[layout(torch.tensor([-1])) for _ in range(4)]] if root == self.rank else []
            opts = options(dist.GatherOptions, rootRank=root)
            works.append(group.gather(outputs, [layout(torch.tensor([self.rank]))], opts))
        values = [value_of(work) for work in works]

        self.assertEqual(values[self.rank], [layout(torch.tensor([rank])) for rank in range(4)])
        self.assertEqual([len(value) for rank, value in enumerate(values) if rank != self.rank], [0, 0, 0])

    def test_gather_basics(self) -> None:
        self.check_gather(lambda tensor: tensor.clone())

    def test_gather_noncontiguous_input(self) -> None:
        self.check_gather(column)

    def test_gather_stress(self) -> None:
        group = self.gloo(threads=8)
        works = []
        for i, root in itertools.product(range(ROUNDS // 4), range(self.world_size)):
            outputs = [[torch.tensor([-1]) for _ in range(4)]] if root == self.rank else []
            opts = options(dist.GatherOptions, rootRank=root)
            works.append(group.gather(outputs, [torch.tensor([i + self.rank])], opts))
        values = [value_of(work) for work in works]

        mine = values[self.rank :: self.world_size]
        self.assertEqual(
            [torch.cat(value).tolist() for value in mine], [[i, i + 1, i + 2, i + 3] for i in range(ROUNDS // 4)]
        )


@on_both_arms
class TestAllGather(Bodies):
    def test_allgather_checks(self) -> None:
        group = self.gloo()
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)
        size = self.world_size
        sparse = torch.sparse_coo_tensor(FIRST, [1.0], size=(1,))

        def refused(text: str, outputs: list[list[Tensor]], inputs: list[Tensor]) -> None:
            with self.refused(f"ProcessGroupGloo::allgather: {text}"):
                group.allgather(outputs, inputs)

        refused("requires non-empty input tensor list", [], [])
        refused("requires input/output tensor lists to have the same length", [], [one])
        refused("requires input/output tensor lists to have the same length", [[one] * size] * 2, [one])
        for length in (size - 1, size + 1):
            said = f"invalid output tensor list at index 0 (expected length {size}, got {length})"
            refused(said, [[one] * length], [one])
        refused("only supports dense tensors", [[sparse] * size], [sparse])
        both = [[one] * 2 * size] * 2
        refused("invalid tensor size at index 1 (expected (1), got (2))", both, [one, two])
        refused("invalid tensor size at index 1 (expected (1), got (2))", [[one, two, one, two]], [one])
        with self.refused(mixed_types("allgather", 1)):
            group.allgather(both, [one, double])
        with self.refused(mixed_types("allgather", 1)):
            group.allgather([[one, double, one, double]], [one])

    def check_allgather(self, layout: Callable[[Tensor], Tensor]) -> None:
        group = self.gloo()
        for n in (1, 2, 3):
            inputs = [layout(torch.tensor([n * self.rank + j])) for j in range(n)]
            outputs = [[layout(torch.tensor([-1])) for _ in range(n * self.world_size)] for _ in range(n)]
            value = value_of(group.allgather(outputs, inputs))

            expected = [layout(torch.tensor([j])) for j in range(n * self.world_size)]
            self.assertEqual(outputs, [expected] * n)
            self.assertEqual(value, expected if n == 1 else [expected] * n)

    def test_allgather_basics(self) -> None:
        self.check_allgather(lambda tensor: tensor.clone())

    def test_allgather_noncontiguous_input(self) -> None:
        self.check_allgather(column)

    def test_allgather_inference_mode(self) -> None:
        with torch.inference_mode():
            self.check_allgather(lambda tensor: tensor.clone())

    def test_allgather_stress(self) -> None:
        group = self.gloo(threads=8)
        held = [([[torch.tensor([-1]) for _ in range(4)]], [torch.tensor([i + self.rank])]) for i in range(ROUNDS)]
        futures = [group.allgather(outputs, inputs).get_future() for outputs, inputs in held]

        values = [torch.cat(future.wait()).tolist() for future in futures]
        self.assertEqual(values, [[i, i + 1, i + 2, i + 3] for i in range(ROUNDS)])

    def test_allgather_into_tensor_coalesced(self) -> None:
        self.init()
        torch.manual_seed(42)
        inputs = [torch.rand(n, n) for n in (5, 10, 15)]
        outputs = [torch.empty(n * self.world_size, n) for n in (5, 10, 15)]
        group: Any = dist.group.WORLD
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()

        self.assertEqual(outputs, [torch.cat([tensor] * self.world_size) for tensor in inputs])

    def test_allgather_coalesced_checks(self) -> None:
        group = self.gloo()
        one, double, two = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)

        def refused(text: str, outputs: list[list[Tensor]], inputs: list[Tensor]) -> None:
            with self.refused(f"ProcessGroupGloo::allgather_coalesced: {text}"):
                group.allgather_coalesced(outputs, inputs)

        refused("requires non-empty input tensor list", [[one]], [])
        refused("output lists should be equal to world size", [[one]] * 3, [one])
        refused("invalid output size: (expected length 1, got 2)", [[one, one]] * 4, [one])
        refused("invalid size of output tensor at index 0 (expected length (1), got (2))", [[two]] * 4, [one])
        said = "invalid tensor type at index 0 (expected torch.FloatTensor, got torch.DoubleTensor)"
        refused(said, [[double]] * 4, [one])

    def test_allgather_coalesced_async(self) -> None:
        self.init()
        works, held = [], []
        for i in range(2):
            inputs = [torch.tensor([i + self.rank]), torch.tensor([[1, self.rank]])]
            outputs = [[torch.tensor([-1]), torch.tensor([[-1, -1]])] for _ in range(self.world_size)]
            held.append(outputs)
            works.append(dist.all_gather_coalesced(outputs, inputs, async_op=True))
        for work in works:
            work.wait()

        for i, outputs in enumerate(held):
            expected = [[torch.tensor([i + rank]), torch.tensor([[1, rank]])] for rank in range(self.world_size)]
            self.assertEqual(outputs, expected)


@on_both_arms
class TestPointToPoint(Bodies):
    def test_send_recv_all_to_all(self) -> None:
        group = self.gloo()
        inputs = [torch.tensor([self.rank]) for _ in range(self.world_size)]
        outputs = [torch.tensor([-1]) for _ in range(self.world_size)]
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        sends = [group.send([inputs[rank]], rank, 0) for rank in others]
        receives = [group.recv([outputs[rank]], rank, 0) for rank in others]
        for work in [*sends, *receives]:
            self.assertTrue(work.wait())
            self.assertTrue(work.is_completed())

        expected = [-1 if rank == self.rank else rank for rank in range(self.world_size)]
        self.assertEqual(torch.cat(outputs).tolist(), expected)

    def test_send_recv_checks(self) -> None:
        group = self.gloo()
        peer = (self.rank + 1) % self.world_size
        strided = torch.zeros(2, 2)[:, 0]

        for call in (group.send, group.recv):
            with self.refused("ProcessGroupGloo::send takes a single tensor"):
                call([torch.zeros(1), torch.zeros(1)], peer, 0)
            with self.refused("input tensor has to be contiguous"):
                call([strided], peer, 0)
        with self.refused("Tag must be nonnegative"):
            group.send([torch.zeros(1)], peer, -1)

    def test_barrier_implies_wait(self) -> None:
        group = self.gloo()
        tensors = [torch.ones(1000) * self.rank for _ in range(100)]
        for tensor in tensors:
            group.allreduce(tensor)
        group.barrier().wait()

        self.assertEqual(tensors, [torch.full((1000,), 6.0)] * 100)


@on_both_arms
class TestInterleavedGroups(Bodies):
    def test_two_groups_take_turns(self) -> None:
        store = self.store()
        groups: list[Any] = [
            dist.ProcessGroupGloo(
                dist.PrefixStore(str(index), store), self.rank, self.world_size, timedelta(seconds=20)
            )
            for index in range(2)
        ]
        tensors = [torch.full((4,), float(self.rank + i)) for i in range(10)]
        works = [groups[i % 2].allreduce(tensor) for i, tensor in enumerate(tensors)]
        for work in works:
            work.wait()

        self.assertEqual(tensors, [torch.full((4,), 4.0 * i + 6) for i in range(10)])
