"""A fault's `op` is the name of an event or of a program's call; each of them strikes, and other names are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import FunctionType

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

import simdist
from simdist.errors import FaultError
from simdist.faults import ALIASES, OPERATIONS, Crash, operations_of


def vector() -> torch.Tensor:
    return torch.ones(2)


def both() -> list[torch.Tensor]:
    return [torch.ones(2), torch.ones(2)]


def at_zero(value: object) -> object:
    return value if dist.get_rank() == 0 else None


def to_the_other(send: Callable[[int], object], receive: Callable[[int], object]) -> None:
    (send if dist.get_rank() == 0 else receive)(1 - dist.get_rank())


def batch() -> None:
    peer = 1 - dist.get_rank()
    pair = [dist.P2POp(dist.isend, vector(), peer), dist.P2POp(dist.irecv, vector(), peer)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def group() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


def waited(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        functional.wait_tensor(tensor)  # type: ignore[no-untyped-call]


# A program's call for each name.
OVER_NCCL_ONLY = {"gather_into_tensor", "gather_single"}  # since torch 2.14; tests/c10d/nccl has their calls
CALLS: dict[str, Callable[[], object]] = {
    "all_gather": lambda: dist.all_gather(both(), vector()),
    "all_gather_coalesced": lambda: dist.all_gather_coalesced([[vector()], [vector()]], [vector()]),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.ones(4), vector()),
    "all_gather_into_tensor_coalesced": lambda: waited(
        functional.all_gather_into_tensor_coalesced([vector()], group())
    ),
    "all_gather_object": lambda: dist.all_gather_object([None, None], "x"),
    "all_gather_single": lambda: dist.all_gather_single(torch.ones(4), vector()),
    "all_gather_tensor": lambda: waited([functional.all_gather_tensor(vector(), 0, group())]),
    "all_reduce": lambda: dist.all_reduce(vector()),
    "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([vector()]),
    "all_to_all": lambda: dist.all_to_all(both(), both()),
    "all_to_all_single": lambda: dist.all_to_all_single(vector(), vector()),
    "allgather": lambda: group().allgather([both()], [vector()]).wait(),
    "allreduce": lambda: group().allreduce([vector()]).wait(),
    "alltoall": lambda: group().alltoall(both(), both()).wait(),
    "alltoall_base": lambda: group().alltoall_base(vector(), vector(), [], []).wait(),
    "barrier": lambda: dist.barrier(),
    "batch_isend_irecv": batch,
    "broadcast": lambda: dist.broadcast(vector(), 0),
    "broadcast_object_list": lambda: dist.broadcast_object_list(["x"], 0),
    "gather": lambda: dist.gather(vector(), at_zero(both()), 0),  # type: ignore[arg-type]
    "gather_object": lambda: dist.gather_object("x", at_zero([None, None]), 0),  # type: ignore[arg-type]
    "irecv": lambda: to_the_other(lambda peer: dist.send(vector(), peer), lambda peer: dist.irecv(vector(), peer)),
    "isend": lambda: to_the_other(lambda peer: dist.isend(vector(), peer), lambda peer: dist.recv(vector(), peer)),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "recv": lambda: to_the_other(lambda peer: dist.send(vector(), peer), lambda peer: dist.recv(vector(), peer)),
    "recv_object_list": lambda: to_the_other(
        lambda peer: dist.send_object_list(["x"], peer), lambda peer: dist.recv_object_list([None], peer)
    ),
    "reduce": lambda: dist.reduce(vector(), 0),
    "reduce_scatter": lambda: dist.reduce_scatter(vector(), both()),
    "reduce_scatter_single": lambda: dist.reduce_scatter_single(torch.ones(1), vector()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.ones(1), vector()),
    "reduce_scatter_tensor_coalesced": lambda: waited(
        functional.reduce_scatter_tensor_coalesced([vector()], "sum", [0], group())
    ),
    "scatter": lambda: dist.scatter(vector(), at_zero(both()), 0),  # type: ignore[arg-type]
    "scatter_object_list": lambda: dist.scatter_object_list([None], at_zero(["x", "y"]), 0),  # type: ignore[arg-type]
    "sparse_all_reduce": lambda: dist.all_reduce(torch.ones(2).to_sparse()),
}
CALLS |= {
    "all_gather_single_autograd": lambda: waited([functional.all_gather_single_autograd(vector(), 0, group())]),
    "all_gather_single_coalesced": lambda: waited(functional.all_gather_single_coalesced([vector()], group())),
    "all_gather_tensor_autograd": lambda: waited([functional.all_gather_tensor_autograd(vector(), 0, group())]),
    "all_to_all_single_autograd": lambda: waited(
        [functional.all_to_all_single_autograd(vector(), [1, 1], [1, 1], group())]
    ),
    "permute_tensor": lambda: waited([functional.permute_tensor(vector(), [1, 0], group())]),
    "reduce_scatter_single_autograd": lambda: waited(
        [functional.reduce_scatter_single_autograd(vector(), "sum", 0, group())]
    ),
    "reduce_scatter_single_coalesced": lambda: waited(
        functional.reduce_scatter_single_coalesced([vector()], "sum", [0], group())
    ),
    "reduce_scatter_tensor_autograd": lambda: waited(
        [functional.reduce_scatter_tensor_autograd(vector(), "sum", 0, group())]
    ),
}
CALLS["send"], CALLS["send_object_list"] = CALLS["recv"], CALLS["recv_object_list"]
RECEIVERS = ("recv", "irecv", "recv_object_list")


def test_every_name_has_a_call_here() -> None:
    assert sorted({*CALLS, *OVER_NCCL_ONLY}) == sorted({*OPERATIONS, *ALIASES})
    assert {operation for name in CALLS for operation in operations_of(name)} <= set(OPERATIONS)


# Functions of torch.distributed that no fault can strike: they are about groups, not operations in a group.
ABOUT_GROUPS = {
    "set_timeout",
    "destroy_process_group",
    "init_process_group",
    "new_group",
    "new_subgroups",
    "shrink_group",
    "split_group",
}
ABOUT_GROUPS |= {"new_subgroups_by_enumeration", "record_comm", "supports_complex"}


def test_every_operation_that_torch_exports_has_a_name_here() -> None:
    functions = {
        name
        for name in distributed_c10d.__all__
        if type(getattr(distributed_c10d, name)) is FunctionType and not name.startswith(("get_", "is_"))
    }

    assert functions - ABOUT_GROUPS <= {*OPERATIONS, *ALIASES}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_fault_strikes_the_call_of_its_name(name: str) -> None:
    def program() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.init_process_group("gloo")
            CALLS[name]()

    fault = Crash(rank=1 if name in RECEIVERS else 0, op=name)
    result = simdist.run(program, world_size=2, faults=[fault])

    assert result.ranks[fault.rank].status == "killed"
    assert [event.rank for event in result.events if event.kind == "fault"] == [fault.rank]


def test_a_dense_and_a_sparse_all_reduce_are_both_all_reduce() -> None:
    def program() -> None:
        dist.init_process_group("gloo")
        CALLS["all_reduce"]()
        CALLS["sparse_all_reduce"]()

    result = simdist.run(program, world_size=2, faults=[Crash(rank=1, op="all_reduce", nth=2)])

    assert result.ranks[1].last_operation.startswith("sparse_all_reduce")
    assert result.ranks[1].status == "killed"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("all_redcue", "; did you mean 'all_reduce'?"),
        ("isned", "; did you mean 'isend'?"),
        ("x", f"; known: {', '.join(OPERATIONS)}"),
    ],
)
def test_a_name_that_nothing_has_is_refused(name: str, hint: str) -> None:
    with pytest.raises(FaultError) as caught:
        simdist.run(lambda: None, world_size=1, faults=[Crash(rank=0, op=name)])

    assert str(caught.value) == f"faults[0].op: unknown operation {name!r}{hint}"
