"""The modes of DDP: gradients, parameters and losses equal those of real Gloo bit for bit."""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with the types themselves.

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.parity.arms import digest, simulated
from tests.real_gloo import run_real

WORLD_SIZES = (2, 3)
STEPS = 3

Outcome = dict[str, str]


class Net(nn.Module):
    """Two branches, one of which a step may leave out, on a shared trunk with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh())
        self.left = nn.Linear(32, 4)
        self.right = nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor, which: str = "both") -> torch.Tensor:
        shared = self.trunk(inputs)
        if which == "left":
            return torch.as_tensor(self.left(shared))
        if which == "right":
            return torch.as_tensor(self.right(shared))
        return torch.as_tensor(self.left(shared) + self.right(shared))


def ddp(**settings: Any) -> DistributedDataParallel:
    # Buckets of a few kilobytes: several all_reduces for each backward.
    return DistributedDataParallel(Net(), bucket_cap_mb=0.004, **settings)


def batches(count: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(count):
        yield torch.randn(6, 8, generator=random), torch.randn(6, 4, generator=random)


def train(
    model: DistributedDataParallel,
    *,
    which: Callable[[int], str] = lambda step: "both",
    steps: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
) -> Outcome:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outcome = {}
    for step, (inputs, targets) in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs, which(step)), targets)
        loss.backward()  # type: ignore[no-untyped-call] # torch's own gap
        outcome[f"loss {step}"] = float(loss).hex()
        outcome[f"gradients {step}"] = digest(*gradients(model))
        optimizer.step()
    return outcome | state(model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def state(model: nn.Module) -> Outcome:
    return {"parameters": digest(*model.parameters()), "buffers": digest(*model.buffers())}


def plain() -> Outcome:
    return train(ddp())


def unused_parameters() -> Outcome:
    return train(ddp(find_unused_parameters=True), which=lambda step: ("left", "right", "both")[step])


def unused_on_some_ranks() -> Outcome:
    return train(ddp(find_unused_parameters=True), which=lambda step: ("left", "both")[(dist.get_rank() + step) % 2])


def static_graph() -> Outcome:
    return train(ddp(static_graph=True))


def static_graph_with_unused_parameters() -> Outcome:
    return train(ddp(static_graph=True), which=lambda step: "left")


def bucket_views() -> Outcome:
    return train(ddp(gradient_as_bucket_view=True))


def without_buffers() -> Outcome:
    return train(ddp(broadcast_buffers=False))


def accumulated() -> Outcome:
    model = ddp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, targets) in enumerate(batches(6)):
        if step % 3 < 2:
            with model.no_sync():
                nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            continue
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return state(model)


def hook_that_waits() -> Outcome:
    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer() / dist.get_world_size()
        dist.all_reduce(tensor)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future

    model = ddp()
    model.register_comm_hook(None, hook)
    return train(model)


def hook_that_chains() -> Outcome:
    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        future: torch.futures.Future[torch.Tensor] = (
            work.get_future().then(lambda done: done.value()[0] * 3).then(lambda done: done.value() / 7)
        )
        return future

    model = ddp()
    model.register_comm_hook(None, hook)
    return train(model)


def hook_with_two_collectives() -> Outcome:
    """Train with a hook whose first collective's callback issues a second one and waits for it."""

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        norm = buffer.norm().reshape(1)
        work = dist.all_reduce(norm, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        work.wait()
        second = dist.all_reduce(buffer.div_(norm + 1), async_op=True)
        assert second is not None
        future: torch.futures.Future[torch.Tensor] = second.get_future().then(lambda done: done.value()[0] * (norm + 1))
        return future

    model = ddp()
    model.register_comm_hook(None, hook)
    return train(model)


def allreduce_hook() -> Outcome:
    model = ddp()
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return train(model)


def fp16_hook() -> Outcome:
    model = ddp()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


def fp16_hook_on_bucket_views() -> Outcome:
    model = ddp(gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


def power_sgd() -> Outcome:
    model = ddp()
    hook_state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(hook_state, powerSGD_hook.powerSGD_hook)
    return train(model, steps=5)


def builtin_hook() -> Outcome:
    model = ddp()
    model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[no-untyped-call]
    return train(model)


def uneven_inputs() -> Outcome:
    model = ddp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for inputs, targets in batches(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return state(model)


def uneven_inputs_that_raise() -> Outcome:
    model = ddp()
    said = ""
    try:
        with model.join(throw_on_early_termination=True):
            for inputs, targets in batches(2 + 2 * dist.get_rank()):
                nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        said = str(error)
    return state(model) | {"said": said}


def zero_redundancy() -> Outcome:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns on import, so not at the top

    model = ddp()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return train(model, optimizer=optimizer)


def averaged_models() -> Outcome:
    """Train with local SGD: no gradients are reduced, parameters are averaged now and then."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = ddp()
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        for inputs, targets in batches(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            averager.average_parameters(model.parameters())
    return state(model)


def parameters_that_differ_at_first() -> Outcome:
    torch.manual_seed(dist.get_rank())
    return train(ddp())


def double_precision_and_frozen_parameters() -> Outcome:
    net = Net()
    for parameter in net.left.parameters():
        parameter.requires_grad_(False)
    net.right.double()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, inputs: torch.Tensor, which: str) -> torch.Tensor:
            shared = self.net.trunk(inputs)
            return torch.as_tensor(self.net.left(shared) + self.net.right(shared.double()).float())

    return train(DistributedDataParallel(Mixed(), bucket_cap_mb=0.004))


MODES: dict[str, Callable[[], Outcome]] = {
    mode.__name__: mode
    for mode in (
        plain,
        unused_parameters,
        unused_on_some_ranks,
        static_graph,
        static_graph_with_unused_parameters,
        bucket_views,
        without_buffers,
        accumulated,
        hook_that_waits,
        hook_that_chains,
        hook_with_two_collectives,
        allreduce_hook,
        fp16_hook,
        fp16_hook_on_bucket_views,
        power_sgd,
        builtin_hook,
        uneven_inputs,
        uneven_inputs_that_raise,
        zero_redundancy,
        averaged_models,
        parameters_that_differ_at_first,
        double_precision_and_frozen_parameters,
    )
}


def body(names: tuple[str, ...]) -> dict[str, Outcome]:
    dist.init_process_group("gloo")
    results = {}
    for name in names:
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results[name] = MODES[name]()
    return results


@cache
def reality(world_size: int) -> list[dict[str, Outcome]]:
    outcomes = run_real(body, world_size, args=(tuple(MODES),))
    assert [outcome.status for outcome in outcomes] == ["returned"] * world_size, outcomes
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_same_training(world_size: int, mode: str) -> None:
    theirs = reality(world_size)

    ours = simulated(body, world_size, args=((mode,),))

    assert [outcome.status for outcome in ours] == ["returned"] * world_size, ours
    for rank in range(world_size):
        assert ours[rank].value[mode] == theirs[rank][mode], f"rank {rank}"
