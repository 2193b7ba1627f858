"""Tensors that are not plain memory: subclasses get the operator, torch refuses the others, and the process lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import simdist
from simdist.errors import InternalError
from tests.builds import VERSION
from tests.real_gloo import run_real
from tools._odd_tensors import (
    CLONES,
    KINDS,
    OPERATIONS,
    SIZE,
    Refusing,
    draw_odd_program,
    fault_of,
    fill,
    make_on,
    on_root,
)

pytestmark = pytest.mark.filterwarnings("ignore")

c10d: Any = dist  # the stubs do not export every name
_two: Any = TwoTensor
Tensor = torch.Tensor


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_operation_ends_for_every_kind_of_tensor(kind: str, backend: str) -> None:
    names = [name for name in OPERATIONS if name != "functional" or kind not in CLONES]
    # Over NCCL a rank that exchanges nothing goes on at once, and begins its next group without the other.
    worlds = [[name] for name in names] if kind == "empty" else [names]
    ended: list[tuple[int, str]] = []
    raised: list[tuple[str, Exception]] = []

    def body(calls: list[str]) -> None:
        for name in calls:
            if dist.is_initialized():  # the last call may have failed on one of the ranks
                dist.destroy_process_group()
            dist.init_process_group(backend)
            rank = dist.get_rank()
            made = make_on("cpu" if backend == "gloo" else f"cuda:{rank}", KINDS[kind])
            try:
                OPERATIONS[name](made)
            except Exception as error:
                raised.append((name, error))
            ended.append((rank, name))

    for calls in worlds:
        simdist.run(body, world_size=SIZE, args=(calls,), backend=backend).raise_for_failure()

    assert [each for each in raised if isinstance(each[1], InternalError)] == []
    assert sorted(ended) == sorted((rank, name) for rank in range(SIZE) for name in names)


PARTS = {  # of a tensor of two elements: the results for 1 and 2 on two ranks
    "all_reduce": 2.0,
    "broadcast": 1.0,
    "reduce": 2.0,
    "all_gather": 1.0,
    "gather": 1.0,
    "scatter": 1.0,
    "reduce_scatter": 2.0,
    "all_to_all": 1.0,
    "all_to_all_single": 1.0,
    "coalesced": 2.0,
    "message": 1.0,
    "batch": 1.0,
    "functional": 2.0,
}


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
@pytest.mark.parametrize("name", list(PARTS))
def test_a_subclass_gets_the_operator_and_calls_it_on_its_parts(name: str, debug: str, backend: str) -> None:
    if name == "batch" and debug == "DETAIL" and backend != "gloo":
        name = "message"  # torch's wrapper coalesces nothing, and two ranks that both send first hang over NCCL

    def body() -> list[list[float]]:
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{dist.get_rank()}"

        def make() -> Tensor:
            made: Tensor = _two(torch.ones(4, device=device), torch.full((4,), 2.0, device=device))
            return made

        found = OPERATIONS[name](make)
        listed: list[Any] = found if isinstance(found, list) else [found]
        return [[float(each.a[0]), float(each.b[3])] for each in listed if each is not None]

    result = simdist.run(
        body,
        world_size=SIZE,
        backend="nccl" if "nccl" in backend else "gloo",
        env={"TORCH_DISTRIBUTED_DEBUG": debug},
    )

    expected = [PARTS[name], 2 * PARTS[name]]
    result.raise_for_failure()
    assert all(found == expected for found in result.values[0])
    if name not in ("reduce", "gather"):  # on other ranks the result depends on the backend
        assert all(found == expected for found in result.values[1])


def test_the_works_of_a_subclass_end_together() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        tensor = _two(torch.ones(4), torch.full((4,), 2.0))
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        return [float(tensor.a[0]), float(tensor.b[0])]

    assert simdist.run(body, world_size=3).values == [[3.0, 6.0]] * 3


def test_a_class_that_knows_no_operator_refuses_it_by_name() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        with pytest.raises(NotImplementedError) as caught:
            dist.all_reduce(Refusing())
        return str(caught.value)

    assert simdist.run(body, world_size=2).values == ["no c10d.allreduce_.default"] * 2


def test_a_class_that_unwraps_its_tensors_communicates() -> None:
    class Wrapper(Tensor):
        wrapped: Tensor

        @staticmethod
        def __new__(cls, inner: Tensor) -> Wrapper:
            make: Any = torch.Tensor._make_wrapper_subclass
            made: Wrapper = make(cls, inner.shape, dtype=inner.dtype)
            made.wrapped = inner
            return made

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            inner = tree_map(lambda each: each.wrapped if isinstance(each, Wrapper) else each, args)
            return func(*inner, **(kwargs or {}))

    def body() -> list[list[float]]:
        dist.init_process_group("gloo")
        make: Any = Wrapper
        tensor, outputs = make(torch.ones(2)), [make(torch.zeros(2)) for _ in range(2)]
        dist.all_reduce(tensor)
        dist.all_gather(outputs, tensor)
        return [each.wrapped.tolist() for each in outputs]

    assert simdist.run(body, world_size=2).values == [[[2.0, 2.0]] * 2] * 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_comm_debug_mode_counts_synchronous_calls(backend: str) -> None:
    def body() -> dict[str, int]:
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else f"cuda:{dist.get_rank()}"
        tensor = torch.ones(4, device=device)
        mode: Any = CommDebugMode
        with mode() as counted:
            dist.broadcast(tensor, 0)
            dist.all_reduce(tensor)
            dist.all_gather_into_tensor(torch.empty(8, device=device), tensor)
        return {str(name): count for name, count in counted.comm_counts.items()}

    once = {"c10d.broadcast_": 1, "c10d.allreduce_": 1, "c10d._allgather_base_": 1}
    assert simdist.run(body, world_size=2, backend=backend).values == [once] * 2


SAID = {  # the errors of an all_reduce
    "quantized": "Could not run 'c10d::allreduce_' with arguments from the 'QuantizedCPU' backend.",
    "csr": "Could not run 'c10d::allreduce_' with arguments from the 'SparseCsrCPU' backend.",
    "freed": "the storage of a tensor of shape (4,) was freed or never allocated: it has 0 of 16 bytes.",
    "cut off": "a tensor of shape (4,) and strides (1,) wants bytes 0 to 16 of a storage of 8 bytes.",
    "cut off behind": "a tensor of shape (2,) and strides (1,) wants bytes 8 to 16 of a storage of 8 bytes.",
    "expanded": "a tensor of shape (4,) and strides (0,) wants bytes 0 to 16 of a storage of 4 bytes.",
}


@pytest.mark.parametrize("kind", list(SAID))
def test_a_refusal_says_what_the_tensor_is(kind: str) -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            dist.all_reduce(KINDS[kind]())
        return str(caught.value)

    for said in simdist.run(body, world_size=2).values:
        assert said.startswith(SAID[kind])


def test_meta_tensors_communicate_nothing() -> None:
    def body() -> tuple[str, list[float]]:
        dist.init_process_group("gloo")
        tensor = torch.ones(4, device="meta")
        dist.all_reduce(tensor)
        after = torch.ones(2)
        dist.all_reduce(after)
        return str(tensor.device), after.tolist()

    assert simdist.run(body, world_size=2).values == [("meta", [2.0, 2.0])] * 2


def outcomes() -> list[Any]:
    """Return the results of each call with tensors of other strides and shapes."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, square = dist.get_rank(), torch.arange(4.0).view(2, 2)
    group: Any = c10d.group.WORLD

    def turned(*shape: int) -> Tensor:
        return torch.zeros(*shape[::-1]).t()

    def stacked() -> Tensor:
        output = torch.empty(2, 4)
        group.all_gather_single_coalesced([output], [torch.ones(4)]).wait()
        return output

    def mixed() -> Tensor:
        tensor = torch.arange(6.0).view(3, 2).t() if rank else torch.arange(6.0).view(2, 3)
        c10d.all_reduce_coalesced([tensor])
        return tensor

    def without_grad() -> Tensor:
        parameter = torch.nn.Parameter(torch.zeros(2))
        with torch.no_grad():
            dist.all_gather([parameter, torch.zeros(2)], torch.ones(2))
        return parameter.detach()

    def in_chunks() -> Tensor:
        parameter = torch.nn.Parameter(torch.zeros(4))
        dist.all_gather_into_tensor(parameter, torch.ones(2))
        return parameter

    def gathered(tensor: Tensor) -> Any:
        outputs = on_root([turned(2, 2), torch.zeros(2, 2)])
        dist.gather(tensor, outputs)
        return outputs

    big = torch.arange(16.0).view(4, 4)
    calls: list[Callable[[], Any]] = [
        lambda: fill(dist.all_gather_into_tensor, torch.empty(2, 4), torch.ones(4)),
        lambda: fill(dist.all_gather_into_tensor, torch.empty(8), torch.ones(2, 2)),
        lambda: fill(dist.all_gather_into_tensor, torch.empty(2), torch.tensor(1.0)),
        lambda: fill(dist.all_gather_into_tensor, torch.empty(1, 2, 4), torch.ones(4)),
        lambda: fill(dist.all_gather_into_tensor, turned(4, 3), torch.arange(6.0).view(2, 3)),
        lambda: fill(dist.reduce_scatter_tensor, turned(2, 3), torch.arange(12.0).view(4, 3)),
        lambda: fill(dist.all_gather, [turned(2, 2), turned(2, 2)], square),
        lambda: fill(dist.all_gather, [torch.zeros(2, 2), torch.zeros(2, 2)], big[::2, ::2]),
        lambda: fill(dist.all_to_all, [turned(2, 2), turned(2, 2)], [square, square]),
        lambda: fill(dist.reduce_scatter, turned(2, 2), [square, square]),
        lambda: fill(dist.scatter, turned(2, 2), on_root([square, square])),
        lambda: fill(dist.broadcast, turned(2, 2) if rank else square, 0),
        lambda: gathered(square),
        lambda: gathered(square.t()),
        lambda: gathered(big[:2, :2]),
        lambda: fill(dist.all_gather, [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)], torch.ones(2)),
        lambda: fill(dist.all_to_all, [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)], [torch.ones(2)] * 2),
        stacked,
        mixed,
        without_grad,
        in_chunks,
    ]
    found: list[Any] = []
    for call in calls:
        try:
            value = call()
        except RuntimeError as error:
            found.append(str(error)[:90])
        else:
            found.append([each.tolist() for each in value] if isinstance(value, list) else value)
    return [each.tolist() if isinstance(each, Tensor) else each for each in found]


def _in_inference_mode() -> None:
    dist.init_process_group("gloo")
    with torch.inference_mode():
        dist.all_reduce(torch.ones(1))


SPLIT = "Split" if VERSION >= (2, 13) else "SplitBackward0"

# As measured on real Gloo, torch 2.13; the test of real processes below checks them.
ON_RANK_0: list[Any] = [
    "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (4), got (1, 4))",
    "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (2, 2), got (4))",
    "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (), got (1))",
    "ProcessGroupGloo::allgather: invalid output tensor list at index 0 (expected length 2, got",
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
    [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]],
    [[[0.0, 1.0], [2.0, 3.0]]] * 2,
    [[[0.0, 2.0], [8.0, 10.0]]] * 2,
    [[[0.0, 1.0], [2.0, 3.0]]] * 2,
    [[0.0, 3.0], [3.0, 6.0]],
    [[0.0, 2.0], [1.0, 3.0]],
    [[0.0, 1.0], [2.0, 3.0]],
    [[[0.0, 1.0], [2.0, 3.0]]] * 2,
    [[[0.0, 2.0], [1.0, 3.0]]] * 2,
    [[[0.0, 1.0], [4.0, 5.0]]] * 2,
    "a leaf Variable that requires grad is being used in an in-place operation.",
    "a leaf Variable that requires grad is being used in an in-place operation.",
    "ProcessGroupGloo::allgather_coalesced: invalid size of output tensor at index 0 (expected ",
    [[0.0, 3.0, 6.0], [4.0, 7.0, 10.0]],
    [1.0, 1.0],
    f"Output 0 of {SPLIT} is a view and is being modified inplace. This view is the output of a function"[:90],
]


def test_outputs_of_other_strides_and_shapes_are_filled_as_gloo_fills_them() -> None:
    for _ in range(2):
        result = simdist.run(outcomes, world_size=2)

        result.raise_for_failure()
        assert result.values[0] == ON_RANK_0
        simdist.run(_in_inference_mode, world_size=2).raise_for_failure()  # afterwards all data moves in that mode


@pytest.mark.real
def test_real_gloo_fills_them_the_same_way() -> None:
    real = run_real(outcomes, 2)

    assert real[0].value == ON_RANK_0
    assert real[1].value == simdist.run(outcomes, world_size=2).values[1]


def test_memory_that_is_freed_under_an_operation_is_an_error() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        tensor = torch.ones(4)
        work: Any = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 0:
            tensor.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        return str(caught.value).partition(" was freed while ")[0]

    assert simdist.run(body, world_size=2).values == ["the storage of a tensor of 4 elements"] * 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_random_calls_with_random_tensors_end_and_repeat_themselves(backend: str) -> None:
    for number in range(25):
        program = draw_odd_program(number, backend)
        assert fault_of(program) is None, program.text()
