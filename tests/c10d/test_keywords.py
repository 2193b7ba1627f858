"""Methods of groups take their arguments under the names that torch's overloads have."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import simdist
from simdist.cluster import build
from tests.builds import VERSION
from tests.c10d.worlds import values
from tests.real_gloo import run_real

SOON = timedelta(seconds=20)
pytestmark = pytest.mark.skipif(VERSION < (2, 13), reason="the names are those of torch 2.13")


def results(group: Any, device: str) -> list[Any]:
    """Return the content of each call's tensors afterwards."""
    rank, size = group.rank(), group.size()

    def of(*numbers: float) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=device)

    one, pair, parts = of(rank + 1), of(rank, rank + 10), [of(0) for _ in range(size)]
    lists, ones = [of(0) for _ in range(size)], [of(rank + index) for index in range(size)]
    calls: list[tuple[Callable[..., Any], dict[str, Any], list[torch.Tensor]]] = [
        (group.allreduce, {"tensor": one, "op": dist.ReduceOp.SUM, "timeout": SOON}, [one]),
        (group.allreduce, {"tensors": [one], "opts": dist.AllreduceOptions()}, [one]),
        (group.broadcast, {"tensor": one, "root": 1, "timeout": SOON}, [one]),
        (group.reduce, {"tensor": one, "root": 0, "op": dist.ReduceOp.MAX}, [one]),
        (group.allgather, {"output_tensors": parts, "input_tensor": one, "timeout": SOON}, parts),
        (group.gather, {"output_tensors": lists if rank == 0 else [], "input_tensor": one, "root": 0}, lists),
        (group.scatter, {"output_tensor": one, "input_tensors": parts if rank == 0 else [], "root": 0}, [one]),
        (group.reduce_scatter, {"output": one, "input": ones, "op": dist.ReduceOp.SUM, "timeout": SOON}, [one]),
        (
            group.alltoall_base,
            {"output": of(0, 0), "input": pair, "output_split_sizes": [], "input_split_sizes": [], "timeout": SOON},
            [pair],
        ),
        (group._allgather_base, {"output": pair, "input": one}, [pair]),
        (group._reduce_scatter_base, {"outputTensor": one, "inputTensor": pair}, [one]),
    ]
    found = []
    for call, given, seen in calls:
        call(**given).wait()
        found.append([each.tolist() for each in seen])
    exchanged = of(0, 0)
    group.alltoall_base(exchanged, pair + rank, [], [], SOON).wait()
    if rank == 0:
        group.send(tensors=[one], dstRank=1, tag=3).wait()
    else:
        group.recv(tensors=[one], srcRank=0, tag=3).wait()
    return [*found, exchanged.tolist(), one.tolist()]


def on_cpu() -> list[Any]:
    dist.init_process_group("gloo", timeout=SOON)
    found = results(dist.group.WORLD, "cpu")
    dist.destroy_process_group()
    return found


def under_a_mode() -> list[Any]:
    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    dist.init_process_group("gloo", timeout=SOON)
    with Mode():  # type: ignore[no-untyped-call]
        found = results(dist.group.WORLD, "cpu")
    dist.destroy_process_group()
    return found


def on_devices(backend: str) -> list[Any]:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    group: Any = dist.group.WORLD
    group.allreduce(tensor=torch.ones(1, device="cuda")).wait()  # brings both to one communicator
    return results(group, "cuda")


EXPECTED = [
    [
        [[3.0]],
        [[6.0]],
        [[6.0]],
        [[6.0]],
        [[6.0], [6.0]],
        [[6.0], [6.0]],
        [[6.0]],
        [[1.0]],
        [[0.0, 10.0]],
        [[1.0, 3.0]],
        [[2.0]],
        [1.0, 2.0],
        [2.0],
    ],
    [
        [[3.0]],
        [[6.0]],
        [[6.0]],
        [[6.0]],
        [[6.0], [6.0]],
        [[0.0], [0.0]],
        [[6.0]],
        [[3.0]],
        [[1.0, 11.0]],
        [[1.0, 3.0]],
        [[6.0]],
        [3.0, 4.0],
        [2.0],
    ],
]


@pytest.mark.parametrize("body", [on_cpu, under_a_mode])
def test_methods_take_the_names_of_torch(body: Callable[[], list[Any]]) -> None:
    assert values(body, 2) == EXPECTED


@pytest.mark.real
@pytest.mark.parametrize("body", [on_cpu, under_a_mode])
def test_real_methods_take_these_names(body: Callable[[], list[Any]]) -> None:
    assert [each.value for each in run_real(body, 2)] == EXPECTED


def test_methods_of_groups_with_devices_take_the_names_of_torch() -> None:
    found = values(on_devices, 2, args=("nccl",), backend="nccl", cluster=build(2, devices_per_host=2))
    assert found == EXPECTED


def by_gloo_on_devices(*, named: bool) -> list[float]:
    """Reduce the result of a busy device, which moves through host memory."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    group: Any = dist.group.WORLD
    one = torch.full((64, 64), group.rank() + 1.0, device="cuda")
    for _ in range(20):
        one = one @ torch.eye(64, device="cuda")
    work = group.allreduce(tensors=[one]) if named else group.allreduce([one])
    work.wait()
    return [float(one[0, 0])]


def by_both_backends() -> list[tuple[list[float], str]]:
    """Reduce tensors on a device, over NCCL, and on the CPU, over Gloo."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    group: Any = dist.group.WORLD
    found = []
    for device in ("cpu", "cuda"):
        one = torch.tensor([group.rank() + 1.0], device=device)
        work = group.allreduce(tensor=one, op=dist.ReduceOp.SUM)
        work.wait()
        found.append((one.tolist(), type(work).__name__))
    return found


def test_tensors_of_devices_that_are_named_go_over_gloo() -> None:
    cluster = build(2, devices_per_host=2, device_model="a100")
    runs = [
        simdist.run(by_gloo_on_devices, world_size=2, kwargs={"named": named}, cluster=cluster)
        for named in (True, False)
    ]

    assert [run.values for run in runs] == [[[3.0]] * 2] * 2
    assert runs[0].virtual_time_ns == runs[1].virtual_time_ns


def test_named_tensors_go_to_the_backend_of_their_device() -> None:
    (cpu, cuda), other = values(by_both_backends, 2, backend="nccl", cluster=build(2, devices_per_host=2))

    assert [cpu, cuda] == other
    assert (cpu[0], cuda[0]) == ([3.0], [3.0])
    assert "Nccl" in cuda[1]
    assert "Nccl" not in cpu[1]
