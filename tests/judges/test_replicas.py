"""Replicas that stay equal are not reported; the first that differs is named, with its rank, step and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import simdist
from tests.judges.programs import gradient_in_memory_of_sums, grouped, line_of, net, only_finding, run


def training(model: nn.Module, steps: int) -> Iterator[int]:
    """Train, and yield in each step between the backward pass and the optimizer's step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        yield step
        optimizer.step()


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def average_parameters(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def by_hand(rank: int, *, but: Callable[[int, int], bool] = lambda rank, step: False, skips: bool = False) -> None:
    """Average gradients without DDP; at some (rank, step) leave this out, or skip the optimizer."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        simdist.step(step)
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        kept = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        average(model)
        if but(rank, step) and skips:
            continue
        if but(rank, step):
            for parameter, gradient in zip(model.parameters(), kept, strict=True):
                parameter.grad = gradient
        optimizer.step()


def in_ddp(rank: int, *, spoil: Callable[[int, int, DistributedDataParallel], None] | None = None) -> None:
    model = DistributedDataParallel(net(rank))
    for step in training(model, 4):
        if spoil is not None:
            spoil(rank, step, model)


def test_replicas_that_are_averaged_by_hand_are_equal() -> None:
    assert run(by_hand).ok


def test_replicas_in_ddp_are_equal() -> None:
    assert run(in_ddp).ok


def test_a_gradient_that_one_rank_did_not_average_is_found() -> None:
    found = only_finding(run(partial(by_hand, but=lambda rank, step: (rank, step) == (1, 3))))

    assert (found.judge, found.rank, found.step, found.subject) == ("replicas", 1, 3, "0.weight")
    assert found.where == found.against == line_of(by_hand, "optimizer.step()")
    assert found.problem == "parameter 0.weight differs from ranks 0, 2 after optimizer step 3"
    assert found.notes == ("its gradients differ too",)


def test_a_rank_that_leaves_a_step_out_is_found_in_its_next() -> None:
    found = only_finding(run(partial(by_hand, but=lambda rank, step: (rank, step) == (2, 1), skips=True)))

    assert (found.rank, found.step) == (2, 2)
    assert found.problem == "parameter 0.weight differs from ranks 0, 1 after optimizer step 1"
    assert found.notes[-1] == ("rank 2 had called 12 operations by then, rank 0 8: they are not in the same step")


def test_a_rank_that_leaves_the_last_step_out_is_found_at_the_end() -> None:
    found = only_finding(run(partial(by_hand, but=lambda rank, step: (rank, step) == (0, 4), skips=True)))

    assert found.rank == 0
    assert found.problem == "0.weight is a replica, but took 4 optimizer steps here, and 5 on ranks 1, 2"


def test_of_two_ranks_the_one_that_left_its_parameters_alone_is_named() -> None:
    def body(rank: int) -> None:
        model = net()
        for step in training(model, 3):
            average(model)
            if (rank, step) == (0, 1):
                model.zero_grad()

    found = only_finding(run(body, world_size=2))

    assert (found.rank, found.step) == (0, 1)
    assert found.notes[0] == "the step left it as it was"


def test_gradients_of_ddp_are_compared_before_they_are_used() -> None:
    def spoil(rank: int, step: int, model: DistributedDataParallel) -> None:
        if (rank, step) == (1, 2):
            model.module[2].bias.grad += 1

    found = only_finding(run(partial(in_ddp, spoil=spoil)))

    assert (found.rank, found.step, found.subject) == (1, 2, "2.bias")
    assert found.problem == "gradient of 2.bias differs from ranks 0, 2 after optimizer step 2"


def by_program(rank: int) -> dist.ProcessGroup:
    """Return a group that the program has made itself, and torch does not know."""
    store: Any = dist.PrefixStore("own", dist.group.WORLD.get_group_store())  # type: ignore[attr-defined, union-attr]
    size, kind = dist.get_world_size(), dist.ProcessGroup.BackendType.GLOO
    group: Any = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(store, rank, size))  # type: ignore[call-arg]
    return group  # type: ignore[no-any-return]


class Wrapped(dist.ProcessGroup):
    """A group of the program's own class, which passes DDP's calls on."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._group: Any = group

    def getBackendName(self) -> str:
        return "wrapped"

    def allreduce(self, *args: Any) -> Any:
        return self._group.allreduce(*args)

    def allgather(self, *args: Any) -> Any:
        return self._group.allgather(*args)

    def broadcast(self, *args: Any) -> Any:
        return self._group.broadcast(*args)


@pytest.mark.parametrize("wrap", [lambda group: group, Wrapped], ids=["by_hand", "of_own_class"])
def test_ddp_over_a_group_that_torch_does_not_know_is_judged(wrap: Callable[[Any], Any]) -> None:
    def body(rank: int, *, spoils: bool) -> None:
        group = wrap(by_program(rank))
        model = DistributedDataParallel(net(rank), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            if spoils and (rank, step) == (1, 2):
                model.module[2].bias.grad += 1
            optimizer.step()

    assert run(partial(body, spoils=False)).ok
    found = only_finding(run(partial(body, spoils=True), "replicas"))
    assert (found.rank, found.step, found.subject) == (1, 2, "2.bias")


def test_what_one_rank_loads_after_ddp_is_found_before_the_first_step() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net(rank))
        if rank == 0:
            model.module.load_state_dict(net(7).state_dict())
        list(training(model, 1))

    found = only_finding(run(body))

    assert found.rank == 0
    assert found.problem == "parameter 0.weight differs from ranks 1, 2 before the first optimizer step"


def test_optimizer_state_that_one_rank_loses_is_found() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)  # so that parameters stay equal
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            if (rank, step) == (2, 2):
                optimizer.state[model.module[0].weight]["exp_avg"].zero_()
            optimizer.step()

    found = only_finding(run(body))

    assert (found.rank, found.step) == (2, 2)
    assert found.problem == "optimizer state of 0.weight differs from ranks 0, 1 after optimizer step 2"


def test_accumulation_without_synchronisation_is_found_on_every_rank() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.no_sync():
            model(torch.randn(3, 4)).sum().backward()
        optimizer.step()

    found = only_finding(run(body))

    assert found.problem == "gradient of 0.weight differs on every rank after optimizer step 0"


def test_a_replicated_dtensor_that_differs_is_found() -> None:
    def body(rank: int) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        weight = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
        sharded = nn.Parameter(distribute_tensor(torch.arange(6.0), mesh, [Shard(0)]))
        optimizer = torch.optim.SGD([weight, sharded], lr=0.1)
        for parameter in (weight, sharded):
            local = torch.full((4 if parameter is weight else 2,), float(rank))
            placement = Replicate() if parameter is weight else Shard(0)
            parameter.grad = DTensor.from_local(local, mesh, [placement], run_check=False)
        optimizer.step()

    found = only_finding(run(body))

    assert found.subject == "weight"


def test_shards_with_different_bits_are_no_replicas() -> None:
    def body(rank: int) -> None:
        torch.manual_seed(rank)
        shard = nn.Parameter(torch.randn(3))
        bias = nn.Parameter(torch.zeros(3))  # equal constants are no evidence
        optimizer = torch.optim.SGD([shard, bias], lr=0.1)
        for _ in range(2):
            shard.grad = torch.full((3,), float(rank))
            bias.grad = torch.full((3,), float(rank))
            dist.all_reduce(torch.ones(64))
            optimizer.step()

    assert run(body).ok


def test_shards_with_gradients_in_the_memory_of_sums_are_no_replicas() -> None:
    def body(rank: int) -> None:
        torch.manual_seed(rank)
        shard = nn.Parameter(torch.randn(1000))
        optimizer = torch.optim.SGD([shard], lr=0.1)
        for _ in range(2):
            shard.grad = gradient_in_memory_of_sums(1000)
            optimizer.step()

    assert run(body, "replicas").findings == ()


class _Shared(torch.optim.SGD):
    """An optimizer that shares the work: the owner of a parameter changes its gradient, and sends the parameter."""

    def step(self, closure: Any = None) -> Any:
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            owner = index % dist.get_world_size()
            if owner == dist.get_rank():
                parameter.data.sub_(parameter.grad.mul_(0.1))
            dist.broadcast(parameter.data, owner)


@pytest.mark.parametrize("misses", [False, True])
def test_gradients_that_a_step_changes_on_one_rank_are_no_difference(misses: bool) -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = _Shared(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            if misses and rank == 1:
                model.module[0].weight.grad.mul_(2.0)
            optimizer.step()

    found = run(body, "replicas").findings
    assert [each.subject for each in found] == (["0.weight"] if misses else [])


def test_a_constant_counts_where_all_else_is_the_same() -> None:
    def body(rank: int) -> None:
        torch.manual_seed(0)
        weight, bias = nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight, bias], lr=0.1)
        for _ in range(2):
            weight.grad = torch.ones(3)
            bias.grad = torch.full((3,), float(rank == 1))
            optimizer.step()
        dist.barrier()

    found = only_finding(run(body))

    assert (found.rank, found.step, found.subject) == (1, 0, "bias")


def test_ranks_that_average_their_parameters_now_and_then_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            if step % 2:
                average_parameters(model)

    assert run(body).ok


def test_stages_of_a_pipeline_that_begin_with_one_seed_are_left_alone() -> None:
    def body(rank: int) -> None:
        torch.manual_seed(0)
        stage = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
        given = torch.ones(2, 4)
        if rank:
            dist.recv(given, rank - 1)
        found = stage(given)
        if rank < dist.get_world_size() - 1:
            dist.send(found.detach(), rank + 1)
        found.sum().backward()
        optimizer.step()

    assert run(body).ok


def test_ranks_that_never_exchange_a_gradient_are_found() -> None:
    def body(rank: int) -> None:
        for _ in training(net(), 2):
            dist.all_reduce(torch.ones(1))  # the loss, perhaps

    found = only_finding(run(body))

    assert (found.step, found.subject) == (0, "0.weight")


def test_weights_that_begin_apart_and_share_their_gradients_are_found() -> None:
    def body(rank: int) -> None:
        model = net(rank)
        for _ in training(model, 2):
            average(model)

    found = only_finding(run(body))

    assert (found.rank, found.step) == (1, 0)
    assert found.problem == "parameter 0.weight differs on every rank before the first optimizer step"


def packed(rank: int, *, order: Callable[[list[nn.Parameter]], list[nn.Parameter]]) -> None:
    """Reduce all gradients as one tensor."""
    model = net()
    for _ in training(model, 3):
        gradients = [each.grad for each in order(list(model.parameters())) if each.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient in gradients:
            gradient.copy_(flat[: gradient.numel()].view_as(gradient))
            flat = flat[gradient.numel() :]


def test_gradients_that_ranks_pack_in_other_orders_are_found() -> None:
    assert run(partial(packed, order=list)).ok

    found = only_finding(run(partial(packed, order=lambda each: each[:: -1 if dist.get_rank() == 2 else 1])))

    assert (found.rank, found.step, found.subject) == (2, 0, "0.weight")


def test_ranks_that_were_equal_again_may_end_apart() -> None:
    def body(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            if step < 2:  # as in programs that take local steps only later
                average(model)
            optimizer.step()
            if step in (4, 6):
                average_parameters(model)

    assert run(body).ok


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_optimizer_inside_another_is_a_part_of_it() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()

    assert run(body).ok


def test_uneven_inputs_under_join_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        with model.join():
            list(training(model, 2 + rank))

    assert run(body).ok


@pytest.mark.parametrize("judges", [True, False])
def test_storages_can_still_be_resized(judges: bool) -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.randn(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.ones(4)
        optimizer.step()
        weight.untyped_storage().resize_(0)

    result = simdist.run(grouped(body), world_size=2, judges=judges)

    assert [rank.status for rank in result.ranks] == ["returned", "returned"]


@pytest.mark.parametrize("body", [by_hand, in_ddp])
def test_a_run_with_judges_has_the_digest_of_the_run_without(body: Callable[[int], None]) -> None:
    with_judges = simdist.run(grouped(body), world_size=3, judges=True)
    without = simdist.run(grouped(body), world_size=3)

    assert with_judges.digest == without.digest
    assert with_judges.judges == ("replicas", "collectives", "buffers", "races", "finite", "samples")


def on_devices(rank: int, *, spoil: bool, waits: bool, rewinds: bool = False) -> None:
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        kept = [each.detach().clone() for each in model.parameters()]
        optimizer.zero_grad()
        model(torch.randn(3, 4, device="cuda")).sum().backward()
        if spoil and (rank, step) == (1, 1):
            model.module[0].weight.grad += 1
        optimizer.step()
        if waits:
            torch.cuda.synchronize()
        if rewinds:
            torch._foreach_copy_([each.data for each in model.parameters()], kept)


def over_nccl(body: Callable[[int], None]) -> Callable[[], None]:
    def program() -> None:
        dist.init_process_group("nccl")
        torch.manual_seed(dist.get_rank())
        body(dist.get_rank())
        dist.destroy_process_group()

    return program


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("rewinds", [True, False])
def test_replicas_on_devices_are_looked_at_when_their_values_are_there(waits: bool, rewinds: bool) -> None:
    body = over_nccl(partial(on_devices, spoil=True, waits=waits, rewinds=rewinds))

    found = only_finding(simdist.run(body, world_size=3, backend="nccl", judges=True))

    assert (found.rank, found.step, found.subject) == (1, 1, "0.weight")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("rewinds", [True, False])
def test_equal_replicas_on_devices_are_left_alone_and_take_no_time(waits: bool, rewinds: bool) -> None:
    body = over_nccl(partial(on_devices, spoil=False, waits=waits, rewinds=rewinds))
    with_judges = simdist.run(body, world_size=3, backend="nccl", judges=True)
    without = simdist.run(body, world_size=3, backend="nccl")

    assert with_judges.ok
    assert (with_judges.digest, with_judges.virtual_time_ns) == (without.digest, without.virtual_time_ns)


def test_parameters_without_memory_of_their_own_are_left_alone() -> None:
    def train() -> None:
        dist.init_process_group("gloo")
        weight = nn.Parameter(torch.eye(2).to_sparse())
        optimizer = torch.optim.SGD([weight])
        weight.coalesce().values().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        dist.destroy_process_group()

    assert simdist.run(train, world_size=2, judges=True).ok
