"""Groups on tensors of devices: over Gloo, through host memory."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.errors import UnsupportedError
from simdist.process import current_process
from tests.device.worlds import cuda, model, trained, values

MS = 1_755_000
dcp: Any = importlib.import_module("torch.distributed.checkpoint")


def join(backend: str = "gloo") -> int:
    """Begin like a script under torchrun."""
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group(backend)
    return rank


def of_ranks(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda")


def test_collectives_take_and_fill_tensors_of_devices() -> None:
    def body() -> dict[str, Any]:
        rank = join()
        own = of_ranks(rank + 1.0, 10.0)
        found: dict[str, Any] = {}

        def note(name: str, *tensors: torch.Tensor) -> None:
            assert all(each.device == cuda(rank) for each in tensors)
            found[name] = [each.tolist() for each in tensors]

        summed = own.clone()
        dist.all_reduce(summed)
        note("all_reduce", summed)
        sent = own.clone()
        dist.broadcast(sent, 1)
        note("broadcast", sent)
        reduced = own.clone()
        dist.reduce(reduced, 0, dist.ReduceOp.MAX)
        note("reduce", reduced)
        gathered = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(gathered, own)
        note("all_gather", *gathered)
        whole = torch.empty(4, device="cuda")
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, own)  # the name since torch 2.13
        note("all_gather_single", whole)
        dist.gather(own, gathered if rank == 0 else None, 0)
        part = torch.empty(2, device="cuda")
        dist.scatter(part, [own, own * 2] if rank == 0 else None, 0)
        note("scatter", part)
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, torch.cat([own, own]))
        note("reduce_scatter_single", part)
        dist.reduce_scatter(part, [own, own * 2])
        note("reduce_scatter", part)
        dist.all_to_all_single(part, own)
        note("all_to_all_single", part)
        dist.all_to_all(gathered, [own, own + 1])
        note("all_to_all", *gathered)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, rank)
        found["all_gather_object"] = objects
        world: Any = dist.group.WORLD
        note("functional", functional.all_reduce(own, "sum", world) + 1)
        note(
            "functional gather",
            getattr(functional, "all_gather_single", functional.all_gather_tensor)(own, 0, world) + 1,
        )
        dist.barrier()
        return found

    first, second = values(body, world_size=2)

    assert first == {
        "all_reduce": [[3, 20]],
        "broadcast": [[2, 10]],
        "reduce": [[2, 10]],
        "all_gather": [[1, 10], [2, 10]],
        "all_gather_single": [[1, 10, 2, 10]],
        "scatter": [[1, 10]],
        "reduce_scatter_single": [[3, 20]],
        "reduce_scatter": [[3, 20]],
        "all_to_all_single": [[1, 2]],
        "all_to_all": [[1, 10], [2, 10]],
        "all_gather_object": [0, 1],
        "functional": [[4, 21]],
        "functional gather": [[2, 11, 3, 11]],
    }
    assert second["scatter"] == [[2, 20]]
    assert second["all_to_all_single"] == [[10, 10]]
    assert second["reduce_scatter"] == [[6, 40]]


def test_a_group_copies_what_it_is_given_when_it_is_called() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = of_ranks(rank + 1.0)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        tensor.fill_(100)
        work.wait()
        (result,) = work.result()
        assert result is tensor
        return tensor.tolist()  # type: ignore[no-any-return]

    assert values(body, world_size=2) == [[3], [3]]


def test_a_future_holds_the_tensors_of_the_device() -> None:
    def body() -> list[float]:
        rank = join()
        work = dist.all_reduce(of_ranks(rank + 1.0), async_op=True)
        assert work is not None
        (result,) = work.get_future().then(lambda future: [future.value()[0] * 2]).wait()
        assert result.device == cuda(rank)
        return result.tolist()  # type: ignore[no-any-return]

    assert values(body, world_size=2) == [[6], [6]]


def test_an_operation_begins_when_its_stream_is_ready() -> None:
    def body() -> int:
        rank = join()
        process = current_process()
        assert process is not None
        begun_ns = process.simulation.now_ns
        if rank == 1:
            torch.cuda._sleep(50 * MS)
        dist.all_reduce(of_ranks(1.0))
        return (process.simulation.now_ns - begun_ns) // 1_000_000

    assert all(50 <= took < 60 for took in values(body, world_size=2))


def test_a_failed_operation_leaves_the_tensor_as_it_was() -> None:
    def body() -> Any:
        rank = join()
        if rank == 1:
            return None
        tensor = of_ranks(5.0)
        with pytest.raises(RuntimeError, match="Connection closed by peer"):
            dist.all_reduce(tensor)
        return tensor.tolist()

    assert values(body, world_size=2)[0] == [5]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda tensor: dist.all_reduce_coalesced([tensor]),
            RuntimeError,
            "ProcessGroupGloo::allreduce_coalesced: unsupported device type cuda",
        ),
        (lambda tensor: dist.send(tensor, 1), UnsupportedError, "Gloo's send takes CPU tensors only"),
        (lambda tensor: dist.recv(tensor, 1), UnsupportedError, "Gloo's recv takes CPU tensors only"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_gloo_has_for_the_cpu_only_is_refused(
    call: Callable[[Any], Any], error: type[Exception], text: str
) -> None:
    def body() -> None:
        if join() == 0:
            with pytest.raises(error, match=text):
                call(of_ranks(1.0))

    values(body, world_size=2)


def test_tensors_that_do_not_fit_are_reported_with_their_device() -> None:
    def body() -> None:
        rank = join()
        group: Any = dist.group.WORLD
        with pytest.raises(RuntimeError) as caught:
            group.allreduce([of_ranks(1.0), torch.ones(1, dtype=torch.int64, device="cuda")])
        rest = "layout=Strided, requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
        assert str(caught.value) == (
            "ProcessGroupGloo::allreduce: invalid tensor type at index 0 "
            f"(expected TensorOptions(dtype=float, device=cuda:{rank}, {rest}, "
            f"got TensorOptions(dtype=long int, device=cuda:{rank}, {rest})"
        )

    values(body, world_size=2)


def test_debug_level_detail_checks_calls_on_devices() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = of_ranks(rank + 1.0)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert values(body, world_size=2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) == [[3], [3]]


def test_a_group_without_devices_refuses_them_in_torch_s_words() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo")
        group: Any = dist.group.WORLD
        with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
            group._get_backend(torch.device("cuda"))
        return [each.type for each in group._device_types]

    assert simdist.run(body, world_size=1).values == [["cpu"]]


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"])
def test_ddp_trains_on_devices_to_the_bits_of_the_cpu(backend: str) -> None:
    def body() -> tuple[Any, Any]:
        rank = join(backend)
        return trained(cuda(rank), [rank], 12), trained("cpu", None, 12)  # DDP takes statistics in the tenth

    results = values(body, world_size=2)

    everything = [numbers for result in results for numbers in result]
    for numbers in everything[1:]:
        assert all(torch.equal(one, other) for one, other in zip(everything[0], numbers, strict=True))


def test_fsdp_shards_and_trains_on_devices() -> None:
    def body() -> None:
        rank = join()
        mesh = init_device_mesh("cuda", (2,))
        module: Any = model(rank)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in module:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
        before = [each.full_tensor().clone() for each in module.parameters()]
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.randn(3, 4, device="cuda")).square().mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        weight = next(module.parameters())
        assert weight.device == weight.full_tensor().device == cuda(rank)
        assert weight.to_local().shape == (4, 4)
        after = [each.full_tensor() for each in module.parameters()]
        assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))

    values(body, world_size=2)


def test_fsdp_takes_the_device_of_the_local_rank_by_itself() -> None:
    def body() -> None:
        dist.init_process_group("cpu:gloo,cuda:gloo")
        init_device_mesh("cuda", (2,))
        module = nn.Linear(4, 4, device="cuda")
        assert module.weight.device == cuda(int(os.environ["LOCAL_RANK"]))

    values(body, world_size=2)


def test_a_distributed_checkpoint_comes_back_to_the_devices(tmp_path: Path) -> None:
    def body() -> None:
        rank = join()
        module = DistributedDataParallel(model(rank), device_ids=[rank])
        state = {"model": module.state_dict()}
        weight = state["model"]["module.0.weight"]
        was = weight.clone()
        dcp.save(state, checkpoint_id=tmp_path / "checkpoint")
        with torch.no_grad():
            weight.zero_()
        dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
        assert state["model"]["module.0.weight"].device == cuda(rank)
        assert torch.equal(state["model"]["module.0.weight"], was)

    values(body, world_size=2)


def test_a_sharded_checkpoint_is_loaded_with_another_layout(tmp_path: Path) -> None:
    def save() -> torch.Tensor:
        join()
        mesh = init_device_mesh("cuda", (4,))
        whole = torch.arange(32.0, device="cuda").view(8, 4)
        dcp.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=tmp_path)
        return whole.cpu()

    def load() -> torch.Tensor:
        rank = join()
        mesh = init_device_mesh("cuda", (2,))
        state: dict[str, Any] = {"weight": distribute_tensor(torch.zeros(8, 4, device="cuda"), mesh, [Shard(1)])}
        dcp.load(state, checkpoint_id=tmp_path)
        full: torch.Tensor = state["weight"].full_tensor()
        assert full.device == cuda(rank)
        return full.cpu()

    saved, loaded = values(save, world_size=4)[0], values(load, world_size=2)

    assert all(torch.equal(saved, each) for each in loaded)


def test_a_distributed_tensor_draws_other_numbers_on_each_shard() -> None:
    def body() -> list[float]:
        join()
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        sharded = torch.distributed.tensor.randn(8, device_mesh=mesh, placements=[Shard(0)])
        equal = torch.distributed.tensor.randn(8, device_mesh=mesh, placements=[Replicate()])
        assert isinstance(sharded, DTensor)
        numbers: list[float] = sharded.full_tensor().tolist()
        return [*numbers, *equal.to_local().tolist()]

    first, second = values(body, world_size=2)

    assert first == second
    assert len(set(first)) == 16


def test_a_sum_over_gloo_keeps_no_memory_of_its_device() -> None:
    def body() -> list[int]:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("gloo")
        left = []
        gc.disable()  # no memory may wait for a collection
        try:
            for call in (
                lambda tensor: dist.all_reduce(tensor),
                lambda tensor: dist.all_reduce(tensor, async_op=True).wait(),
                lambda tensor: dist.all_reduce(tensor, async_op=True).get_future().wait(),
                lambda tensor: dist.all_reduce(tensor, async_op=True).get_future().then(lambda _: 1).wait(),
            ):
                before = torch.cuda.memory_allocated()
                call(torch.ones(1000, device="cuda"))
                dist.barrier()
                left.append(torch.cuda.memory_allocated() - before)
        finally:
            gc.enable()
        return left

    assert values(body, world_size=2) == [[0, 0, 0, 0]] * 2
