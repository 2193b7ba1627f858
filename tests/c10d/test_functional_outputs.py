from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the operators

from tests.c10d.nccl import worlds as on_nccl
from tests.c10d.worlds import values

functional: Any = torch.ops._c10d_functional


def gathered(device: str) -> list[float]:
    mine = torch.full((2,), dist.get_rank() + 1.0, device=device)
    room = torch.zeros(4, device=device)
    group: Any = dist.group.WORLD
    made = functional.all_gather_into_tensor_out(mine, 2, group.group_name, out=room)
    functional.wait_tensor(made)
    assert made is room
    found: list[float] = room.tolist()
    return found


def on_cpu() -> list[float]:
    dist.init_process_group("gloo")
    return gathered("cpu")


def on_devices() -> list[float]:
    on_nccl.join()
    return gathered("cuda")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_an_all_gather_fills_the_tensor_that_it_is_given(backend: str) -> None:
    found = values(on_cpu, 2) if backend == "gloo" else on_nccl.results(on_devices)

    assert found == [[1.0, 1.0, 2.0, 2.0]] * 2


def test_torch_s_kernel_is_there_again_after_the_world() -> None:
    found: list[bool] = []

    def body() -> None:
        found.append(has_kernel())

    values(body, 1)

    assert [*found, has_kernel()] == [True, False]


def has_kernel() -> bool:
    name = "_c10d_functional::all_gather_into_tensor_out"
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")  # outside of a rank its kernel has no key
