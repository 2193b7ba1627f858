"""Calls that do not match, over NCCL: which ranks get stuck, and what others get (facts of NCCL 2.29.7's kernels)."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings

from simdist.c10d.backends.nccl import NcclAlgorithm
from simdist.c10d.backends.nccl.kernels import _folds
from simdist.c10d.backends.nccl.kernels._algorithm import brought
from simdist.c10d.backends.nccl.kernels._collisions import Plan, collide
from simdist.c10d.backends.nccl.kernels._tuned import trees_of
from simdist.c10d.backends.nccl.kernels._tuning import Graph
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Brought, Exchanged, Gathered, Payload, Scattered
from simdist.cluster import NcclModel, build
from simdist.errors import MismatchError
from tests.builds import NCCL
from tests.c10d.nccl.worlds import join, results, run

Tensor = torch.Tensor
STUCK = -6  # the exit code of a rank that waits forever: its watchdog ends it


def filled(number: int, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((number,), value, dtype=dtype, device="cuda")


def outcomes(body: Any, world_size: int = 2, **more: Any) -> list[Any]:
    """Return each rank's value, or its exit code if it gets stuck."""
    return [rank.value if rank.exit_code == 0 else rank.exit_code for rank in run(body, world_size, **more).ranks]


# -- kernels against the results of matching calls -------------------------------------------------------------------

plans = st.sampled_from(
    [Plan("ll"), Plan("simple"), Plan("ll128", 2), Plan("simple", 3, 4096), Plan("ll", 2, 64), Plan("ll128", 1, 1920)]
)


def calls_of(
    name: str, ranks: int, length: int, dtype: torch.dtype, reduction: str, root: int, seed: int
) -> list[Brought]:
    """Return a call for each rank; all of them match."""
    draw = torch.Generator().manual_seed(seed)

    def tensor() -> Tensor:
        return (torch.randn(length, generator=draw) * 8).to(dtype)

    def payload() -> Payload:
        if name == "reduce_scatter":
            return Scattered(tensor(), [tensor() for _ in range(ranks)])
        if name == "all_gather":
            return Gathered([tensor() for _ in range(ranks)], tensor())
        if name == "all_to_all":
            return Exchanged([tensor() for _ in range(ranks)], [tensor() for _ in range(ranks)])
        return tensor()

    reduces = name in ("all_reduce", "reduce", "reduce_scatter")
    size = length * dtype.itemsize * (ranks if name in ("reduce_scatter", "all_to_all") else 1)
    operation = Operation(name, size, dtype.itemsize, dtype, (length,), reduction if reduces else "", root)
    return [Brought(operation, payload()) for _ in range(ranks)]


def everything(calls: Any) -> list[bytes]:
    found: list[bytes] = []

    def look(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value.contiguous().view(torch.uint8).numpy().tobytes())
        else:
            for each in value:
                look(each)

    for _, inputs, _ in calls:
        look(inputs)
    return found


@given(
    st.sampled_from(["all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]),
    st.integers(2, 5),
    st.integers(1, 3000),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8]),
    st.sampled_from(["sum", "avg", "max", "product"]),
    st.integers(0, 4),
    plans,
)
@settings(max_examples=50, deadline=None)
def test_kernels_of_calls_that_fit_end_with_what_those_give(
    name: str, ranks: int, length: int, dtype: torch.dtype, reduction: str, root: int, plan: Plan
) -> None:
    ours, theirs = (calls_of(name, ranks, length, dtype, reduction, root % ranks, seed=length) for _ in range(2))
    left: dict[Any, Any] = {}
    loop_bytes = plan.loop_bytes or _folds.LOOP_BYTES[plan.protocol]

    collision = collide(ours, [plan] * ranks, left)
    if name == "all_reduce":
        given = [_folds.Operand(data, reduction, None, is_bool=False) for data in brought(theirs, Tensor)]
        _folds.all_reduce(given, plan.channels, loop_bytes)
    else:
        NcclAlgorithm().execute(theirs)

    assert (collision.done, left) == (frozenset(range(ranks)), {})
    assert everything(ours) == everything(theirs)


@given(st.sampled_from([(4, 1), (4, 2), (6, 3), (8, 4)]), st.integers(1, 3000), st.integers(1, 4), plans)
@settings(max_examples=40, deadline=None)
def test_kernels_of_trees_end_with_what_trees_give(
    shape: tuple[int, int], length: int, channels: int, plan: Plan
) -> None:
    ranks, nodes = shape
    trees = trees_of(Graph(ranks=ranks, nodes=nodes, channels=channels, intra=20.0, inter=10.0))
    ours, theirs = (calls_of("all_reduce", ranks, length, torch.float32, "sum", -1, seed=length) for _ in range(2))

    collision = collide(ours, [Plan(plan.protocol, channels, plan.loop_bytes, trees)] * ranks, {})
    given = [_folds.Operand(data, "sum", None, is_bool=False) for data in brought(theirs, Tensor)]
    _folds.tree_all_reduce(given, trees, channels)

    assert collision.done == frozenset(range(ranks))
    assert everything(ours) == everything(theirs)


# -- sizes -----------------------------------------------------------------------------------------------------------


def reduced(*lengths: int) -> list[float]:
    rank = join()
    tensor = filled(lengths[rank], rank + 1.0)
    dist.all_reduce(tensor)
    found = tensor.tolist()
    return [found[0], *found[-3:]]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param((4, 8), [[3.0] * 4, STUCK], id="lines that never come"),
        pytest.param((8, 4), [STUCK, [3.0] * 4], id="the other way round"),
        # The numbers of chunks are equal: no rank gets stuck, and the longer tensor ends with a buffer's old content.
        pytest.param((409600, 409598), [[3.0, 3.0, 0.0, 0.0], [3.0] * 4], id="as many chunks"),
        pytest.param((10, 3_000_000, 10), [[6.0] * 4, STUCK, [6.0] * 4], id="fewer chunks"),
    ],
)
def test_ranks_with_less_to_reduce_finish(lengths: tuple[int, ...], expected: list[Any]) -> None:
    assert outcomes(reduced, len(lengths), args=list(lengths)) == expected


def test_ranks_that_are_stuck_hold_up_what_comes_next() -> None:
    def body() -> list[float]:
        rank = join()
        dist.all_reduce(filled(4 + 4 * rank, 1.0))
        tensor = filled(2, 1.0)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert outcomes(body) == [STUCK, STUCK]


def test_a_gather_of_other_sizes_ends_where_it_is_short() -> None:
    def body() -> list[list[float]]:
        rank = join()
        tensor, outputs = filled(4 + 2 * rank, rank), [filled(4 + 2 * rank, 7.0) for _ in range(2)]
        dist.all_gather(outputs, tensor)
        return [output.tolist() for output in outputs]

    assert outcomes(body) == [[[0.0] * 4, [1.0] * 4], STUCK]


def test_an_exchange_of_other_sizes_ends_for_those_whose_lines_come() -> None:
    def body() -> list[float]:
        rank = join()
        tensor, output = filled(4, rank), filled(4 + (rank == 0), 9.0)
        dist.all_to_all_single(output, tensor, [2, 3] if rank == 0 else [2, 2], [2, 2])
        return output.tolist()

    assert outcomes(body) == [STUCK, [0.0, 0.0, 1.0, 1.0]]


def test_other_types_are_the_same_bytes_in_chunks_of_ones_own() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = filled(4, 1.0, torch.float64) if rank == 0 else filled(8, 1.0)
        dist.all_reduce(tensor)
        return tensor.tolist()

    doubles, floats = results(body)

    one, ones = torch.ones(2, dtype=torch.float64), torch.ones(4)
    # Each rank's chunk is two doubles, or four floats: it adds the received bytes, as its own type, to its own.
    assert doubles[:2] == (one + ones.view(torch.float64)).tolist()
    assert floats[4:] == (ones + one.view(torch.float32)).tolist()


# -- kinds and roots -------------------------------------------------------------------------------------------------


def test_a_broadcast_does_not_wait_for_those_who_reduce() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = filled(4, rank + 1.0)
        dist.broadcast(tensor, 0) if rank == 0 else dist.all_reduce(tensor)
        return tensor.tolist()

    assert outcomes(body) == [[1.0] * 4, STUCK]


def test_a_barrier_is_an_all_reduce_of_one_element() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = filled(1, 5.0)
        dist.barrier() if rank else dist.all_reduce(tensor)
        return tensor.tolist()

    assert outcomes(body) == [[5.0], [5.0]]


def test_what_two_roots_send_is_left_for_the_next_call() -> None:
    def body() -> Any:
        rank = join()
        first, second = filled(4, rank + 1.0), filled(4, 10.0 * (rank + 1))
        dist.broadcast(first, rank)
        torch.cuda.synchronize()
        dist.all_reduce(second)
        return first.tolist(), second.tolist()

    # Rank 0 gets the other's broadcast from its buffer, 2, and takes its own part of the sum, 10 + 2, for the rest.
    assert outcomes(body)[0] == ([1.0] * 4, [12.0] * 4)


# -- messages --------------------------------------------------------------------------------------------------------


def passed(sent: int, room: int) -> list[float]:
    rank = join()
    tensor = filled(room if rank else sent, 1.0 if rank else 5.0)
    dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
    found = tensor.tolist()
    return [len(found), found[0], found[-1]]


@pytest.mark.parametrize(
    ("sent", "room", "expected"),
    [
        pytest.param(8, 4, [[8, 5.0, 5.0], [4, 5.0, 5.0]], id="more than is taken"),
        pytest.param(4, 8, [[4, 5.0, 5.0], STUCK], id="less than is waited for"),
        pytest.param(99_000, 100_000, [[99_000, 5.0, 5.0], [100_000, 5.0, 0.0]], id="a chunk that is not full"),
        pytest.param(10_000_000, 10_000, [STUCK, [10_000, 5.0, 5.0]], id="more chunks than fit a buffer"),
        pytest.param(100_000, 10, [[100_000, 5.0, 5.0], STUCK], id="another protocol"),
    ],
)
def test_messages_of_other_sizes(sent: int, room: int, expected: list[Any]) -> None:
    assert outcomes(passed, args=[sent, room]) == expected


def test_sockets_report_a_message_that_is_too_long() -> None:
    result = run(passed, args=[100_000, 10], cluster=build(2, hosts=2))

    assert (
        f"NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version {NCCL}\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "NET/Socket : peer host0<40000> message truncated : receiving 400000 bytes instead of 65536. If you believe "
        "your socket network is in a healthy state, there may be a mismatch in collective sizes or environment "
        "settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks\n"
    ) in result.ranks[1].stderr
    assert result.ranks[0].exit_code == 0


@pytest.mark.parametrize("network", ["IB", "Socket"])
def test_sockets_report_a_collective_in_another_protocol(network: str) -> None:
    cluster = build(2, hosts=2, nccl=NcclModel())

    result = run(reduced, args=[10_000_000, 100], cluster=cluster, env={"NCCL_NET": network})

    text = "message truncated : receiving 1048576 bytes instead of 65536."
    assert (text in result.ranks[1].stderr) is (network == "Socket")
    assert [rank.exit_code for rank in result.ranks] == [STUCK, STUCK]


def test_what_is_left_of_a_message_comes_with_the_next_one() -> None:
    def body() -> list[float]:
        rank = join()
        first, second = filled(10_000 if rank else 200_000, 1.0), filled(10_000, 2.0)
        for tensor in (first, second):
            dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
        return second.tolist()[:2]

    assert outcomes(body) == [[2.0, 2.0], [1.0, 1.0]]


def test_a_message_that_is_stuck_ends_with_an_abort() -> None:
    def body() -> float:
        rank = join()
        tensor = filled(8 if rank else 4, 1.0)
        dist.recv(tensor, 0) if rank else dist.send(tensor, 1)
        dist.distributed_c10d._abort_process_group()
        torch.cuda.synchronize()
        return tensor[0].item()

    assert outcomes(body) == [1.0, 1.0]


# -- strict worlds ---------------------------------------------------------------------------------------------------


def other_type(rank: int) -> None:
    dist.all_reduce(filled(4, 1.0, torch.int32 if rank else torch.float32))


def other_reduction(rank: int) -> None:
    dist.all_reduce(filled(4, 1.0), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def other_size(rank: int) -> None:
    dist.all_reduce(filled(4 + rank, 1.0))


def shorter_message(rank: int) -> None:
    tensor = filled(8 - rank, 1.0)
    dist.recv(tensor, 0) if rank else dist.send(tensor, 1)


def message_of_another_type(rank: int) -> None:
    tensor = filled(4, 1.0, torch.int32 if rank else torch.float32)
    dist.recv(tensor, 0) if rank else dist.send(tensor, 1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (other_type, "rank 1 called all_reduce(int32[4], sum) at test_collisions.py:"),
        (other_reduction, "rank 1 called all_reduce(float32[4], max) at test_collisions.py:"),
        (other_size, "rank 1 called all_reduce(float32[5], sum) at test_collisions.py:"),
        (shorter_message, "rank 1 receives float32[7] at test_collisions.py:"),
        (message_of_another_type, "rank 1 receives int32[4] at test_collisions.py:"),
    ],
)
def test_a_strict_world_says_what_does_not_fit(call: Any, text: str) -> None:
    def body() -> None:
        call(join())
        torch.cuda.synchronize()

    for rank in run(body, strict=True).ranks:
        assert isinstance(rank.exception, MismatchError)
        assert text in str(rank.exception)
