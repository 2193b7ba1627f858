"""Functions that each rank traces itself, and in which it parks meanwhile."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.c10d.worlds import in_group, sleep_s

_fx: Any = fx._symbolic_trace


@pytest.mark.filterwarnings("ignore:The combination of ranks:FutureWarning")
def test_a_rank_may_wait_for_others_in_what_it_traces() -> None:
    def traced(tensor: torch.Tensor) -> Any:
        return functional.all_reduce(tensor, "sum", [0, 1]) + 1  # makes a group, for which all ranks wait

    def body(rank: int) -> tuple[bool, bool, list[float]]:
        made = make_fx(traced)(torch.ones(2))
        text = str(made.graph)
        return "all_reduce" in text and "wait_tensor" in text, _fx.is_fx_tracing(), made(torch.ones(2)).tolist()

    assert in_group(body, 2) == [(True, False, [3.0, 3.0])] * 2
    assert _fx.CURRENT_PATCHER is None


def test_others_call_modules_as_usual_while_a_rank_traces_one() -> None:
    call = nn.Module.__call__

    class Slow(nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            sleep_s(2)
            return tensor + 1

    def body(rank: int) -> list[str]:
        if rank == 0:
            made = fx.Tracer().trace(Slow())
            return [node.op for node in made.nodes]
        sleep_s(1)
        assert nn.Module.__call__ is call
        return [str(_fx.is_fx_tracing()), str(nn.Identity()(torch.ones(1)).item())]

    assert in_group(body, 2) == [["placeholder", "call_function", "output"], ["False", "1.0"]]


def test_the_host_traces_again_after_a_rank_was_killed_while_it_did() -> None:
    class Endless(nn.Module):
        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            dist.recv(torch.zeros(1), 1)
            return tensor

    def body(rank: int) -> None:
        if rank == 0:
            fx.Tracer().trace(Endless())

    with contextlib.suppress(Exception):
        in_group(body, 2)

    assert _fx.CURRENT_PATCHER is None
    assert not _fx.is_fx_tracing()
    assert next(node.op for node in fx.symbolic_trace(nn.ReLU()).graph.nodes) == "placeholder"
