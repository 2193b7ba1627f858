"""Split sizes of `all_to_all_single`: the objects that C++ accepts as a sequence of whole numbers, and others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import simdist
from tests.builds import VERSION

stores: Any = dist  # the stubs leave them out

TAKEN: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (2,),
    "size": lambda: torch.Size([2]),
    "range": lambda: range(2, 3),
    "array": lambda: np.array([2]),
    "set": lambda: {2},
    "generator": lambda: (each for each in [2]),
    "tensors": lambda: [torch.tensor(2)],
    "tensors of one element": lambda: [torch.tensor([2])],
    "tensors of floats": lambda: [torch.tensor(2.0)],
    "numpy": lambda: [np.int64(2)],
}
REFUSED: dict[str, Any] = {
    "a tensor": torch.tensor([2]),
    "floats": [2.0],
    "text": "2",
    "a number": 2,
    "None inside": [None],
    "text inside": ["2"],
}


def exchange(sizes: Any) -> str:
    """Do an all_to_all on one rank."""
    output, given = torch.zeros(2), torch.ones(2)
    try:
        dist.all_to_all_single(output, given, sizes() if callable(sizes) else sizes, [2])
    except (TypeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return str(output.tolist())


def of_every_kind() -> list[str]:
    dist.init_process_group("gloo", store=stores.HashStore(), rank=0, world_size=1)
    try:
        return [exchange(sizes) for sizes in (*TAKEN.values(), *REFUSED.values())]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_what_is_taken_and_what_is_refused(simulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it when a group is made

    found = simdist.run(of_every_kind, world_size=1).values[0] if simulated else of_every_kind()

    assert found[: len(TAKEN)] == ["[1.0, 1.0]"] * len(TAKEN)
    for said in found[len(TAKEN) :]:
        kind, types, *_ = said.split("\n")
        assert kind == (
            f"TypeError: {'all_to_all_single' if VERSION >= (2, 13) else 'alltoall_base'}(): incompatible function "
            "arguments. The following argument types are supported:"
        )
        assert types.startswith("    1. (self: torch._C._distributed_c10d.ProcessGroup, output: torch.Tensor, input: ")


def test_a_refusal_is_the_same_text_in_every_run() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        return exchange(torch.tensor([2]))

    (first,), (second,) = (simdist.run(body, world_size=1).values for _ in range(2))

    assert first == second
    assert " at 0x" not in first
    assert "Invoked with: <simdist gloo group '0' rank 0 of 1>, tensor([0., 0.])" in first
