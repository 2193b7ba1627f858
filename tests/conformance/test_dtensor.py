"""DTensor on Gloo: layouts, redistribution, operators, tensor parallel modules, and what CommDebugMode counts.

Covers PyTorch's tests of DTensor (test_dtensor.py, test_redistribute.py, test_tensor_ops.py, test_math_ops.py,
test_matrix_ops.py, test_api.py, test_comm_mode.py, parallel/test_tp_examples.py, parallel/test_parallelize_api.py) with
bodies of our own.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed import tensor as _tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module
from torch.distributed.tensor import debug as _debug
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from tests.conformance.arms import Bodies, on_both_arms

Tensor = torch.Tensor
dist: Any = torch.distributed
tensors: Any = _tensors  # its stubs leave out what a DTensor has
distribute_tensor = tensors.distribute_tensor
debug: Any = _debug  # not typed
funcol: Any = torch.ops.c10d_functional
c10d: Any = torch.ops.c10d


def counted(*shape: int) -> Tensor:
    """Return a tensor whose entries are all different."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 7


class MeshBodies(Bodies):
    """Bodies on a mesh."""

    __test__ = False

    def mesh(self, *shape: int, names: tuple[str, ...] | None = None) -> Any:
        """Return a mesh of this shape over all ranks; makes the default group first."""
        if not dist.is_initialized():
            self.init()
        return init_device_mesh("cpu", shape or (self.world_size,), mesh_dim_names=names)

    def counts(self, mode: Any) -> dict[str, int]:
        """Return the numbers of calls by the operator's name."""
        return {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items() if count}


@on_both_arms
class TestLayouts(MeshBodies):
    ranks = 4

    def test_a_shard_has_the_rows_of_its_rank_on_every_uneven_size(self) -> None:
        mesh = self.mesh()
        for rows in range(1, 11):
            whole = counted(rows, 3)
            tensor = distribute_tensor(whole, mesh, [Shard(0)])
            parts = list(whole.chunk(self.world_size))
            expected = parts[self.rank] if self.rank < len(parts) else whole[:0]

            self.assertEqual(tensor.to_local(), expected)
            self.assertEqual(tensor.shape, whole.shape)
            self.assertEqual(tensor.stride(), whole.stride())
            self.assertEqual(tensor.full_tensor(), whole)

    def test_distribute_tensor_takes_the_values_of_the_first_rank(self) -> None:
        mesh = self.mesh()
        for placement in (Shard(0), Replicate()):
            tensor = distribute_tensor(counted(8, 2) + self.rank, mesh, [placement])

            self.assertEqual(tensor.full_tensor(), counted(8, 2))

    def test_from_local_puts_parts_together(self) -> None:
        mesh = self.mesh()
        local = torch.full((2, 3), float(self.rank))

        rows, columns = (tensors.DTensor.from_local(local, mesh, [Shard(dim)]) for dim in (0, 1))
        total = tensors.DTensor.from_local(local, mesh, [Partial()])
        largest = tensors.DTensor.from_local(local, mesh, [Partial("max")])
        mean = tensors.DTensor.from_local(local, mesh, [Partial("avg")])

        self.assertEqual(rows.shape, (8, 3))
        self.assertEqual(columns.shape, (2, 12))
        self.assertEqual(rows.full_tensor()[:, 0], torch.arange(4.0).repeat_interleave(2))
        self.assertEqual(columns.full_tensor()[0], torch.arange(4.0).repeat_interleave(3))
        self.assertEqual(total.full_tensor(), torch.full((2, 3), 6.0))
        self.assertEqual(largest.full_tensor(), torch.full((2, 3), 3.0))
        self.assertEqual(mean.full_tensor(), torch.full((2, 3), 1.5))

    def test_from_local_with_a_given_shape_takes_uneven_parts(self) -> None:
        mesh = self.mesh()
        whole = counted(9, 2)
        local = list(whole.chunk(4))[self.rank] if self.rank < 3 else whole[:0]

        tensor = tensors.DTensor.from_local(local, mesh, [Shard(0)], shape=whole.size(), stride=whole.stride())

        self.assertEqual(tensor.full_tensor(), whole)

    def test_gradients_flow_through_local_parts_and_back(self) -> None:
        mesh = self.mesh()
        local = torch.ones(2, 3, requires_grad=True)
        (tensors.DTensor.from_local(local, mesh, [Shard(0)]) * 3).to_local().sum().backward()
        self.assertEqual(local.grad, torch.full((2, 3), 3.0))

        leaf = distribute_tensor(counted(8, 3), mesh, [Shard(0)]).requires_grad_()
        (leaf.full_tensor() * (self.rank + 1)).sum().backward()
        assert isinstance(leaf.grad, DTensor)
        self.assertEqual(leaf.grad.placements, (Shard(0),))
        factors = torch.arange(1.0, 5.0).repeat_interleave(2)  # each rank's own loss reaches its own rows
        self.assertEqual(leaf.grad.full_tensor(), factors.unsqueeze(1).expand(8, 3))

    def test_a_mesh_has_groups_coordinates_and_slices(self) -> None:
        mesh = self.mesh(2, 2, names=("dp", "tp"))

        self.assertEqual(mesh.get_coordinate(), [self.rank // 2, self.rank % 2])
        self.assertEqual(mesh["tp"].get_local_rank(), self.rank % 2)
        self.assertEqual(mesh["dp"].mesh.tolist(), [self.rank % 2, self.rank % 2 + 2])
        self.assertEqual(
            dist.get_process_group_ranks(mesh.get_group("tp")), [self.rank // 2 * 2, self.rank // 2 * 2 + 1]
        )
        total = torch.tensor(float(self.rank))
        dist.all_reduce(total, group=mesh.get_group("dp"))
        self.assertEqual(total.item(), 2.0 * (self.rank % 2) + 2)
        flat = mesh["dp", "tp"]._flatten("all")
        self.assertEqual(flat.size(), 4)

    def test_factories_give_what_torch_gives(self) -> None:
        mesh = self.mesh()
        made = tensors
        for placement in (Shard(0), Shard(1), Replicate()):
            for tensor, value in (
                (made.zeros(5, 7, device_mesh=mesh, placements=[placement]), 0.0),
                (made.ones(5, 7, device_mesh=mesh, placements=[placement]), 1.0),
                (made.full((5, 7), 2.5, device_mesh=mesh, placements=[placement]), 2.5),
            ):
                self.assertEqual(tensor.full_tensor(), torch.full((5, 7), value))


@on_both_arms
class TestRedistribution(MeshBodies):
    ranks = 4

    def one_dimension(self) -> list[Placement]:
        return [Shard(0), Shard(1), Replicate()]

    def test_every_pair_of_layouts_on_uneven_shapes(self) -> None:
        mesh = self.mesh()
        for shape in ((8, 4), (9, 5), (3, 2), (1, 7), (5, 1)):
            whole = counted(*shape)
            for before, after in itertools.product(self.one_dimension(), repeat=2):
                tensor = distribute_tensor(whole, mesh, [before]).redistribute(mesh, [after])

                self.assertEqual(tensor.placements, (after,))
                self.assertEqual(tensor.to_local(), distribute_tensor(whole, mesh, [after]).to_local())
                self.assertEqual(tensor.full_tensor(), whole)

    def test_sums_that_are_pending_go_to_every_layout(self) -> None:
        mesh = self.mesh()
        for shape in ((8, 4), (9, 5), (3, 2)):
            pending = tensors.DTensor.from_local(counted(*shape) * (self.rank + 1), mesh, [Partial()])
            for after in self.one_dimension():
                self.assertEqual(pending.redistribute(mesh, [after]).full_tensor(), counted(*shape) * 10)

    def test_every_pair_of_layouts_on_two_dimensions(self) -> None:
        mesh = self.mesh(2, 2)
        layouts = list(itertools.product(self.one_dimension(), repeat=2))
        whole = counted(9, 8)
        for before, after in itertools.product(layouts, repeat=2):
            tensor = distribute_tensor(whole, mesh, before).redistribute(mesh, after)

            self.assertEqual(tensor.full_tensor(), whole)

    def test_nested_shards_of_one_dimension_lie_as_chunks_of_chunks(self) -> None:
        mesh = self.mesh(2, 2)
        whole = counted(9, 5)
        tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(0)])
        first = list(whole.chunk(2))[self.rank // 2]

        self.assertEqual(tensor.to_local(), list(first.chunk(2))[self.rank % 2])
        self.assertEqual(tensor.full_tensor(), whole)

    def test_partial_over_one_of_two_dimensions(self) -> None:
        mesh = self.mesh(2, 2)
        pending = tensors.DTensor.from_local(torch.full((3, 4), float(self.rank)), mesh, [Shard(0), Partial()])

        self.assertEqual(pending.full_tensor()[:, 0], torch.tensor([1.0, 1, 1, 5, 5, 5]))
        self.assertEqual(pending.redistribute(mesh, [Replicate(), Shard(1)]).to_local().shape, (6, 2))

    def test_gradients_have_the_layout_of_what_they_belong_to(self) -> None:
        mesh = self.mesh()
        for before, after in itertools.product(self.one_dimension(), repeat=2):
            leaf = distribute_tensor(counted(9, 5), mesh, [before]).requires_grad_()
            moved = leaf.redistribute(mesh, [after])
            (moved * moved).sum().full_tensor().backward()
            assert isinstance(leaf.grad, DTensor)

            self.assertEqual(leaf.grad.full_tensor(), 2 * counted(9, 5))

    def test_an_asynchronous_one_is_there_when_it_is_used(self) -> None:
        mesh = self.mesh()
        tensor = distribute_tensor(counted(8, 4), mesh, [Shard(0)])

        self.assertEqual(tensor.redistribute(mesh, [Replicate()], async_op=True).to_local() + 1, counted(8, 4) + 1)

    def test_what_each_costs_in_calls(self) -> None:
        mesh = self.mesh()
        tensor = distribute_tensor(counted(8, 8), mesh, [Shard(0)])
        pending = tensors.DTensor.from_local(counted(8, 8), mesh, [Partial()])
        for source, after, expected in (
            (tensor, Replicate(), {"all_gather_into_tensor": 1}),
            (tensor, Shard(1), {"all_gather_into_tensor": 1}),  # with Gloo, torch does not exchange parts
            (pending, Replicate(), {"all_reduce": 1}),
            (pending, Shard(0), {"reduce_scatter_tensor": 1}),
            (tensor, Shard(0), {}),
        ):
            with debug.CommDebugMode() as mode:
                source.redistribute(mesh, [after])

            self.assertEqual(self.counts(mode), expected)

    def test_a_layout_that_can_not_be_is_refused(self) -> None:
        mesh = self.mesh()
        tensor = distribute_tensor(counted(8, 8), mesh, [Shard(0)])

        with self.assertRaisesRegex(RuntimeError, "redistributing to Partial is for internal use only"):
            tensor.redistribute(mesh, [Partial()])


@on_both_arms
class TestOperators(MeshBodies):
    ranks = 4

    def every(self, *wholes: Tensor) -> Any:
        """Yield the tensors in all combinations of layouts."""
        mesh = self.mesh()
        layouts = [Shard(0), Shard(1), Replicate()]
        for chosen in itertools.product(layouts, repeat=len(wholes)):
            yield [distribute_tensor(whole, mesh, [each]) for whole, each in zip(wholes, chosen, strict=True)]

    def full(self, tensor: Any) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def test_pointwise(self) -> None:
        one, other = counted(9, 5) + 1, counted(9, 5).flip(0) + 1
        for a, b in self.every(one, other):
            self.assertEqual(self.full(a + b), one + other)
            self.assertEqual(self.full(a * b - a / b), one * other - one / other)
            self.assertEqual(self.full(torch.where(a > b, a, b)), torch.maximum(one, other))
            self.assertEqual(self.full(torch.relu(a - b).exp().sqrt()), torch.relu(one - other).exp().sqrt())

    def test_matrix_products(self) -> None:
        one, other, bias = counted(9, 6), counted(6, 5), counted(5)
        for a, b in self.every(one, other):
            self.assertEqual(self.full(a @ b), one @ other)
            bias_here = distribute_tensor(bias, a.device_mesh, [Replicate()])
            self.assertEqual(self.full(torch.addmm(bias_here, a, b)), torch.addmm(bias, one, other))

    def test_reductions(self) -> None:
        whole = counted(9, 5)
        for (a,) in self.every(whole):
            for dim in (None, 0, 1, -1):
                named: dict[str, Any] = {} if dim is None else {"dim": dim}
                self.assertEqual(self.full(a.sum(**named)), whole.sum(**named))
                self.assertEqual(self.full(a.mean(**named)), whole.mean(**named))
            self.assertEqual(self.full(a.softmax(dim=1)), whole.softmax(dim=1))
            self.assertEqual(self.full(a.norm()), whole.norm())
            self.assertEqual(self.full(a.cumsum(dim=0)), whole.cumsum(dim=0))
            self.assertEqual(self.full((a > 2).any()), (whole > 2).any())

    def test_views_and_joins(self) -> None:
        whole = counted(8, 6)
        for (a,) in self.every(whole):
            self.assertEqual(self.full(a.t()), whole.t())
            self.assertEqual(self.full(a.unsqueeze(1).expand(8, 2, 6)), whole.unsqueeze(1).expand(8, 2, 6))
            self.assertEqual(self.full(torch.cat([a, a], dim=0)), torch.cat([whole, whole], dim=0))
            self.assertEqual(self.full(torch.stack([a, a])), torch.stack([whole, whole]))
            self.assertEqual(self.full(a[2:5]), whole[2:5])
            self.assertEqual(self.full(a.clone().fill_(2.0)), torch.full_like(whole, 2.0))
            self.assertEqual(self.full(a.to(torch.float64)), whole.double())
            self.assertEqual([self.full(part) for part in a.split(2, dim=1)], list(torch.split(whole, 2, dim=1)))

    def test_embedding_and_indexing(self) -> None:
        mesh = self.mesh()
        table, index = counted(10, 4), torch.tensor([[0, 9, 3], [7, 7, 1]])
        for placement in (Shard(0), Shard(1), Replicate()):
            sharded = distribute_tensor(table, mesh, [placement])
            found = nn.functional.embedding(distribute_tensor(index, mesh, [Replicate()]), sharded)

            self.assertEqual(self.full(found), table[index])

    def test_normalisation_and_loss(self) -> None:
        whole, target = counted(8, 6).sin(), torch.arange(8) % 6
        expected_norm = nn.functional.layer_norm(whole, [6])
        for (a,) in self.every(whole):
            self.assertEqual(self.full(nn.functional.layer_norm(a, [6])), expected_norm)
        rows = distribute_tensor(whole, self.mesh(), [Shard(0)])
        targets = distribute_tensor(target, self.mesh(), [Shard(0)])
        self.assertEqual(
            self.full(nn.functional.cross_entropy(rows, targets)), nn.functional.cross_entropy(whole, target)
        )

    def test_in_place_keeps_the_layout(self) -> None:
        for (a,) in self.every(counted(9, 5)):
            before = a.placements
            a.add_(1).mul_(2)

            self.assertEqual(a.placements, before)
            self.assertEqual(self.full(a), (counted(9, 5) + 1) * 2)

    def test_plain_tensors_do_not_mix(self) -> None:
        tensor = distribute_tensor(counted(8, 4), self.mesh(), [Shard(0)])

        with self.assertRaisesRegex(RuntimeError, "got mixed torch.Tensor and DTensor"):
            tensor + torch.ones(8, 4)


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(width, 16)
        self.second = nn.Linear(16, width)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


@on_both_arms
class TestParallelModules(MeshBodies):
    ranks = 4

    def pair(self, module: nn.Module | None = None) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(1)
        plain = Net() if module is None else module
        return plain, copy.deepcopy(plain)

    def same_gradients(self, plain: nn.Module, other: nn.Module) -> None:
        for (name, mine), (_, theirs) in zip(plain.named_parameters(), other.named_parameters(), strict=True):
            grad = theirs.grad.full_tensor() if isinstance(theirs.grad, DTensor) else theirs.grad
            self.assertEqual(grad, mine.grad, msg=name)

    def test_distribute_module_replicates_and_shards(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair()

        def by_rows(name: str, module: nn.Module, mesh: Any) -> None:
            for key, parameter in module.named_parameters(recurse=False):
                module.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

        for partition in (None, by_rows):
            made = distribute_module(copy.deepcopy(other), mesh, partition)
            for (_, mine), (_, theirs) in zip(plain.named_parameters(), made.named_parameters(), strict=True):
                assert isinstance(theirs, DTensor)
                self.assertEqual(theirs.full_tensor(), mine)

    def test_input_and_output_functions(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair()
        made = tensors.distribute_module(
            other,
            mesh,
            input_fn=lambda module, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Shard(0)]),
            output_fn=lambda module, outputs, mesh: outputs.full_tensor(),
        )
        x = counted(8, 6).sin()

        self.assertEqual(made(x.chunk(4)[self.rank]), plain(x))

    def test_columns_then_rows(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair()
        parallelize_module(other, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        x = counted(5, 6).sin()
        with debug.CommDebugMode() as mode:
            out = other(x)

        self.assertEqual(out, plain(x))
        self.assertEqual(self.counts(mode), {"all_reduce": 1})
        out.sum().backward()
        plain(x).sum().backward()
        self.same_gradients(plain, other)

    def test_a_sequence_is_parallel_too(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair()
        plan = {
            "first": ColwiseParallel(input_layouts=Shard(0)),
            "second": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(other, mesh, plan)
        x = counted(8, 6).sin()
        with debug.CommDebugMode() as mode:
            out = other(x.chunk(4)[self.rank])

        self.assertEqual(out, plain(x).chunk(4)[self.rank])
        self.assertEqual(self.counts(mode), {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1})

    def test_a_norm_over_a_sharded_sequence(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8)))
        plan = {
            "0": SequenceParallel(sequence_dim=0),
            "1": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1)),
        }
        parallelize_module(other, mesh, plan)
        x = counted(8, 6).sin()
        out = other(DTensor.from_local(x.chunk(4)[self.rank], mesh, [Shard(0)]))

        self.assertEqual(out, plain(x).chunk(4, dim=1)[self.rank])

    def test_an_embedding_by_rows_and_by_columns(self) -> None:
        mesh = self.mesh()
        index = torch.tensor([[1, 5, 11], [0, 2, 7]])
        for plan in (RowwiseParallel(input_layouts=Replicate()), ColwiseParallel(output_layouts=Replicate())):
            plain, other = self.pair(nn.Embedding(12, 8))
            parallelize_module(other, mesh, plan)

            self.assertEqual(other(index), plain(index))

    def test_inputs_and_outputs_are_prepared(self) -> None:
        mesh = self.mesh()
        plain, other = self.pair()
        wrapped, expected = nn.Sequential(other), plain
        prepared = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True)
        parallelize_module(wrapped, mesh, prepared)
        x = counted(8, 6).sin()
        self.assertEqual(wrapped(x.chunk(4)[self.rank]), expected(x))

        _, again = self.pair()
        turned = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
        out = parallelize_module(nn.Sequential(again), mesh, turned)(x)
        self.assertEqual(out, expected(x).chunk(4)[self.rank])

    def test_a_loss_over_sharded_classes(self) -> None:
        mesh = self.mesh()
        scores, target = counted(6, 8).sin(), torch.arange(6)
        plain = scores.clone().requires_grad_()
        torch.autograd.backward(nn.functional.cross_entropy(plain, target))
        sharded = distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            loss: Any = nn.functional.cross_entropy(sharded, target)
            loss.backward()

        self.assertEqual(loss.full_tensor(), nn.functional.cross_entropy(scores, target))
        assert isinstance(sharded.grad, DTensor)
        self.assertEqual(sharded.grad.full_tensor(), plain.grad)

    def test_two_dimensions_of_parallelism_train_as_one_process(self) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = self.mesh(2, 2, names=("dp", "tp"))
        plain, other = self.pair()
        parallelize_module(other, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        fully_shard(other, mesh=mesh["dp"])
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, foreach=False) for each in (plain, other)]
        for step in range(3):
            x = (counted(8, 6) + step).sin()
            for model, optimizer, data in (
                (plain, optimizers[0], x),
                (other, optimizers[1], x.chunk(2)[self.rank // 2]),
            ):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                optimizer.step()
        for (name, mine), (_, theirs) in zip(plain.named_parameters(), other.named_parameters(), strict=True):
            assert isinstance(theirs, DTensor)
            self.assertEqual(theirs.full_tensor(), mine, msg=name)


@on_both_arms
class TestCommDebugMode(MeshBodies):
    ranks = 4

    def test_plain_collectives(self) -> None:
        self.mesh()
        with debug.CommDebugMode() as mode:
            dist.all_reduce(torch.ones(4))
            dist.all_gather_into_tensor(torch.empty(16), torch.ones(4))
            dist.reduce_scatter_tensor(torch.empty(1), torch.ones(4))
            dist.broadcast(torch.ones(4), 0)

        self.assertEqual(
            self.counts(mode), {"allreduce_": 1, "_allgather_base_": 1, "_reduce_scatter_base_": 1, "broadcast_": 1}
        )
        self.assertEqual(mode.get_total_counts(), 4)

    def test_nothing_is_counted_outside_and_a_second_use_begins_afresh(self) -> None:
        mesh = self.mesh()
        tensor = distribute_tensor(counted(8, 8), mesh, [Shard(0)])
        mode = debug.CommDebugMode()
        with mode:
            tensor.full_tensor()
        tensor.full_tensor()
        self.assertEqual(mode.get_total_counts(), 1)
        with mode:
            pass
        self.assertEqual(mode.get_total_counts(), 0)

    def test_modules_are_distinguished(self) -> None:
        mesh = self.mesh()
        torch.manual_seed(1)
        model = parallelize_module(Net(), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        with debug.CommDebugMode() as mode:
            model(counted(4, 6)).sum().backward()

        counts = mode.comm_module_counts
        self.assertEqual(counts["Net.second"]["forward"][funcol.all_reduce], 1)
        self.assertFalse(counts.get("Net.first", {}).get("forward"))
        self.assertEqual(mode.get_sharding_info()["Net.first.weight"], (Shard(0),))
        self.assertEqual(mode.get_parameter_info()["Net.second"].keys(), {"weight", "bias"})
        self.assertIn("Net.second", mode.generate_comm_debug_tracing_table(noise_level=1))

    def test_backward_is_counted(self) -> None:
        mesh = self.mesh()
        leaf = distribute_tensor(counted(8, 4), mesh, [Replicate()]).requires_grad_()
        rows = distribute_tensor(counted(8, 4), mesh, [Shard(0)])
        with debug.CommDebugMode() as mode:
            (leaf * rows).sum().full_tensor().backward()
            assert isinstance(leaf.grad, DTensor)
            leaf.grad.full_tensor()

        self.assertEqual(self.counts(mode), {"all_reduce": 1, "all_gather_into_tensor": 1})

    def test_layers_of_fsdp(self) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = self.mesh()
        torch.manual_seed(1)
        model = Net()
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)
        with debug.CommDebugMode() as mode:
            model(counted(4, 6)).sum().backward()

        self.assertEqual(self.counts(mode), {"_allgather_base_": 4, "_reduce_scatter_base_": 2})
