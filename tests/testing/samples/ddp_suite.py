"""A suite for torch's multi-process test case, as `gloo_suite`: of DistributedDataParallel."""

# mypy: ignore-errors
# (torch's test helpers are untyped, and this is a suite as people have it)

import copy
import unittest
from typing import Any

import torch
import torch.distributed as c10d
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import requires_gloo

# isort: split
from torch.testing._internal.common_distributed import MultiProcessTestCase


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 10, bias=False)
        self.fc2 = nn.Linear(10, 4, bias=False)
        self.unused = nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class DistributedDataParallelTest(MultiProcessTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def check_gradients(self, **options: Any) -> None:
        """A gradient of DDP is the mean of what each rank has alone. Models die before their group."""
        torch.manual_seed(7)
        alone = Net()
        together = DistributedDataParallel(copy.deepcopy(alone), **options)
        for step in range(3):
            every = [torch.randn(5, 2, generator=torch.Generator().manual_seed(10 * step + i)) for i in range(4)]
            alone.zero_grad()
            sum(alone(each).square().sum() for each in every).div(4).backward()
            together.zero_grad()
            together(every[self.rank]).square().sum().backward()
            for name in ("fc1", "fc2"):
                self.assertEqual(getattr(together.module, name).weight.grad, getattr(alone, name).weight.grad)

    def start(self) -> None:
        store = c10d.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    @requires_gloo()
    def test_unused_parameters(self) -> None:
        self.start()
        self.check_gradients(find_unused_parameters=True)

    @requires_gloo()
    def test_static_graph(self) -> None:
        self.start()
        self.check_gradients(static_graph=True, gradient_as_bucket_view=True)

    @requires_gloo()
    def test_unused_parameters_are_an_error_by_default(self) -> None:
        self.start()

        def train() -> None:
            model = DistributedDataParallel(Net())
            for _ in range(2):
                model(torch.randn(5, 2)).sum().backward()

        with self.assertRaisesRegex(RuntimeError, "Expected to have finished reduction in the prior iteration"):
            train()

    @requires_gloo()
    def test_no_sync(self) -> None:
        self.start()

        def train() -> list[float]:
            torch.manual_seed(7)
            model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
            weight = model.module.weight
            with model.no_sync():
                model(torch.full((1, 2), float(self.rank))).sum().backward()
            assert weight.grad is not None
            found = [weight.grad[0, 0].item()]
            model(torch.full((1, 2), float(self.rank))).sum().backward()
            return [*found, weight.grad[0, 0].item()]

        self.assertEqual(train(), [float(self.rank), 3.0])

    @requires_gloo()
    def test_comm_hook(self) -> None:
        self.start()

        def train() -> torch.Tensor:
            torch.manual_seed(7)
            model = DistributedDataParallel(nn.Linear(2, 1, bias=False))

            def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
                future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()  # type: ignore[union-attr]  # a work
                return future.then(lambda done: done.value()[0] * 10)

            model.register_comm_hook(None, hook)
            model(torch.full((1, 2), float(self.rank))).sum().backward()
            gradient = model.module.weight.grad
            assert gradient is not None
            return gradient

        self.assertEqual(train(), torch.full((1, 2), 60.0))

    @requires_gloo()
    def test_training_keeps_models_equal(self) -> None:
        self.start()

        def train() -> torch.Tensor:
            torch.manual_seed(self.rank)
            model = DistributedDataParallel(nn.Linear(4, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            return model.module.weight.detach().clone()

        mine = train()
        every = [torch.empty_like(mine) for _ in range(4)]
        dist.all_gather(every, mine)
        for each in every:
            self.assertEqual(each, mine, rtol=0, atol=0)


if __name__ == "__main__":
    unittest.main()
