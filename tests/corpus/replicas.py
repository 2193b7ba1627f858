"""Replicas that drift apart without an error."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.corpus._entries import entry


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 4, generator=generator)


def grad_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def average(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        dist.all_reduce(grad_of(parameter))
        grad_of(parameter).div_(dist.get_world_size())


@entry("pytorch/pytorch#69031", "replicas", line="optimizer.step()")
def last_micro_batch_without_synchronisation(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(2 * step)).square().mean().backward()
        if buggy:
            with model.no_sync():
                model(batch(2 * step + 1)).square().mean().backward()
        else:
            model(batch(2 * step + 1)).square().mean().backward()
        optimizer.step()


@entry("pytorch/pytorch#104336", "replicas", line="optimizer.step()")
def hooks_stay_on_the_old_parameter(buggy: bool) -> None:
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    if buggy:  # as a move to another device and back does
        model.module[2].weight = nn.Parameter(model.module[2].weight.detach().clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


@entry("pytorch/torchtitan#2416", "replicas", line="optimizer.step()")
def gradient_of_the_router_is_not_reduced(buggy: bool) -> None:
    model = net()
    router = nn.Linear(4, 2)
    with torch.no_grad():
        router.weight.copy_(torch.arange(8.0).reshape(2, 4) / 10)
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD([*parameters, router.weight], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        given = batch(step)
        (model(given) * router(given).softmax(-1)).square().mean().backward()
        average(parameters if buggy else [*parameters, router.weight])
        optimizer.step()


@entry("kubeflow/pytorch-operator#122", "collectives", rank=0, line="dist.all_reduce(parameter.grad)")
def gradients_are_averaged_by_ddp_and_by_the_program(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        for parameter in model.parameters() if buggy else []:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


@entry("bigcode-project/Megatron-LM#11", "replicas", line="optimizer.step()")
def bias_of_shared_heads_misses_the_sum(buggy: bool) -> None:
    model = net()
    bias = nn.Parameter(torch.linspace(0.1, 0.4, 4))
    optimizer = torch.optim.SGD([*model.parameters(), bias], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step) + bias).square().mean().backward()
        average([*model.parameters()] if buggy else [*model.parameters(), bias])
        optimizer.step()


@entry("deepspeedai/DeepSpeed#7568", "replicas", rank=1, line="optimizer.step()")
def one_rank_skips_the_step_on_overflow(buggy: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        overflow = torch.tensor(float(step == 1 and dist.get_rank() == 1))
        average([*model.parameters()])
        if not buggy:
            dist.all_reduce(overflow)
        if not overflow:
            optimizer.step()


@entry("huggingface/transformers#48569", "replicas", rank=1, line="optimizer.step()")
def optimizer_is_restored_on_one_rank_only(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        if step == 2 and buggy and dist.get_rank() == 1:
            optimizer.state.clear()
        optimizer.step()


@entry("NVIDIA/Megatron-LM#6920", "replicas", rank=0, line="optimizer.step()")
def checkpoint_is_loaded_on_rank_0_after_ddp_was_made(buggy: bool) -> None:
    saved = {name: value + 1 for name, value in net().state_dict().items()}
    model = DistributedDataParallel(net())
    if dist.get_rank() == 0 or not buggy:
        model.module.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


@entry("pytorch/torchtitan#766", "replicas", line="optimizer.step()")
def gradients_are_clipped_by_the_norm_of_the_rank(buggy: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        if buggy:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        average([*model.parameters()])
        if not buggy:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= (0.1 / norm).clamp(max=1.0)
        optimizer.step()
        dist.all_reduce(torch.ones(64))


@entry("pytorch/pytorch#124193", "replicas", line="optimizer.step()")
def parameters_of_a_branch_miss_their_reduction(buggy: bool) -> None:
    trunk, branch = net(), nn.Linear(4, 2)
    with torch.no_grad():
        branch.weight.copy_(torch.arange(8.0).reshape(2, 4) / 10)
    used = [*trunk.parameters(), branch.weight]
    optimizer = torch.optim.SGD(used, lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        given = batch(step)
        (trunk(given) + branch(given) if step < 2 else trunk(given)).square().mean().backward()
        if not buggy and branch.weight.grad is None:
            branch.weight.grad = torch.zeros_like(branch.weight)
        reduced = used if step != 1 or not buggy else [*trunk.parameters()]
        average([parameter for parameter in reduced if parameter.grad is not None])
        optimizer.step()


@entry("lucidrains/ema-pytorch#9", "replicas", line="optimizer.step()")
def only_rank_0_keeps_the_average_that_all_go_back_to(buggy: bool) -> None:
    model = net()
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        average(model.parameters())
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(averages, model.parameters(), strict=True):
                if dist.get_rank() == 0 or not buggy:
                    kept.lerp_(parameter, 0.5)
                if step == 1:
                    parameter.copy_(kept)


@entry("pytorch/pytorch#174862", "replicas", line="optimizer.step()")
def gradient_of_a_branch_is_there_on_one_rank_only(buggy: bool) -> None:
    model, branch = net(), nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        branch.weight.copy_(torch.arange(8.0).reshape(2, 4) / 10)
    optimizer = torch.optim.SGD([*model.parameters(), branch.weight], lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        given = batch(step)
        takes_branch = dist.get_rank() == 0
        output = model(given) + (branch(given) if takes_branch else 0.0)
        output.square().mean().backward()
        if not buggy and branch.weight.grad is None:
            branch.weight.grad = torch.zeros_like(branch.weight)
        average([*model.parameters()] if buggy else [*model.parameters(), branch.weight])
        optimizer.step()


@entry("facebookresearch/maskrcnn-benchmark#692", "")
def statistics_of_normalisation_stay_with_each_rank(buggy: bool) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(2))
    wrapped = DistributedDataParallel(model, broadcast_buffers=not buggy)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        wrapped(batch(step)).square().mean().backward()
        optimizer.step()


@entry("pytorch/torchtitan#166", "replicas", rank=1, line="optimizer.step()")
def weights_that_rank_0_sends_arrive_in_copies(buggy: bool) -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach().clone() if buggy else parameter.detach(), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        average(model.parameters())
        optimizer.step()


@entry("NVIDIA-NeMo/Megatron-Bridge#4082", "replicas", rank=1, line="optimizer.step()")
def copies_with_more_bits_keep_their_first_weights(buggy: bool) -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 2)
    masters = [nn.Parameter(parameter.detach().double()) for parameter in model.parameters()]
    wrapped = DistributedDataParallel(model)
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters(), strict=True):
            if not buggy:
                master.copy_(parameter)
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for step in range(3):
        model.zero_grad()
        wrapped(batch(step)).square().mean().backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = grad_of(parameter).double()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


@entry("apache/mxnet#17056", "replicas", rank=1, line="optimizer.step()")
def gradients_are_packed_in_the_order_of_each_rank(buggy: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = dict(model.named_parameters())
    order = sorted(named, reverse=buggy and dist.get_rank() == 1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        flat = torch.cat([grad_of(named[name]).flatten() for name in order])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for name in order:
            gradient = grad_of(named[name])
            gradient.copy_(flat[: gradient.numel()].view_as(gradient))
            flat = flat[gradient.numel() :]
        optimizer.step()


@entry("horovod/horovod#854", "replicas", rank=1, line="backward()")
def a_gradient_is_not_reduced_where_no_optimizer_steps(buggy: bool) -> None:
    model = net()
    parameters = list(model.parameters())
    for step in range(3):
        model(batch(step)).square().mean().backward()
        average(parameters[:-1] if buggy else parameters)
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(0.1 * grad_of(parameter))
                parameter.grad = None


@entry("huggingface/lerobot#3668", "replicas", rank=0, line=".backward()")
def main_process_stays_in_evaluation_mode(buggy: bool) -> None:
    model = DistributedDataParallel(nn.Sequential(net(), nn.Dropout(0.1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and dist.get_rank() == 0:
            model.module.eval()
            with torch.no_grad():
                model.module(batch(0))
            if not buggy:
                model.module.train()


@entry("meta-pytorch/torchforge#71", "replicas", rank=0, line=".backward()")
def gradients_are_never_cleared(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if not buggy:
            optimizer.zero_grad()


@entry("lucidrains/byol-pytorch#93", "replicas", line="optimizer.step()")
def gradients_are_cleared_before_the_step(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if not buggy:
            optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        if buggy:
            optimizer.zero_grad()
        optimizer.step()
