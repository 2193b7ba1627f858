"""Works of functional collectives that nobody waits for."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _get_work_registry_size

import simdist
from simdist.c10d.calls._work import SimWork
from simdist.cluster import build
from simdist.faults import Crash
from simdist.inside.torch import functional_operators
from simdist.result import RunResult

WARNING = """\
[rank0]:[W101 00:00:00.000450002 ProcessGroup.cpp:{line}] Warning: At the time of process termination, there are still \
1 unwaited collective calls. Please review your program to ensure that:
1. c10d_functional.wait_tensor() is invoked on all tensors returned from c10d_functional collective,
2. c10d_functional.wait_tensor() is invoked on all output tensors of async_op=True torch.distributed collective called \
under `with allow_inflight_collective_as_graph_input_ctx():`,
before the output tensors of the collective are used. (function ~WorkRegistry)
"""


def everyone() -> str:
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


def call_all(device: str = "cpu") -> int:
    size, group, call = dist.get_world_size(), everyone(), functional_operators
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    tensor = torch.ones(2 * size, device=device)
    call.all_reduce(tensor, "sum", group)
    call.all_reduce_(tensor.clone(), "sum", group)
    call.all_reduce_coalesced([tensor, tensor], "sum", group)
    call.all_gather_into_tensor(tensor, size, group)
    call.all_gather_into_tensor_coalesced([tensor, tensor], size, group)
    call.reduce_scatter_tensor(tensor, "sum", size, group)
    call.reduce_scatter_tensor_coalesced([tensor, tensor], "sum", size, group)
    call.all_to_all_single(tensor, [2] * size, [2] * size, group)
    call.broadcast(tensor, 0, group)
    call.broadcast_(tensor.clone(), 0, group)
    dist.all_reduce(tensor)
    return _get_work_registry_size()


def call_one() -> None:
    functional_operators.all_reduce(torch.ones(2), "sum", everyone())


def call_one_and_wait_for_the_others() -> None:
    call_one()
    dist.barrier()


def call_one_alone() -> None:
    if dist.get_rank() == 0:
        call_one()


def call_one_on_a_thread() -> None:
    thread = threading.Thread(target=call_one)
    thread.start()
    thread.join()


def leave() -> None:
    call_one()
    os._exit(0)


def run(body: Callable[[], object], backend: str = "gloo", **settings: Any) -> RunResult:
    def main() -> object:
        dist.init_process_group(backend)
        return body()

    return simdist.run(main, world_size=2, **settings)


def works() -> int:
    gc.collect()
    return sum(issubclass(type(each), SimWork) for each in gc.get_objects())


def warnings_of(result: RunResult) -> list[int]:
    return [rank.stderr.count("unwaited collective calls") for rank in result.ranks]


BODIES = (call_all, call_one_alone, call_one_on_a_thread, leave)


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_no_work_outlives_its_world(body: Callable[[], object]) -> None:
    before = works()
    assert run(body).ok
    assert works() == before


@pytest.mark.usefixtures("small_heap")
def test_nor_those_of_a_rank_that_dies_while_they_are_under_way() -> None:
    before = works()
    result = run(call_all, faults=[Crash(rank=1, op="all_to_all", when="during")])
    assert [rank.status for rank in result.ranks] == ["raised", "killed"]
    del result
    assert works() == before


@pytest.mark.usefixtures("small_heap")
def test_nor_those_on_devices() -> None:
    before = works()
    result = run(lambda: call_all("cuda"), "nccl", cluster=build(2, devices_per_host=2))
    assert (result.values, works()) == ([13, 13], before)


def test_torch_warns_of_them_at_the_end_of_the_process() -> None:
    result = run(call_all)
    assert (result.values, warnings_of(result)) == ([13, 13], [1, 1])
    assert "there are still 13 unwaited collective calls." in result.ranks[1].stderr


def test_the_warning_is_torch_s() -> None:
    shown = run(call_one_and_wait_for_the_others).ranks[0].stderr
    line = shown.partition("ProcessGroup.cpp:")[2].partition("]")[0]
    assert shown == WARNING.format(line=line)
    assert int(line) > 300


def test_none_is_shown_of_a_process_that_leaves_at_once_or_waits() -> None:
    def waits() -> list[float]:
        result = functional_operators.all_reduce(torch.ones(2), "sum", everyone())
        values: list[float] = functional_operators.wait_tensor(result).tolist()
        return values

    assert warnings_of(run(leave)) == [0, 0]
    result = run(waits)
    assert (result.values, warnings_of(result)) == ([[2.0, 2.0], [2.0, 2.0]], [0, 0])


def test_a_thread_s_end_leaves_works_that_others_wait_for() -> None:
    def body() -> list[float]:
        issued, tensor = [], torch.ones(2)

        def calls() -> None:
            call_one()
            issued.append(dist.all_reduce(tensor, async_op=True))

        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        before = tensor.tolist() == [2.0, 2.0]
        issued[0].wait()
        assert not before
        return tensor.tolist()

    assert run(body).values == [[2.0, 2.0], [2.0, 2.0]]
