"""ProcessGroupGloo's scatters, gathers and messages, called on the group itself; see `seeds.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from tests.conformance.arms import Bodies, on_both_arms, options
from tests.conformance.operands import FIRST, ROUNDS, Tensor, column, dist, mixed_types, value_of


@on_both_arms
class TestScatterAndGather(Bodies):
    def test_scatter_checks(self) -> None:
        group = self.gloo()
        self.check_rooted("scatter", "input", "output", lambda own, listed, opts: group.scatter(own, listed, opts))

    def test_gather_checks(self) -> None:
        group = self.gloo()
        self.check_rooted("gather", "output", "input", lambda own, listed, opts: group.gather(listed, own, opts))

    def check_rooted(self, operation: str, listed: str, own: str, call: Callable[[Any, Any, Any], Any]) -> None:
        """Check refusals; `listed` and `own` are "input" or "output": the root's list, and each rank's tensor."""
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
