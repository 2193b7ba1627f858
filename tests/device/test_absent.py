"""Calls that need a real GPU are refused with an alternative, and compiled code runs without Triton."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.cuda.comm
import torch.distributed._symmetric_memory
from torch import nn

from simdist.errors import UnsupportedError
from tests.device.worlds import cuda, on_devices, values

_cuda: Any = torch.cuda
_comm: Any = torch.cuda.comm
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@on_devices
def test_a_backend_of_the_program_may_call_inductor() -> None:
    def backend(graph: Any, inputs: list[torch.Tensor]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs)

    compiled = torch.compile(lambda x: x.sin().sum(), backend=backend)

    assert compiled(torch.ones(4, device=cuda(1))).item() == pytest.approx(4 * math.sin(1))


def on(index: int, *shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel()), device=cuda(index)).view(shape)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "no device": (lambda: _comm.scatter(on(0, 4, 2), []), "Expected at least one device to scatter to"),
    "sizes": (
        lambda: _comm.scatter(on(0, 4, 2), [0, 1], [1, 2, 1]),
        "Expected devices and chunk_sizes to be of same length, but got len(devices) = 2 and len(chunk_sizes) = 3",
    ),
    "no output": (lambda: _comm.scatter(on(0, 4), out=[]), "Expected at least one output tensor to scatter to"),
    "output on the CPU": (
        lambda: _comm.scatter(on(0, 4), out=[torch.zeros(4)]),
        "Expected all output tensors to be CUDA tensors, but output tensor at index 0 has device 'cpu'",
    ),
    "shape of an output": (
        lambda: _comm.scatter(on(0, 4, 2), out=[on(1, 2, 3)]),
        "Output tensor at index 0 has incorrect shape: [2, 3]. Expected same shape except for scatter dim 0 as the "
        "source tensor: at::IntArrayRef([4, 2])",
    ),
    "size of the outputs": (
        lambda: _comm.scatter(on(0, 4), out=[on(1, 2), on(0, 1)]),
        "Total size for output tensors along scatter dim 0 does not match the source tensor size at dim 0. Expected 4, "
        "but got total size 3",
    ),
    "nothing to gather": (lambda: _comm.gather([]), "Expected at least one tensor to gather from"),
    "gathered from the CPU": (
        lambda: _comm.gather([torch.zeros(2)]),
        "Expected all input tensors to be CUDA tensors, but tensor at index 0 has device 'cpu'",
    ),
    "gathered dimensions": (
        lambda: _comm.gather([on(0, 2, 2), on(1, 2)]),
        "Expected all input tensors to have the same number of dimensions, but tensor at index 1 has 1 dimensions, "
        "(expected 2)",
    ),
    "gathered shapes": (
        lambda: _comm.gather([on(0, 2, 2), on(1, 2, 3)]),
        "Input tensor at index 1 has invalid shape [2, 3], but expected [2, 2]",
    ),
    "gathered into another shape": (
        lambda: _comm.gather([on(0, 2), on(1, 3)], out=on(0, 4)),
        "Expected out tensor to have shape [5], but got [4]",
    ),
    "broadcast into another shape": (
        lambda: _comm.broadcast(on(0, 2), out=[on(1, 3)]),
        "Expected all output tensors to have same shape as the source tensor [2], but output tensor at index 0 has "
        "shape [3]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@on_devices
def test_several_devices_of_one_process_refuse_as_in_torch(name: str) -> None:
    call, text = MISTAKES[name]

    with pytest.raises(RuntimeError) as caught:
        call()

    assert str(caught.value) == text


@on_devices
def test_several_devices_of_one_process_scatter_and_gather() -> None:
    parts = _comm.scatter(on(0, 3, 2), [1, 2], dim=-1)
    outputs = [on(2, 3, 1), on(0, 3, 1)]
    _comm.scatter(on(0, 3, 2), out=outputs, dim=1)

    assert (
        [each.tolist() for each in parts] == [each.tolist() for each in outputs] == [[[0], [2], [4]], [[1], [3], [5]]]
    )
    assert [each.device for each in parts] == [cuda(1), cuda(2)]
    assert _comm.gather(parts, dim=1, destination=3).tolist() == on(0, 3, 2).tolist()
