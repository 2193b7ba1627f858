"""A program's dispatch modes see the same as with real Gloo: torch's own operators, and none of simdist's work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.utils import _python_dispatch

import simdist
from tests.c10d.worlds import in_group, values

Mode: Any = _python_dispatch.TorchDispatchMode  # not typed

pytestmark = pytest.mark.filterwarnings("ignore")


class Watch(Mode):  # type: ignore[misc]
    """Records each operator, and the arguments that are neither tensors nor groups."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg for arg in args if isinstance(arg, int | str | bool)]
        self.seen.append((str(func).removesuffix(".default"), *plain))
        return func(*args, **(kwargs or {}))


Program = Callable[[int, torch.Tensor, list[torch.Tensor], torch.Tensor], Any]

# As measured with real Gloo on torch 2.13 (`Tensor` and list arguments left out); `reduce_scatter_tensor` there also
# shows how its wait copies the result.
SEEN: dict[str, tuple[Program, list[tuple[Any, ...]]]] = {
    "all_reduce": (lambda r, t, ts, big: dist.all_reduce(t), [("c10d.allreduce_", False)]),
    "asynchronous": (lambda r, t, ts, big: dist.all_reduce(t, async_op=True).wait(), [("c10d.allreduce_",)]),
    "broadcast": (lambda r, t, ts, big: dist.broadcast(t, 1), [("c10d.broadcast_", 1, 0, False)]),
    "reduce": (lambda r, t, ts, big: dist.reduce(t, 1), [("c10d.reduce_", 1, 0, False)]),
    "all_gather": (lambda r, t, ts, big: dist.all_gather(ts, t), [("c10d.allgather_", False)]),
    "all_gather_single": (
        lambda r, t, ts, big: dist.all_gather_into_tensor(big, t),
        [("c10d._allgather_base_", False)],
    ),
    "gather": (lambda r, t, ts, big: dist.gather(t, ts if r == 0 else None, 0), [("c10d.gather_", 0, False)]),
    "scatter": (lambda r, t, ts, big: dist.scatter(t, ts if r == 0 else None, 0), [("c10d.scatter_", 0, False)]),
    "reduce_scatter": (lambda r, t, ts, big: dist.reduce_scatter(t, ts), [("c10d.reduce_scatter_", False)]),
    "reduce_scatter_single": (
        lambda r, t, ts, big: dist.reduce_scatter_tensor(t, big),
        [("c10d._reduce_scatter_base_", False)],
    ),
    "all_to_all": (
        lambda r, t, ts, big: dist.all_to_all(ts, list(big.chunk(2))),
        [("aten.split.Tensor", 4), ("c10d.alltoall_", False)],
    ),
    "all_to_all_single": (
        lambda r, t, ts, big: dist.all_to_all_single(torch.empty(8), big),
        [("aten.empty.memory_format",), ("c10d.alltoall_base_", False)],
    ),
    "barrier": (lambda r, t, ts, big: dist.barrier(), [("aten.empty.memory_format",), ("c10d.barrier", False)]),
    "monitored_barrier": (
        lambda r, t, ts, big: dist.monitored_barrier(),
        [("aten.empty.memory_format",), ("c10d.monitored_barrier_", 1_800_000, False)],
    ),
    "coalesced": (lambda r, t, ts, big: dist.all_reduce_coalesced([t]), [("c10d.allreduce_coalesced_", False)]),
    "gather_coalesced": (
        lambda r, t, ts, big: dist.all_gather_coalesced([[x] for x in ts], [t]),
        [("c10d.allgather_coalesced_", False)],
    ),
    "send": (
        lambda r, t, ts, big: dist.send(t, 1, tag=3) if r == 0 else dist.recv(t, 0, tag=3),
        [("c10d.send", 1, 3)],
    ),
    "recv": (
        lambda r, t, ts, big: dist.recv(t, 1, tag=3) if r == 0 else dist.send(t, 0, tag=3),
        [("c10d.recv_", 1, 3)],
    ),
    "recv_anysource": (
        lambda r, t, ts, big: dist.recv(t) if r == 0 else dist.send(t, 0),
        [("c10d.recv_any_source_", 0)],
    ),
    "isend": (
        lambda r, t, ts, big: (dist.isend(t, 1) if r == 0 else dist.irecv(t, 0)).wait(),  # type: ignore[union-attr]
        [("c10d.send", 1, 0)],
    ),
}


def watched(rank: int, program: Program) -> tuple[list[tuple[Any, ...]], list[float]]:
    tensor, several, big = torch.full((4,), rank + 1.0), [torch.zeros(4), torch.zeros(4)], torch.arange(8.0)
    with Watch() as mode:
        program(rank, tensor, several, big)
    return mode.seen, [*tensor.tolist(), *several[1].tolist(), *big.tolist()]


def unwatched(rank: int, program: Program) -> list[float]:
    tensor, several, big = torch.full((4,), rank + 1.0), [torch.zeros(4), torch.zeros(4)], torch.arange(8.0)
    program(rank, tensor, several, big)
    return [*tensor.tolist(), *several[1].tolist(), *big.tolist()]


@pytest.mark.parametrize("name", list(SEEN))
def test_a_mode_sees_torchs_operators_and_the_results_are_the_same(name: str) -> None:
    program, expected = SEEN[name]

    found = in_group(lambda rank: (watched(rank, program), unwatched(rank, program)), 2)

    for (_, with_mode), without in found:
        assert with_mode == without
    assert found[0][0][0] == expected


def test_the_last_ranks_mode_sees_no_more_than_the_firsts() -> None:
    def body(rank: int) -> list[tuple[Any, ...]]:
        with Watch() as mode:
            for _ in range(3):
                dist.all_reduce(torch.ones(1000))
        seen: list[tuple[Any, ...]] = mode.seen
        return seen

    for seen in in_group(body, 3):
        assert seen == [("aten.ones",), ("c10d.allreduce_", False)] * 3


def test_a_mode_may_answer_in_the_operator_s_place() -> None:
    class Skip(Mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.c10d.allreduce_.default:
                args = ([args[0][0] * 10], *args[1:])
                _, work = func(*args, **(kwargs or {}))
                return args[0], work
            return func(*args, **(kwargs or {}))

    def body(rank: int) -> list[float]:
        tensor = torch.ones(2)
        with Skip():
            dist.all_reduce(tensor)  # the mode reduces another one
        return tensor.tolist()

    assert in_group(body, 2) == [[1.0, 1.0]] * 2


def test_flags_of_modes_are_each_ranks_own_and_go_with_the_world() -> None:
    flags = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode")
    modes: Any = _python_dispatch

    def read() -> list[bool]:
        return [getattr(modes, name) for name in flags]

    def body(rank: int) -> list[list[bool]]:
        seen = [read()]
        time.sleep(rank)
        with Watch():
            time.sleep(1.5)
            seen.append(read())
        time.sleep(1)
        return [*seen, read()]

    assert in_group(body, 3) == [[[False, False], [True, True], [False, False]]] * 3
    assert read() == [False, False]


def test_the_module_whose_forward_pass_runs_is_let_go_with_the_world() -> None:
    class Waits(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            time.sleep(1 + dist.get_rank())
            return super().forward(input)

    def body(rank: int) -> None:
        torch.nn.parallel.DistributedDataParallel(Waits(1, 1))(torch.ones(1, 1))

    in_group(body, 2)

    assert torch.nn.parallel.DistributedDataParallel._active_ddp_module is None


def test_each_world_looks_up_its_own_kind_of_devices() -> None:
    def kind() -> str:
        return str(torch.utils.checkpoint.DefaultDeviceType.get_device_type())

    def body() -> str:
        return kind()

    host = kind()

    found = [simdist.run(body, world_size=1, backend=backend).values for backend in ("gloo", "nccl", "gloo")]

    assert found == [["cpu"], ["cuda"], ["cpu"]]
    assert kind() == host


def test_a_default_device_for_factories_stays_outside() -> None:
    def body() -> list[Any]:
        dist.init_process_group("gloo")
        with torch.device("meta"):
            tensor, whole = torch.ones(4, device="cpu"), torch.ones(8, device="cpu")
            dist.all_reduce(tensor)
            dist.all_reduce_coalesced([tensor, whole])
            dist.reduce_scatter_tensor(tensor, whole)
        return tensor.tolist()

    assert values(body, 2) == [[4.0] * 4] * 2


def test_tensors_of_inference_mode_are_reduced_after_it_has_ended() -> None:
    def body(rank: int) -> list[float]:
        with torch.inference_mode():
            tensors = [torch.full((2,), rank + 1.0) for _ in range(3)]
            works = [dist.all_reduce(tensors[0], async_op=True), dist.broadcast(tensors[1], 1, async_op=True)]
            works.append(dist.isend(tensors[2], 1) if rank == 0 else dist.irecv(tensors[2], 0))
        for work in works:
            assert work is not None
            work.wait()
        return [tensor[0].item() for tensor in tensors]

    assert in_group(body, 2) == [[3.0, 2.0, 1.0]] * 2


def test_a_rank_that_fails_under_a_mode_fails_as_without() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        with Watch():
            try:
                dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
            except RuntimeError as error:
                return str(error)
        return ""

    assert simdist.run(body, world_size=2).values == ["Cannot use ReduceOp.BAND with non-integral dtype"] * 2


def test_a_rank_that_parks_while_tensors_are_fake_keeps_its_random_numbers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def body() -> list[float]:
        rank = int(os.environ["RANK"])
        torch.manual_seed(rank)
        found = [torch.rand(1).item()]
        with FakeTensorMode():
            time.sleep(1 + rank)
        with torch.device("meta"):
            time.sleep(1 + rank)
        found.append(torch.rand(1).item())
        return found

    def alone(rank: int) -> list[float]:
        generator = torch.Generator().manual_seed(rank)
        return [torch.rand(1, generator=generator).item() for _ in range(2)]

    assert values(body, 2) == [alone(0), alone(1)]
