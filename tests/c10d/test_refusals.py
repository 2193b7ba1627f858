"""(p): wrong arguments are refused in real Gloo's words, and no rank is left waiting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import _make_nccl_premul_sum

from simdist.c10d.surface._compat import said_by, without_news
from simdist.errors import UnsupportedError
from simdist.inside.torch import Place
from tests.c10d.worlds import attempt, in_group, ones

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

c10d: Any = _distributed_c10d  # for names that the stubs leave out
F64, I64, I16, F8 = torch.float64, torch.int64, torch.int16, torch.float8_e4m3fn
UNSUPPORTED = (torch.int16, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2)
OPS = dist.ReduceOp
GLOO = "RuntimeError: ProcessGroupGloo::"
MIXED = "ValueError: Invalid usage of tensors with different dtypesFound "
SCALAR = "RuntimeError: Invalid scalar type"
CONTIGUOUS = "RuntimeError: input tensor has to be contiguous"

Call = Callable[[], object]

# Rank 0 of 2 calls (rank 1 is its peer); each text is real Gloo's.
REFUSALS: dict[str, tuple[Call, str]] = {
    "send to self": (
        lambda: dist.send(ones(), 0),
        "ValueError: Invalid destination rank: destination rank should not be the same as "
        "the rank of the current process.",
    ),
    "send strided": (lambda: dist.send(ones(8)[::2], 1), CONTIGUOUS),
    "recv strided": (lambda: dist.recv(ones(8)[::2], 1), CONTIGUOUS),
    "send with a negative tag": (lambda: dist.send(ones(), 1, tag=-1), "RuntimeError: Tag must be nonnegative"),
    "send a list": (
        lambda: dist.send([1], 1),  # type: ignore[arg-type]
        "TypeError: Invalid function argument. Expected parameter `tensor` of type torch.Tensor\n"
        "             but got <class 'list'> instead.",
    ),
    "all_gather short list": (
        lambda: dist.all_gather([ones()], ones()),
        GLOO + "allgather: invalid output tensor list at index 0 (expected length 2, got 1)",
    ),
    "all_gather long list": (
        lambda: dist.all_gather([ones()] * 3, ones()),
        GLOO + "allgather: invalid output tensor list at index 0 (expected length 2, got 3)",
    ),
    "all_gather no list": (
        lambda: dist.all_gather([], ones()),
        GLOO + "allgather: invalid output tensor list at index 0 (expected length 2, got 0)",
    ),
    "all_gather dtypes": (
        lambda: dist.all_gather([ones(dtype=F64)] * 2, ones()),
        MIXED + "torch.float64 and  torch.float32",
    ),
    "all_gather shapes": (
        lambda: dist.all_gather([ones(6), ones(6)], ones()),
        GLOO + "allgather: invalid tensor size at index 0 (expected (4), got (6))",
    ),
    "all_gather one shape": (
        lambda: dist.all_gather([ones(), ones(6)], ones()),
        GLOO + "allgather: invalid tensor size at index 1 (expected (4), got (6))",
    ),
    "all_gather_into_tensor size": (
        lambda: dist.all_gather_into_tensor(ones(7), ones(4)),
        GLOO + "allgather: invalid tensor size at index 1 (expected (4), got (3))",
    ),
    "gather without list": (
        lambda: dist.gather(ones(), None, 0),
        "ValueError: Argument ``gather_list`` must be specified on destination rank.",
    ),
    "gather short list": (
        lambda: dist.gather(ones(), [ones()], 0),
        GLOO + "gather: Incorrect output list size 1. Output list size should be 2, same as size of the process group.",
    ),
    "gather shape": (
        lambda: dist.gather(ones(), [ones(), ones(6)], 0),
        GLOO + "gather: invalid tensor size at index 1 (expected (4), got (6))",
    ),
    "gather dtype": (
        lambda: dist.gather(ones(), [ones(), ones(dtype=I64)], 0),
        MIXED + "torch.float32 and  torch.int64",
    ),
    "gather to nobody": (lambda: dist.gather(ones(), None, 9), GLOO + "gather: invalid root rank: 9"),
    "gather list on a leaf": (
        lambda: dist.gather(ones(), [ones(), ones()], 1),
        "ValueError: Argument ``gather_list`` must NOT be specified on non-destination ranks.",
    ),
    "scatter without list": (
        lambda: dist.scatter(ones(), None, 0),
        "ValueError: Argument ``scatter_list`` must be specified on source rank.",
    ),
    "scatter list on a leaf": (
        lambda: dist.scatter(ones(), [ones(), ones()], 1),
        "ValueError: Argument ``scatter_list`` must NOT be specified on non-source ranks.",
    ),
    "scatter short list": (
        lambda: dist.scatter(ones(), [ones()], 0),
        GLOO + "scatter: Incorrect input list size 1. Input list size should be 2, same as size of the process group.",
    ),
    "scatter shape": (
        lambda: dist.scatter(ones(), [ones(), ones(6)], 0),
        GLOO + "scatter: invalid tensor size at index 1 (expected (4), got (6))",
    ),
    "scatter from nobody": (lambda: dist.scatter(ones(), None, 9), GLOO + "scatter: invalid root rank: 9"),
    "reduce_scatter list": (
        lambda: dist.reduce_scatter(ones(), [ones()]),
        "RuntimeError: invalid input tensor list size, must be world size",
    ),
    "reduce_scatter dtype": (
        lambda: dist.reduce_scatter(ones(), [ones(), ones(dtype=I64)]),
        MIXED + "torch.float32 and  torch.int64",
    ),
    "all_to_all_single output splits": (
        lambda: dist.all_to_all_single(ones(), ones(), [1, 2], [2, 2]),
        "RuntimeError: Split sizes doesn't match total dim 0 size",
    ),
    "all_to_all_single input splits": (
        lambda: dist.all_to_all_single(ones(), ones(), [2, 2], [1, 2]),
        "RuntimeError: Split sizes doesn't match total dim 0 size",
    ),
    "all_to_all_single number of splits": (
        lambda: dist.all_to_all_single(ones(), ones(), [4], [2, 2]),
        "RuntimeError: Number of tensor splits not equal to group size",
    ),
    "all_to_all_single dtype": (
        lambda: dist.all_to_all_single(ones(dtype=I64), ones()),
        MIXED + "torch.int64 and  torch.float32",
    ),
    "all_to_all lists": (
        lambda: dist.all_to_all([ones()], [ones()]),
        GLOO + "alltoall: input tensor list size 1 does not match world size 2",
    ),
    "all_to_all dtype": (
        lambda: dist.all_to_all([ones(), ones(dtype=I64)], [ones(), ones()]),
        MIXED + "torch.float32 and  torch.int64",
    ),
    "broadcast from nobody": (lambda: dist.broadcast(ones(), 9), GLOO + "broadcast: invalid root rank: 9"),
    "broadcast from -1": (lambda: dist.broadcast(ones(), -1), GLOO + "broadcast: invalid root rank: -1"),
    "broadcast from unsaid": (lambda: dist.broadcast(ones()), "ValueError: Must specify global_rank or group_rank"),
    "reduce to nobody": (lambda: dist.reduce(ones(), 9), GLOO + "reduce: invalid root rank: 9"),
    "all_reduce in no group": (
        lambda: dist.all_reduce(ones(), group="x"),
        "ValueError: Process group x is not initialized in the world group map. Please initialize the group first.",
    ),
    "all_reduce_coalesced dtypes": (
        lambda: dist.all_reduce_coalesced([ones(), ones(dtype=F64)]),
        MIXED + "torch.float32 and  torch.float64",
    ),
    "BAND float": (
        lambda: dist.all_reduce(ones(), OPS.BAND),
        "RuntimeError: Cannot use ReduceOp.BAND with non-integral dtype",
    ),
    "BOR double": (
        lambda: dist.all_reduce(ones(dtype=F64), OPS.BOR),
        "RuntimeError: Cannot use ReduceOp.BOR with non-integral dtype",
    ),
    "BXOR bfloat16": (
        lambda: dist.all_reduce(ones(dtype=torch.bfloat16), OPS.BXOR),
        "RuntimeError: Cannot use ReduceOp.BXOR with non-integral dtype",
    ),
    "reduce BAND float": (
        lambda: dist.reduce(ones(), 0, OPS.BAND),
        "RuntimeError: Cannot use ReduceOp.BAND with non-integral dtype",
    ),
    "MAX complex": (
        lambda: dist.all_reduce(ones(dtype=torch.complex64), OPS.MAX),
        "ValueError: all_reduce does not support RedOpType.MAX on complex tensors",
    ),
    "reduce MAX complex": (
        lambda: dist.reduce(ones(dtype=torch.complex64), 0, OPS.MAX),
        "RuntimeError: reduce does not support\x04on complex tensors",
    ),
    "reduce_scatter_tensor BAND complex": (
        lambda: dist.reduce_scatter_tensor(
            torch.ones(1, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64), OPS.BAND
        ),
        "RuntimeError: all_reduce does not support\x05on complex tensors",
    ),
    "PREMUL_SUM": (
        lambda: dist.all_reduce(ones(), _make_nccl_premul_sum(2.0)),
        "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo",
    ),
    "PREMUL_SUM int16": (lambda: dist.all_reduce(ones(dtype=I16), _make_nccl_premul_sum(2.0)), SCALAR),
    "BAND float8": (lambda: dist.all_reduce(ones(dtype=F8), OPS.BAND), SCALAR),
    "AVG int16": (lambda: dist.all_reduce(ones(dtype=I16), OPS.AVG), SCALAR),
    "empty int16": (lambda: dist.all_reduce(ones(0, dtype=I16)), SCALAR),
    "MAX sparse": (
        lambda: dist.all_reduce(torch.eye(2).to_sparse(), OPS.MAX),
        GLOO + "allreduce: unsupported reduction operation (allreduce of sparse tensors only works with ReduceOp.SUM)",
    ),
    "an empty batch": (lambda: dist.batch_isend_irecv([]), "IndexError: list index out of range"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_wrong_call_is_refused_in_gloo_s_words(name: str) -> None:
    call, expected = REFUSALS[name]

    assert in_group(lambda rank: attempt(call) if rank == 0 else "", 2) == [expected, ""]


@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "all_to_all_single",
        "gather",
        "scatter",
    ],
)
def test_types_that_gloo_has_no_functions_for_are_refused(name: str, dtype: torch.dtype) -> None:
    def one() -> torch.Tensor:
        return torch.zeros(2, dtype=dtype)

    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(one()),
        "reduce": lambda: dist.reduce(one(), 0),
        "broadcast": lambda: dist.broadcast(one(), 0),
        "all_gather": lambda: dist.all_gather([one(), one()], one()),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.zeros(4, dtype=dtype), one()),
        "all_to_all_single": lambda: dist.all_to_all_single(one(), one()),
        "gather": lambda: dist.gather(one(), [one(), one()], 0),
        "scatter": lambda: dist.scatter(one(), [one(), one()], 0),
    }

    assert in_group(lambda rank: attempt(calls[name]) if rank == 0 else "", 2) == [SCALAR, ""]


BEGINNINGS: dict[str, tuple[Call, str]] = {  # beginnings of texts that go on with addresses or types
    "recv from self": (
        lambda: dist.recv(ones(), 0),
        f"RuntimeError: [enforce fail at {Place.PAIR_IS_ITSELF.path}] state_ >= CONNECTED. 1 vs 4. ",
    ),
    "all_reduce a list": (
        lambda: dist.all_reduce([ones()]),
        "TypeError: Invalid function argument. Expected parameter `tensor` of type torch.Tensor",
    ),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_wrong_call_is_refused_in_words_that_begin_as_gloo_s(name: str) -> None:
    call, beginning = BEGINNINGS[name]

    assert in_group(lambda rank: attempt(call) if rank == 0 else "", 2)[0].startswith(beginning)


def test_an_all_gather_into_another_dtype_says_both() -> None:
    said = in_group(lambda rank: attempt(lambda: dist.all_gather_into_tensor(ones(8, dtype=F64), ones())), 2)[0]

    expected = GLOO + "allgather: invalid tensor type at index 0 (expected TensorOptions(dtype=float, device=cpu, "
    assert said.startswith(expected)
    assert "got TensorOptions(dtype=double, device=cpu, " in said


def test_a_failed_check_of_a_reduce_scatter_says_what_it_compared() -> None:
    def body(rank: int) -> list[str]:
        return [
            attempt(lambda: dist.reduce_scatter_tensor(ones(4), ones(7))),
            attempt(lambda: dist.reduce_scatter_tensor(ones(4, dtype=F64), ones(8))),
        ]

    size, dtype = in_group(body, 2)[0]

    assert "Check failed: outputShape[0] * worldSize == inputShape[0] (8 vs. 7)" in size
    assert "Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() (double vs. float)" in dtype


def test_a_barrier_takes_device_ids_and_ignores_them() -> None:
    assert in_group(lambda rank: attempt(lambda: dist.barrier(device_ids=[0])), 2) == ["ok", "ok"]


def test_after_a_refusal_the_group_is_whole() -> None:
    def body(rank: int) -> float:
        attempt(lambda: dist.all_gather([ones()], ones()))
        attempt(lambda: dist.broadcast(ones(), 9))
        tensor = ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert in_group(body, 2) == [2.0, 2.0]


def test_the_registry_of_works_for_compiled_code_is_refused_with_a_way_out() -> None:
    from torch.distributed import _functional_collectives

    def enter() -> None:
        with _functional_collectives.allow_inflight_collective_as_graph_input_ctx():
            raise AssertionError("unreachable")

    text = str(in_group(lambda rank: attempt(enter), 1)[0])

    assert "allow_inflight_collective_as_graph_input_ctx is not simulated" in text
    assert text.endswith("call wait() on the work before the compiled function")


@pytest.mark.parametrize("name", ["gather", "scatter", "broadcast", "reduce"])
def test_a_root_beside_lists_is_refused_in_the_words_of_pybind(name: str) -> None:
    def body(rank: int) -> list[str]:
        group: Any = dist.distributed_c10d._get_default_group()
        many, one = [[ones(), ones()]], [ones()]
        given = {"gather": (many, one), "scatter": (one, many)}.get(name, (one,))
        single = {"gather": (many[0], ones()), "scatter": (ones(), many[0])}.get(name, (ones(),))
        return [attempt(lambda: getattr(group, name)(*given, 0)), attempt(lambda: getattr(group, name)(*single, 0.5))]

    for said in in_group(body, 2):
        for each in said:
            assert each.startswith(f"TypeError: {name}(): incompatible function arguments. The following argument")


def test_a_root_beside_single_tensors_is_taken() -> None:
    def body(rank: int) -> list[float]:
        group: Any = dist.distributed_c10d._get_default_group()
        room, mine = [ones(1), ones(1)], ones(1) * (rank + 3)
        group.gather(room if rank == 0 else [], mine, 0).wait()
        group.scatter(mine, room if rank == 0 else [], 0).wait()
        return [float(mine), *(float(each) for each in room)]

    assert in_group(body, 2) == [[3.0, 3.0, 4.0], [4.0, 1.0, 1.0]]


def test_torch_is_asked_for_its_words_without_being_run() -> None:
    asked: list[Any] = []

    class Store(c10d.Store):  # type: ignore[misc]
        def set(self, *args: Any) -> None:
            asked.append(args)

        add = check = get = wait = set

    error = said_by(c10d.ProcessGroupGloo, Store(), 0, 1, timedelta(seconds=1))  # accepted: it would connect

    assert str(error).startswith("__init__(): incompatible constructor arguments.")
    assert str(error).endswith(", 0, 1, datetime.timedelta(seconds=1)")
    assert asked == []


class _Newer:
    def __init__(self, **options: Any) -> None:
        """(self, store: Store, rank: int, size: int, timeout: timedelta, mend: bool = False)"""


def test_what_a_newer_torch_adds_is_let_be_until_it_asks_for_something() -> None:
    assert without_news(_Newer, ("timeout",), {"timeout": 1, "mend": False, "other": 2}) == {"timeout": 1, "other": 2}

    with pytest.raises(UnsupportedError, match=r"_Newer\(mend=True\) is new in torch .* leave it out"):
        without_news(_Newer, ("timeout",), {"mend": True})
