"""Torch's features on top of collectives: functional collectives, torch.distributed.nn, device meshes."""

from __future__ import annotations

import importlib
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.c10d.worlds import in_group, values
from tests.warm import Interpreters

# torch 2.13 renames some collectives and deprecates torch.distributed.nn's
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

distributed: Any = torch.distributed.nn.functional  # without annotations
functional: Any = _functional_collectives  # likewise


def row(rank: int, count: int = 4) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 10 * rank


def world() -> Any:
    return dist.group.WORLD


def plain(tensor: Any) -> list[Any]:
    """Return the values of a tensor whose collective may be under way."""
    values: list[Any] = functional.wait_tensor(tensor).tolist()
    return values


def test_functional_all_reduce_leaves_its_input_alone() -> None:
    def body(rank: int) -> tuple[list[float], list[float]]:
        tensor = row(rank)
        return plain(functional.all_reduce(tensor, "sum", world())), tensor.tolist()

    assert in_group(body, 2) == [([10, 12, 14, 16], [0, 1, 2, 3]), ([10, 12, 14, 16], [10, 11, 12, 13])]


SPLITS = [[1, 3], [2, 2]]  # what each of two ranks sends to each
FUNCTIONAL: dict[str, tuple[Callable[[int], Any], list[list[float]]]] = {  # the call, and the values of each rank
    "average": (lambda rank: functional.all_reduce(row(rank), "avg", world()), [[5, 6, 7, 8]] * 2),
    "gather": (lambda rank: functional.all_gather_tensor(row(rank, 2), 0, world()), [[0, 1, 10, 11, 20, 21]] * 3),
    "scatter": (lambda rank: functional.reduce_scatter_tensor(row(rank), "sum", 0, world()), [[10, 12], [14, 16]]),
    "broadcast": (lambda rank: functional.broadcast(row(rank, 2), 1, world()), [[10, 11]] * 2),
    "uneven": (
        lambda rank: functional.all_to_all_single(row(rank), [[1, 2], [3, 2]][rank], SPLITS[rank], world()),
        [[0, 10, 11], [1, 2, 3, 12, 13]],
    ),
    "permute": (
        lambda rank: functional.permute_tensor(row(rank, 2), [1, 2, 0], world()),
        [[20, 21], [0, 1], [10, 11]],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_a_functional_collective_has_the_values_of_its_collective(name: str) -> None:
    call, values = FUNCTIONAL[name]

    assert in_group(lambda rank: plain(call(rank)), len(values)) == values


def test_functional_coalesced_calls_take_several_tensors() -> None:
    def body(rank: int) -> list[list[float]]:
        inputs = [row(rank, 2), row(rank, 4)]
        reduced = functional.all_reduce_coalesced(inputs, "sum", world())
        gathered = functional.all_gather_into_tensor_coalesced(inputs, world())
        scattered = functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0], world())
        return [plain(tensor) for tensor in (*reduced, *gathered, *scattered)]

    for rank, reported in enumerate(in_group(body, 2)):
        assert reported == [
            [10, 12],
            [10, 12, 14, 16],
            [0, 1, 10, 11],
            [0, 1, 2, 3, 10, 11, 12, 13],
            [[10], [12]][rank],
            [[10, 12], [14, 16]][rank],
        ]


def test_autograd_flows_through_an_all_reduce() -> None:
    def body(rank: int) -> tuple[list[float], list[float]]:
        weight = torch.full((2,), float(rank + 1), requires_grad=True)
        total = distributed.all_reduce(weight)
        (total * (rank + 1)).sum().backward()
        assert weight.grad is not None
        return total.tolist(), weight.grad.tolist()

    assert in_group(body, 2) == [([3, 3], [3, 3])] * 2


def test_autograd_flows_through_an_all_gather() -> None:
    def body(rank: int) -> tuple[list[list[float]], list[float]]:
        weight = torch.full((2,), float(rank + 1), requires_grad=True)
        parts = distributed.all_gather(weight)
        sum((index + 1) * part.sum() for index, part in enumerate(parts)).backward()
        assert weight.grad is not None
        return [part.tolist() for part in parts], weight.grad.tolist()

    gathered = [[1.0, 1.0], [2.0, 2.0]]
    assert in_group(body, 2) == [(gathered, [2, 2]), (gathered, [4, 4])]


def test_autograd_flows_through_a_broadcast() -> None:
    def body(rank: int) -> list[float]:
        weight = torch.full((2,), float(rank), requires_grad=True)
        distributed.broadcast(weight, 0).sum().backward()
        assert weight.grad is not None
        return weight.grad.tolist()

    assert in_group(body, 3) == [[3, 3], [0, 0], [0, 0]]


def test_importing_torch_distributed_nn_on_a_rank_captures_no_group(interpreters: Interpreters) -> None:
    # Its functions have a default `group=dist.group.WORLD`: the group of the rank that imports it first. The test needs
    # its own process, because this one has imported it.
    program = """
import torch, torch.distributed as dist, simdist

def main():
    dist.init_process_group("gloo")
    import torch.distributed.nn.functional as distributed
    return distributed.all_reduce(torch.ones(1)).item()

for _ in range(2):
    result = simdist.run(main, world_size=2)
    result.raise_for_failure()
    print(result.values)
"""
    done = interpreters.run([sys.executable, "-c", program], anew=["simdist", "torch.distributed.nn"])

    assert done.stdout.splitlines() == ["[2.0, 2.0]", "[2.0, 2.0]"], done.stderr


def test_functional_collectives_take_a_mesh_and_a_dimension() -> None:
    def body(rank: int) -> list[float]:
        mesh = init_device_mesh("cpu", (2, 2))
        return plain(functional.all_reduce(torch.tensor([2.0**rank]), "sum", (mesh, 1)))

    assert in_group(body, 4) == [[3], [3], [12], [12]]


def test_a_mesh_makes_its_own_world_if_there_is_none() -> None:
    def body() -> float:
        mesh = init_device_mesh("cpu", (3,))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=mesh.get_group())
        return tensor.item()

    assert values(body, 3) == [3.0] * 3


def test_what_fsdp_measures_of_one_rank_stays_out_of_the_others_way() -> None:
    def body(rank: int) -> dict[str, float]:
        profiler: Any = importlib.import_module("torch.distributed.fsdp._debug_utils").SimpleProfiler
        with profiler.profile("all"):
            time.sleep(1 + rank)
        found = dict(profiler.results)
        profiler.reset()  # while the other rank is measured
        return found

    assert in_group(body, 2) == [{"all": 1.0}, {"all": 2.0}]


def converted_after_a_step(rank: int) -> tuple[str, str, str]:
    model: Any = fully_shard(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.double()
    mine = weakref.ref(model.weight)
    try:
        model.half()
    except RuntimeError as error:
        return str(model.weight.dtype), str(error.__cause__), str(mine() is model.weight)
    return "", "", ""


@pytest.mark.parametrize("judges", [False, True], ids=["alone", "judged"])
def test_parameters_of_fsdp_are_converted_unless_the_program_holds_one(judges: bool) -> None:
    """`Module.to` swaps them, and refuses one to which a weak reference exists. Those of simdist do not count."""
    refused = "Cannot swap t1 because it has weakref associated with it"

    assert in_group(converted_after_a_step, 2, judges=judges) == [("torch.float64", refused, "True")] * 2
    assert vars(torch.utils)["weakref"] is weakref
