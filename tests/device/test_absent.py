"""Calls that need a real GPU are refused with an alternative, and compiled code runs without Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._symmetric_memory
from torch import nn

from simdist.errors import UnsupportedError
from tests.device.worlds import cuda, on_devices, values

_cuda: Any = torch.cuda
_symmetric: Any = torch.distributed._symmetric_memory


def graphed() -> None:
    with _cuda.graph(_cuda.CUDAGraph()):
        torch.ones(2, device="cuda")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "graph": (graphed, "run the step eagerly"),
    "pool of graphs": (lambda: _cuda.graph_pool_handle(), "run the step eagerly"),
    "graphed callables": (
        lambda: _cuda.make_graphed_callables(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),)),
        "run the step eagerly",
    ),
    "symmetric memory": (lambda: _symmetric.empty(4, device="cuda"), "use the collectives of torch.distributed"),
    "rendezvous of symmetric memory": (
        lambda: _symmetric.rendezvous(torch.ones(4, device="cuda"), "0"),
        "use the collectives of torch.distributed",
    ),
    "operators of symmetric memory": (
        lambda: torch.ops.symm_mem.one_shot_all_reduce(torch.ones(4, device="cuda"), "sum", "0"),
        "use the collectives of torch.distributed",
    ),
    "jiterator": (
        lambda: _cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")(torch.ones(1).cuda()),
        "write the function with torch's operators",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@on_devices
def test_what_is_not_simulated_names_another_way(name: str) -> None:
    call, way = REFUSED[name]

    with pytest.raises(UnsupportedError, match=way):
        call()


@pytest.mark.parametrize("name", ["register_generator_state", "get_currently_capturing_graph"])
@on_devices
def test_a_class_of_graphs_has_the_methods_of_a_build_for_cuda(name: str) -> None:
    assert hasattr(_cuda.CUDAGraph, name)
    if torch.version.cuda is None:
        with pytest.raises(UnsupportedError, match="run the step eagerly"):
            getattr(_cuda.CUDAGraph, name)()


def test_elsewhere_there_are_no_graphs() -> None:
    with pytest.raises(RuntimeError, match=r"Tried to instantiate dummy base class CUDAGraph|CUDA driver version"):
        _cuda.CUDAGraph()
    assert torch.version.cuda is not None or not hasattr(_cuda.CUDAGraph, "register_generator_state")


@on_devices
def test_marks_for_a_profiler_cost_nothing() -> None:
    with torch.autograd.profiler.emit_nvtx(), _cuda.nvtx.range("step"):
        value = torch.ones(2, device="cuda").sum().item()

    assert value == 2


@on_devices
def test_one_process_computes_on_several_devices() -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 2)
    expected = module(torch.ones(6, 4))
    expected.sum().backward()
    gradient = [each.grad.clone() for each in module.parameters() if each.grad is not None]
    module.zero_grad()

    found = nn.DataParallel(module.cuda(), device_ids=[0, 1, 2])(torch.ones(6, 4, device="cuda"))
    found.sum().backward()

    assert found.device == cuda(0)
    assert torch.equal(found.cpu(), expected)
    for one, other in zip(module.parameters(), gradient, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other)


@on_devices
def test_one_process_reduces_over_several_devices() -> None:
    inputs = [torch.full((4,), index + 1.0, device=cuda(index)) for index in range(2)]
    outputs = [torch.empty(2, device=cuda(index)) for index in range(2)]

    _cuda.nccl.reduce_scatter(inputs, outputs)
    _cuda.nccl.all_reduce(inputs, op=2)

    assert [each.tolist() for each in outputs] == [[3, 3]] * 2
    assert [each.tolist() for each in inputs] == [[2] * 4] * 2


@on_devices
def test_a_ctc_loss_is_that_of_the_cpu() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(5, 2, 4).log_softmax(-1), torch.randint(1, 4, (2, 3))
    lengths = torch.full((2,), 5), torch.full((2,), 3)

    found = nn.functional.ctc_loss(scores.cuda(), targets.cuda(), *lengths)

    assert found.item() == nn.functional.ctc_loss(scores, targets, *lengths).item()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_trained_on_a_device_without_triton() -> None:
    def body() -> list[list[float]]:
        found = []
        for compiles in (False, True):
            torch.manual_seed(0)
            module: Any = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).cuda()
            optimizer = torch.optim.AdamW(module.parameters(), fused=True)
            compiled = torch.compile(module, mode="reduce-overhead") if compiles else module
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = compiled(torch.ones(3, 4, device="cuda")).float().square().sum()
                loss.backward()
                optimizer.step()
            found.append([each.sum().item() for each in module.parameters()])
        return found

    ((plain, compiled),) = values(body)

    assert compiled == plain
