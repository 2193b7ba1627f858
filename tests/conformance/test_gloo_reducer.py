"""The reducer of DistributedDataParallel over Gloo: checkpoints of activations, outputs, buckets, batch norms.

`seeds.py` says which of PyTorch's tests these are. There are also tests of the reducer alone.
"""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.conformance.arms import Bodies, on_both_arms
from tests.conformance.test_gloo_ddp import DistributedDataParallel, F, Tensor, dist


class Once(nn.Module):
    """Computes the second layer again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(20, 20), nn.Linear(20, 20)
        self.reentrant = reentrant

    def again(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(layer, x, use_reentrant=self.reentrant)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.l2, self.l1(x))


class Twice(Once):
    """Has the second layer twice in the graph, and computes it again twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.l2, super().forward(x))


class Alternating(Once):
    """Uses the other layer every other time."""

    count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.again(self.l2 if self.count % 2 else self.l1, x)


def sharing(model: Once) -> Once:
    model.l1.weight = model.l2.weight
    return model


class Whole(nn.Module):
    """Computes everything again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        first, second = nn.Linear(20, 20), nn.Linear(20, 20)
        first.weight = second.weight
        self.layers = nn.Sequential(first, second)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.layers, x, use_reentrant=self.reentrant)
        return out


@on_both_arms
class TestActivationCheckpointing(Bodies):
    ranks = 2

    def check(self, model: Any, *, all_have_gradients: bool = True, **kwargs: Any) -> None:
        torch.manual_seed(31415)
        parallel = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1, **kwargs)
        self.assertEqual(parallel._get_ddp_logging_data().get("static_graph", 0), kwargs.get("static_graph", 0))
        batch: Any = torch.rand(32, 20, requires_grad=True)
        target = torch.randn(32, 20)
        mine = slice(16 * self.rank, 16 * self.rank + 16)
        for _ in range(5):
            model.zero_grad(set_to_none=False)
            parallel.zero_grad(set_to_none=False)
            F.mse_loss(model(batch), target).backward()
            F.mse_loss(parallel(batch[mine]), target[mine]).backward()
            for one, other in zip(model.parameters(), parallel.parameters(), strict=True):
                if all_have_gradients:
                    self.assertIsNotNone(one.grad)
                self.assertEqual(one.grad, other.grad, rtol=1.3e-6, atol=5e-5)

    def twice_is_too_often(self, reentrant: bool) -> Any:
        """Expect an error of reentrant checkpoints: their own backward passes mark a parameter ready twice."""
        if not reentrant:
            return nullcontext()
        return self.assertRaisesRegex(RuntimeError, "Expected to mark a variable ready only once.")

    def check_once(self, reentrant: bool) -> None:
        self.init()
        for view, static in itertools.product((False, True), repeat=2):
            self.check(Once(reentrant), gradient_as_bucket_view=view, static_graph=static)
        self.check(Once(reentrant), static_graph=True, find_unused_parameters=True)

    def test_ddp_checkpointing_once_reentrant(self) -> None:
        self.check_once(True)

    def test_ddp_checkpointing_once_not_reentrant(self) -> None:
        self.check_once(False)

    def check_unused_params(self, reentrant: bool) -> None:
        self.init()
        for view in (True, False):
            with self.twice_is_too_often(reentrant):
                self.check(Once(reentrant), gradient_as_bucket_view=view, find_unused_parameters=True)
            self.check(Once(reentrant), gradient_as_bucket_view=view, find_unused_parameters=True, static_graph=True)

    def test_ddp_checkpointing_unused_params_reentrant(self) -> None:
        self.check_unused_params(True)

    def test_ddp_checkpointing_unused_params_not_reentrant(self) -> None:
        self.check_unused_params(False)

    def check_twice(self, reentrant: bool) -> None:
        self.init()
        for view, unused in itertools.product((True, False), (False, True)):
            with self.twice_is_too_often(reentrant):
                self.check(Twice(reentrant), gradient_as_bucket_view=view, find_unused_parameters=unused)

    def test_ddp_checkpointing_twice_reentrant(self) -> None:
        self.check_twice(True)

    def test_ddp_checkpointing_twice_not_reentrant(self) -> None:
        self.check_twice(False)

    def test_ddp_checkpointing_twice_static_graph(self) -> None:
        self.init()
        for reentrant, view in itertools.product((True, False), repeat=2):
            self.check(Twice(reentrant), gradient_as_bucket_view=view, static_graph=True)

    def test_ddp_checkpointing_dynamic_module(self) -> None:
        self.init()
        for view in (True, False):
            model = Alternating(False)
            self.check(model, all_have_gradients=False, gradient_as_bucket_view=view, find_unused_parameters=True)

    def test_ddp_checkpointing_dynamic_weight_sharing(self) -> None:
        self.init()
        for view in (True, False):
            model = sharing(Alternating(False))
            self.check(model, all_have_gradients=False, gradient_as_bucket_view=view, find_unused_parameters=True)

    def test_ddp_checkpointing_weight_sharing(self) -> None:
        self.init()
        for reentrant, view, static in itertools.product((True, False), repeat=3):
            self.check(Whole(reentrant), gradient_as_bucket_view=view, static_graph=static)

    def test_ddp_checkpointing_twice_weight_sharing(self) -> None:
        self.init()
        for view in (True, False):
            self.check(sharing(Twice(True)), gradient_as_bucket_view=view, static_graph=True)


@dataclass
class Output:
    first: Tensor | None
    others: dict[str, Tensor]


class DataclassModule(nn.Module):
    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.one = nn.Sequential(*[nn.Linear(10, 10) for _ in range(3)])
        self.two = nn.Sequential(*[nn.Linear(10, 10) for _ in range(3)])
        self.skip = skip

    def forward(self, x: Tensor) -> Output:
        first = None if self.skip else F.relu(self.one(x))
        return Output(first, {"a": self.two(x), "b": F.relu(self.two(x))})


@on_both_arms
class TestOutputs(Bodies):
    ranks = 2

    def check_dataclass(self, skip: bool) -> None:
        self.init()
        torch.manual_seed(0)
        model = DataclassModule(skip)
        parallel = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
        whole = torch.cat([torch.ones(4, 10) * rank for rank in range(2)])
        for each, batch in ((model, whole), (parallel, torch.ones(4, 10) * self.rank)):
            out = each(batch)
            total = out.others["a"] + out.others["b"] + (0 if out.first is None else out.first)
            F.mse_loss(total, torch.ones_like(total)).backward()

        for one, other in zip(model.parameters(), parallel.parameters(), strict=True):
            self.assertEqual(one.grad, other.grad)

    def test_dataclass_output(self) -> None:
        self.check_dataclass(False)

    def test_dataclass_output_unused_param(self) -> None:
        self.check_dataclass(True)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 10, bias=False)
        self.fc2 = nn.Linear(10, 4, bias=False)
        self.fc3 = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, use_third: bool = True) -> Tensor:
        x = F.relu(self.fc1(x)).to(self.fc2.weight.dtype)
        x = F.relu(self.fc2(x)).float()
        out: Tensor = F.softmax(self.fc3(x) if use_third else x, dim=1)
        return out


@on_both_arms
class TestReducer(Bodies):
    """The C++ reducer under DDP, alone."""

    ranks = 1

    def reducer_of(self, model: nn.Module, unused: bool = False) -> Any:
        parameters = list(model.parameters())
        kinds = sorted({parameter.dtype for parameter in parameters}, key=str)
        buckets = [[i for i, parameter in enumerate(parameters) if parameter.dtype is kind] for kind in kinds]
        return dist.Reducer(
            parameters, buckets, [1 << 20] * len(buckets), dist.group.WORLD, find_unused_parameters=unused
        )

    def test_single_dtype_single_bucket(self) -> None:
        self.init()
        self.reducer_of(Layers())

    def test_multi_dtype_single_bucket(self) -> None:
        self.init()
        model = Layers()
        model.fc2.double()
        with self.assertRaises(RuntimeError):  # a bucket is one tensor, of one type
            dist.Reducer(list(model.parameters()), [[0, 1, 2]], [1 << 20], dist.group.WORLD)

    def test_multi_dtype_multi_bucket(self) -> None:
        self.init()
        model = Layers()
        model.fc2.double()
        self.reducer_of(model)

    def backward(self, reducer: Any, model: nn.Module, *arguments: Any) -> None:
        loss = F.cross_entropy(model(torch.rand(10, 2), *arguments), torch.arange(10) % 4)
        reducer.prepare_for_backward(loss)
        loss.backward()

    def test_forward_backward(self) -> None:
        self.init()
        model = Layers()
        model.fc2.double()
        self.backward(self.reducer_of(model), model)

        self.assertTrue(all(parameter.grad is not None for parameter in model.parameters()))

    def test_forward_backward_unused_parameters(self) -> None:
        self.init()
        model = Layers()
        self.backward(self.reducer_of(model, unused=True), model, False)

        self.assertIsNone(model.fc3.weight.grad)

    def test_forward_backward_optimizer(self) -> None:
        self.init()
        model = Layers()
        reducer = self.reducer_of(model)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            self.backward(reducer, model)
            optimizer.step()

            self.assertIsNotNone(model.fc1.weight.grad, f"step {step}")


@on_both_arms
class TestBucketAssignment(Bodies):
    ranks = 1

    def check(self, sizes: list[tuple[int, torch.dtype]], limits: list[int], buckets: Any, used: list[int]) -> None:
        tensors = [torch.empty(size, dtype=dtype) for size, dtype in sizes]
        self.assertEqual(dist._compute_bucket_assignment_by_size(tensors, limits), (buckets, used))

    def test_single_limit_single_dtype(self) -> None:
        sizes = [(size, torch.float) for size in (100, 200, 100, 50)]
        self.check(sizes, [400], [[0], [1], [2], [3]], [400] * 4)

    def test_single_limit_multi_dtype(self) -> None:
        self.check([(50, torch.float), (25, torch.double)] * 3, [400], [[0, 2], [1, 3], [4], [5]], [400] * 4)

    def test_multi_limit_single_dtype(self) -> None:
        self.check([(10, torch.float)] * 4, [40, 80], [[0], [1, 2], [3]], [40, 80, 80])

    def test_multi_limit_multi_dtype(self) -> None:
        sizes = [(50, torch.float), (25, torch.double)] * 3
        self.check(sizes, [200, 400], [[0], [1], [2, 4], [3, 5]], [200, 200, 400, 400])


@on_both_arms
class TestBatchNorm(Bodies):
    ranks = 2

    def test_broadcast_buffers_and_batch_norm_with_empty_input(self) -> None:
        """SyncBatchNorm itself needs GPUs; DDP's handling of buffers and empty batches does not."""
        self.init()
        model = DistributedDataParallel(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2 * 28 * 28, 2)))
        out = model(torch.zeros(3 if self.rank else 0, 2, 30, 30))
        out.sum().backward()

        self.assertFalse(out.isnan().any().item())
        for parameter in model.parameters():
            assert parameter.grad is not None
            self.assertFalse(parameter.grad.isnan().any().item())
