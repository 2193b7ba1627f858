"""Features of torch.distributed that ranks do not support say so, and name an alternative."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

import simdist
from simdist.errors import SimdistError, UnsupportedError
from simdist.result import RunResult
from tests.builds import NO_NCCL, NO_NCCL_BESIDE_GLOO

LACKS = "Distributed package doesn't have {} built in"
MPI = ". MPI is only included if you build PyTorch from source on a host that has MPI installed."


def error_of(result: RunResult, rank: int) -> BaseException:
    error = result.ranks[rank].exception
    assert error is not None
    return error


@pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl")  # torch's own warning
# Real torch's error for each on a machine without a GPU (2.13, 2.14).
@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("nccl", NO_NCCL),
        ("cpu:gloo,cuda:nccl", NO_NCCL_BESIDE_GLOO),
        ("cuda:nccl,cpu:gloo", NO_NCCL),
        ("cpu:gloo,xpu:xccl", LACKS.format("XCCL")),
        ("cpu:gloo,cuda:mpi", LACKS.format("MPI") + MPI),
    ],
)
def test_a_list_of_backends_is_refused_for_the_one_that_this_torch_lacks(backend: str, text: str) -> None:
    result = simdist.run(dist.init_process_group, world_size=2, args=(backend,))

    assert [(type(rank.exception), str(rank.exception)) for rank in result.ranks] == [
        (ValueError if "no GPUs found" in text else RuntimeError, text)
    ] * 2


@pytest.mark.parametrize("backend", [None, "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_what_this_torch_has_is_taken(backend: str | None) -> None:
    def body() -> float:
        dist.init_process_group(backend)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return float(tensor)

    assert simdist.run(body, world_size=2).values == [2.0, 2.0]


@pytest.mark.parametrize("call", ["all_reduce", "send", "barrier"])
def test_a_group_object_of_another_rank_says_whose_it_is(call: str) -> None:
    shared: list[Any] = []  # one for all ranks, like a module's global

    def body() -> None:
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            shared.append(group)
        dist.barrier()
        if dist.get_rank() == 1:
            if call == "barrier":
                shared[0].barrier().wait()
            elif call == "send":
                shared[0].send([torch.ones(1)], 1, 0).wait()
            else:
                shared[0].allreduce([torch.ones(1)]).wait()

    error = error_of(simdist.run(body, world_size=2), 1)

    assert isinstance(error, SimdistError)
    assert str(error).startswith("rank 1 uses rank 0's object of group '1'; ranks share what is global in a module")


def test_torchs_own_words_about_a_group_object_of_another_rank_name_it_too() -> None:
    shared: list[Any] = []

    def body() -> None:
        dist.init_process_group("gloo")
        shared.append(dist.new_group([0, 1]))
        dist.barrier()
        assert "belongs" not in repr(shared[dist.get_rank()])
        dist.get_backend(shared[0])

    error = error_of(simdist.run(body, world_size=2), 1)

    whose = "rank 0 of 2, which belongs to rank 0, not to 1: isolate the module that keeps it"
    assert f"<simdist gloo group '1' {whose}> is not initialized" in str(error)


def tutorial_setup() -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)


def test_a_port_that_nobody_serves_is_explained() -> None:
    error = error_of(simdist.run(tutorial_setup, world_size=2), 0)

    assert str(error) == (
        "The client socket has timed out after 1800000ms while trying to connect to (localhost, 12355)."
    )
    (note,) = error.__notes__
    assert "no rank serves a store at localhost:12355" in note
    assert "the launcher serves it, at 127.0.0.1:29500" in note
    assert "simdist.spawn" in note


def test_where_no_launcher_is_simulated_nothing_is_said_of_one() -> None:
    def body(rank: int) -> list[str]:
        if rank == 0:
            return []
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355"}
        with pytest.raises(dist.DistNetworkError) as caught:
            dist.init_process_group("gloo", rank=rank, world_size=2)
        raise AssertionError(getattr(caught.value, "__notes__", []))

    context = simdist.spawn(body, nprocs=2, join=False)
    assert context is not None
    with pytest.raises(Exception, match=r"AssertionError: \[\]"):
        context.join()


def test_rpc_is_refused_by_name() -> None:
    def body() -> None:
        init: Any = rpc.init_rpc
        init("worker", rank=int(os.environ["RANK"]), world_size=2)

    result = simdist.run(body, world_size=2)

    assert isinstance(error_of(result, 0), UnsupportedError)
    assert "torch.distributed.rpc is not simulated" in str(error_of(result, 1))
    assert result.virtual_time_ns == 0
