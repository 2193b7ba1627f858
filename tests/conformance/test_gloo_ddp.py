"""DistributedDataParallel over Gloo on CPU.

`seeds.py` says which of PyTorch's tests these and those of `test_gloo_reducer.py` are. There are also tests of plain
training, unused parameters, ignored sharded tensors, sparse gradients, checkpoints, communication hooks.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from tests.conformance.arms import Bodies, on_both_arms

Tensor = torch.Tensor
# Their stubs leave out much of what is called here.
dist: Any = torch.distributed
F: Any = nn.functional
DistributedDataParallel: Any = nn.parallel.DistributedDataParallel


def untyped(hook: Any) -> Any:
    """Return the hook without annotations: torch would read them, but here they are texts."""
    hook.__annotations__ = {}
    return hook


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 10, bias=False),
            nn.ReLU(),
            nn.Linear(10, 50, bias=False),
            nn.ReLU(),
            nn.Linear(50, 4, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.softmax(self.layers(x), dim=1)
        return out


class WithShards(nn.Module):
    """A layer, and a parameter that is sharded over the ranks."""

    def __init__(self, shards: Any) -> None:
        super().__init__()
        self.first = nn.Linear(2, 10, bias=False)
        self.shards: Any = nn.Parameter(shards)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.softmax(F.relu(self.first(x)), dim=1)
        return out


class Branches(nn.Module):
    """A shared layer, and one branch for each rank."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.shared = nn.Linear(2, 4, bias=False)
        self.branches = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(ranks))
        self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        out: Tensor = self.branches[branch](self.shared(x))
        return out


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor, rank: int) -> Tensor:
        return self.p + (x + rank)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(10, 10, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.softmax(self.embedding(x), dim=1)
        return out


class Fourier(nn.Module):
    """Complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3, 16, 9, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.einsum("nchw,cohw->nohw", torch.fft.rfft2(x, norm="ortho"), self.weight)
        out: Tensor = torch.fft.irfft2(spectrum, s=(16, 16), norm="ortho")
        return out


@on_both_arms
class TestTraining(Bodies):
    ranks = 2

    def train(self, model: Any, parallel: Any, batch: Tensor, target: Tensor) -> None:
        """Check that two steps on the whole batch and on this rank's part of it end with equal parameters."""
        for _ in range(2):
            for each, mine in ((model, slice(None)), (parallel, slice(self.rank, self.rank + 1))):
                F.mse_loss(each(batch[mine]), target[mine]).backward()
                with torch.no_grad():
                    for parameter in each.parameters():
                        parameter -= parameter.grad
                        parameter.grad = None
            pairs = zip(model.parameters(), parallel.parameters(), strict=True)
            for one, other in pairs:
                self.assertEqual(one, other, rtol=1.3e-6, atol=5e-5)
            batch, target = batch.flip(0), target.flip(0)

    def check_training(self, **kwargs: Any) -> None:
        self.init()
        torch.manual_seed(1337)
        model = Net()
        parallel = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.001, **kwargs)

        self.assertFalse(parallel._get_ddp_logging_data().get("is_multi_device_module"))
        self.train(model, parallel, torch.randn(2, 2), torch.randn(2, 4))

    def test_gloo_backend_cpu_module(self) -> None:
        self.check_training()

    def test_gloo_backend_cpu_module_grad_is_view(self) -> None:
        self.check_training(gradient_as_bucket_view=True)

    def test_ddp_with_a_group_of_its_own(self) -> None:
        self.init()
        self.train_in(dist.new_group([0, 1]))

    def train_in(self, group: Any) -> None:
        torch.manual_seed(7)
        model = Net()
        parallel = DistributedDataParallel(copy.deepcopy(model), process_group=group)
        self.train(model, parallel, torch.randn(2, 2), torch.randn(2, 4))

    def test_complex_parameters(self) -> None:
        self.init()
        torch.manual_seed(0)
        model: Any = Fourier()
        parallel = DistributedDataParallel(copy.deepcopy(model))
        batch = torch.randn(2, 3, 16, 16)
        parallel(batch[self.rank : self.rank + 1]).square().mean().backward()
        model(batch).square().mean().backward()

        self.assertEqual(parallel.module.weight.grad, model.weight.grad)

    def check_unused(self, *, static: bool = False, **kwargs: Any) -> None:
        self.init()
        torch.manual_seed(0)
        parallel = DistributedDataParallel(
            Branches(2), find_unused_parameters=not static, static_graph=static, **kwargs
        )
        for _ in range(2):
            parallel(torch.ones(3, 2), self.rank if not static else 0).mean().backward()
        module: Any = parallel.module

        # Parameters that any rank used have gradients on all ranks; those that none used have none.
        used = [module.branches[0].weight] if static else [branch.weight for branch in module.branches]
        for parameter in [module.shared.weight, *used]:
            self.assertIsNotNone(parameter.grad)
            self.assertNotEqual(parameter.grad.abs().sum().item(), 0)
        unused = module.unused.weight.grad
        self.assertTrue(unused is None or not unused.any())

    def test_global_local_unused_params_grad(self) -> None:
        self.check_unused()

    def test_global_local_unused_params_grad_with_grad_is_view(self) -> None:
        self.check_unused(gradient_as_bucket_view=True)

    def test_global_local_unused_params_grad_with_static_graph(self) -> None:
        self.check_unused(static=True)

    def test_find_unused_parameters_when_unused_parameters_empty(self) -> None:
        self.init()
        torch.manual_seed(0)
        parallel = DistributedDataParallel(Net(), find_unused_parameters=True)
        for _ in range(2):
            parallel(torch.ones(3, 2)).square().mean().backward()

        self.assertTrue(all(parameter.grad is not None for parameter in parallel.parameters()))

    def test_ignored_output(self) -> None:
        self.init()
        torch.manual_seed(0)
        model = DistributedDataParallel(Net())
        batch, target = torch.rand(4, 2), torch.LongTensor([0, 1, 2, 3])
        for _ in range(4):  # without backward in between
            model(batch)
        for _ in range(4):
            F.cross_entropy(model(batch), target).backward()

        self.assertTrue(all(parameter.grad is not None for parameter in model.parameters()))

    def test_ignored_output_with_unused_parameters(self) -> None:
        self.init()
        torch.manual_seed(0)
        model = DistributedDataParallel(Branches(2), find_unused_parameters=True)
        for _ in range(4):
            model(torch.rand(4, 2), 0)
        for _ in range(4):
            model(torch.rand(4, 2), 0).mean().backward()

        self.assertIsNotNone(model.module.shared.weight.grad)

    def test_ignored_sharded_tensor(self) -> None:
        # In torch's test the shards are on GPUs.
        self.init()
        spec = ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(self.world_size)])
        model = WithShards(sharded_tensor.ones(spec, 8, 3))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["shards"])
        parallel = DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False, static_graph=True
        )
        parallel(torch.full((4, 2), float(self.rank))).square().sum().backward()

        self.assertEqual(model.shards.local_shards()[0].tensor.shape, (8 // self.world_size, 3))
        self.assertIsNone(model.shards.grad)
        gradients = [torch.zeros_like(model.first.weight) for _ in range(self.world_size)]
        dist.all_gather(gradients, model.first.weight.grad)
        self.assertTrue(all(gradient.equal(gradients[0]) for gradient in gradients))

    def test_unused_parameters_without_a_word_fail_in_the_second_step(self) -> None:
        self.init()
        model = DistributedDataParallel(Branches(2))
        model(torch.ones(3, 2), 0).mean().backward()

        with self.assertRaisesRegex(RuntimeError, "Expected to have finished reduction in the prior iteration"):
            model(torch.ones(3, 2), 0).mean().backward()

    def test_save_load_checkpoint(self) -> None:
        self.init()
        torch.manual_seed(1337)
        path = Path(tempfile.gettempdir()) / f"{Path(self.file_name).name}.checkpoint"
        batch, target = torch.rand(4, 2), torch.LongTensor([0, 1, 2, 3])

        def train(model: nn.Module, steps: int) -> None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            for _ in range(steps):
                optimizer.zero_grad()
                F.cross_entropy(model(batch), target).backward()
                optimizer.step()

        model = DistributedDataParallel(Net())
        train(model, 6)
        if self.rank == 0:
            torch.save(model.state_dict(), path)
        dist.barrier()
        loaded, unwrapped = DistributedDataParallel(Net()), Net()
        state = torch.load(path)
        loaded.load_state_dict(state)
        nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        unwrapped.load_state_dict(state)
        dist.barrier()
        if self.rank == 0:
            path.unlink()
        train(model, 2)
        train(loaded, 2)

        self.assertEqual(dict(model.state_dict()), dict(loaded.state_dict()))
        self.assertEqual(sorted(state), sorted(unwrapped.state_dict()))

    def check_sparse(self, **kwargs: Any) -> None:
        self.init()
        torch.manual_seed(1337)
        model: Any = Bag()
        parallel = DistributedDataParallel(copy.deepcopy(model), **kwargs)
        batch = torch.randint(0, 10, [2, 2])
        model(batch).mean().backward()
        parallel(batch[self.rank : self.rank + 1]).mean().backward()

        expected = model.embedding.weight.grad
        found = parallel.module.embedding.weight.grad
        self.assertTrue(found.is_sparse)
        self.assertEqual(found.coalesce(), expected.coalesce())

    def test_sparse_gradients(self) -> None:
        self.check_sparse()

    def test_sparse_gradients_grad_is_view(self) -> None:
        self.check_sparse(gradient_as_bucket_view=True)


@on_both_arms
class TestCommunicationHooks(Bodies):
    ranks = 2

    def verify(self, model: Any, expected: Tensor) -> None:
        model(torch.ones(2, 2), self.rank).mean().backward()
        self.assertEqual([parameter.grad for parameter in model.parameters()], [expected])

    def test_ddp_comm_hook_future_passing_cpu(self) -> None:
        self.init()

        @untyped
        def hook(state: object, bucket: Any) -> Any:
            future: Any = torch.futures.Future()
            future.set_result(torch.ones_like(bucket.buffer()))
            return future.then(lambda done: done.value() + torch.ones_like(bucket.buffer()))

        model = DistributedDataParallel(Shift())
        model.register_comm_hook(None, hook)

        self.verify(model, 2 * torch.ones(2, 2))

    def test_ddp_comm_hook_with_an_all_reduce(self) -> None:
        self.init()

        @untyped
        def hook(state: Any, bucket: Any) -> Any:
            future = dist.all_reduce(bucket.buffer(), group=state, async_op=True).get_future()
            return future.then(lambda done: done.value()[0] / 4)

        model = DistributedDataParallel(Shift())
        model.register_comm_hook(dist.group.WORLD, hook)

        self.verify(model, 0.125 * torch.ones(2, 2))

    def test_ddp_comm_hook_sparse_gradients(self) -> None:
        self.init()
        torch.manual_seed(1337)
        model: Any = Bag()
        parallel = DistributedDataParallel(copy.deepcopy(model))

        @untyped
        def hook(state: object, bucket: Any) -> Any:
            bucket.buffer().div_(2)
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        parallel.register_comm_hook(None, hook)
        batch = torch.randint(0, 10, [2, 2])
        model(batch).mean().backward()
        parallel(batch[self.rank : self.rank + 1]).mean().backward()

        gradients = [each.embedding.weight.grad for each in (parallel.module, model)]
        self.assertEqual(gradients[0].coalesce(), gradients[1].coalesce())

    def test_ddp_invalid_comm_hook_init(self) -> None:
        self.init()
        model = DistributedDataParallel(Shift())

        with self.assertRaisesRegex(TypeError, "Communication hook must be callable."):
            model.register_comm_hook(state=None, hook=1)
        with self.assertRaisesRegex(ValueError, "bucket annotation should be dist.GradBucket."):

            def hook(state: object, bucket: int) -> Any:
                return torch.futures.Future()

            model.register_comm_hook(None, hook)

    def test_ddp_invalid_comm_hook_return_type(self) -> None:
        self.init()
        model = DistributedDataParallel(Shift())

        def annotated(state: object, bucket: dist.GradBucket) -> int:
            return 1

        @untyped
        def hook(state: object, bucket: Any) -> Any:
            return 1

        annotated.__annotations__ = {"state": object, "bucket": dist.GradBucket, "return": int}
        with self.assertRaisesRegex(ValueError, "Communication hook: return annotation should be torch.futures.Future"):
            model.register_comm_hook(None, annotated)
        model.register_comm_hook(None, hook)
        with self.assertRaisesRegex(RuntimeError, "callback must return a torch.futures.Future"):
            model(torch.ones(2, 2), self.rank).mean().backward()

    def test_ddp_comm_hook_register_just_once(self) -> None:
        self.init()
        model = DistributedDataParallel(Shift())

        @untyped
        def hook(state: object, bucket: Any) -> Any:
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, hook)
        with self.assertRaisesRegex(
            RuntimeError, "register_comm_hook or register_builtin_comm_hook can only be called once."
        ):
            model.register_comm_hook(None, hook)

    def test_builtin_hooks(self) -> None:
        self.init()
        for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
            model = DistributedDataParallel(Shift())
            model._register_builtin_comm_hook(kind)
            self.verify(model, 0.25 * torch.ones(2, 2))

    def test_powersgd_hook(self) -> None:
        self.init()
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(16, 16, bias=False))
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            model(torch.ones(2, 16) * (self.rank + 1)).mean().backward()
        gathered = [torch.zeros(16, 16) for _ in range(2)]
        dist.all_gather(gathered, model.module.weight.grad)

        self.assertEqual(gathered[0], gathered[1])

    def test_invalid_powerSGD_state(self) -> None:
        for start, feedback, warm in itertools.product([0, 1], [True, False], [True, False]):
            with (
                self.assertRaisesRegex(ValueError, "Expect `start_powerSGD_iter` > 1 if `use_error_feedback`")
                if feedback or warm
                else nullcontext()
            ):
                powerSGD_hook.PowerSGDState(
                    process_group=None,
                    matrix_approximation_rank=1,
                    start_powerSGD_iter=start,
                    use_error_feedback=feedback,
                    warm_start=warm,
                )
