"""Collectives that move data: all data arrives at the right place, whatever its type, shape and layout."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.errors import MismatchError
from tests.c10d.worlds import attempt, in_group, now_ns, ones, sleep_s

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def mine(rank: int, dtype: torch.dtype = torch.float32, count: int = 6) -> torch.Tensor:
    values = torch.arange(count) + 10 * rank
    return values.to(dtype) if dtype is not torch.bool else values % (rank + 2) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_gives_everyone_the_root_s_data(dtype: torch.dtype) -> None:
    def body(rank: int) -> torch.Tensor:
        tensor = mine(rank, dtype)
        dist.broadcast(tensor, 2)
        return tensor

    for result in in_group(body, 5):
        assert torch.equal(result, mine(2, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather_gives_everyone_everything(dtype: torch.dtype) -> None:
    def body(rank: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        parts = [torch.zeros(6, dtype=dtype) for _ in range(3)]
        whole = torch.zeros(18, dtype=dtype)
        dist.all_gather(parts, mine(rank, dtype))
        dist.all_gather_into_tensor(whole, mine(rank, dtype))
        return parts, whole

    expected = [mine(rank, dtype) for rank in range(3)]
    for parts, whole in in_group(body, 3):
        assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
        assert torch.equal(whole, torch.cat(expected))


@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_gather_and_scatter_undo_each_other(dtype: torch.dtype) -> None:
    def body(rank: int) -> torch.Tensor:
        parts = [torch.zeros(6, dtype=dtype) for _ in range(3)] if rank == 1 else None
        back = torch.zeros(6, dtype=dtype)
        dist.gather(mine(rank, dtype), parts, 1)
        dist.scatter(back, parts, 1)
        return back

    for rank, result in enumerate(in_group(body, 3)):
        assert torch.equal(result, mine(rank, dtype))


def test_complex_tensors_are_scattered_but_not_gathered() -> None:
    def body(rank: int) -> tuple[list[complex], str]:
        parts = [mine(peer, torch.complex64, 2) for peer in range(2)] if rank == 0 else None
        output = torch.zeros(2, dtype=torch.complex64)
        dist.scatter(output, parts, 0)
        return output.tolist(), attempt(lambda: dist.gather(output, parts, 0))

    refused = "RuntimeError: Invalid scalar type"
    assert in_group(body, 2) == [([0, 1], refused), ([10, 11], refused)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_to_all_transposes(dtype: torch.dtype) -> None:
    def body(rank: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        parts = [torch.zeros(2, dtype=dtype) for _ in range(3)]
        whole = torch.zeros(6, dtype=dtype)
        dist.all_to_all(parts, list(torch.split(mine(rank, dtype), 2)))
        dist.all_to_all_single(whole, mine(rank, dtype))
        return parts, whole

    for rank, (parts, whole) in enumerate(in_group(body, 3)):
        expected = [mine(source, dtype)[2 * rank : 2 * rank + 2] for source in range(3)]
        assert all(torch.equal(a, b) for a, b in zip(parts, expected, strict=True))
        assert torch.equal(whole, torch.cat(expected))


@settings(max_examples=12, deadline=None)
@given(data=st.data(), ranks=st.integers(1, 5), width=st.integers(1, 3))
def test_an_uneven_all_to_all_delivers_every_row(data: st.DataObject, ranks: int, width: int) -> None:
    row = st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)
    rows = data.draw(st.lists(row, min_size=ranks, max_size=ranks))  # rows[s][t]: how many rows s sends to t

    def sent(rank: int) -> torch.Tensor:
        return (torch.arange(sum(rows[rank]) * width) + 100.0 * rank).reshape(-1, width)

    def body(rank: int) -> torch.Tensor:
        received = [rows[source][rank] for source in range(ranks)]
        output = torch.full((sum(received), width), -1.0)
        dist.all_to_all_single(output, sent(rank), received, rows[rank])
        return output

    results = in_group(body, ranks)

    for rank, result in enumerate(results):
        parts = [torch.split(sent(source), rows[source])[rank] for source in range(ranks)]
        assert torch.equal(result, torch.cat(parts))


def test_all_to_all_refuses_parts_of_different_shapes() -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        dist.all_to_all([torch.zeros(rank + 1) for _ in range(2)], [torch.ones(peer + 1) for peer in range(2)])

    result = simdist.run(main, world_size=2)

    for rank in result.ranks:
        assert "ProcessGroupGloo::alltoall: invalid tensor size at index 1" in str(rank.exception)


def test_the_coalescing_manager_runs_what_was_called_inside_it() -> None:
    def body(rank: int) -> list[float]:
        from torch.distributed.distributed_c10d import _coalescing_manager

        tensors = [torch.full((2,), float(rank + index)) for index in range(3)]
        with _coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        return [tensor[0].item() for tensor in tensors]

    assert in_group(body, 2) == [[1, 3, 5]] * 2


@pytest.mark.parametrize(
    "call", ["broadcast", "all_reduce", "reduce", "all_gather", "all_to_all_single", "gather", "scatter"]
)
def test_empty_tensors_pass(call: str) -> None:
    def body(rank: int) -> str:
        parts = [ones(0), ones(0)]
        calls: dict[str, Callable[[], object]] = {
            "broadcast": lambda: dist.broadcast(ones(0), 0),
            "all_reduce": lambda: dist.all_reduce(ones(0)),
            "reduce": lambda: dist.reduce(ones(0), 0),
            "all_gather": lambda: dist.all_gather(parts, ones(0)),
            "all_to_all_single": lambda: dist.all_to_all_single(ones(0), ones(0)),
            "gather": lambda: dist.gather(ones(0), parts if rank == 0 else None, 0),
            "scatter": lambda: dist.scatter(ones(0), parts if rank == 0 else None, 0),
        }
        return attempt(calls[call])

    assert in_group(body, 2) == ["ok", "ok"]


def test_a_transposed_tensor_is_broadcast_in_memory_order() -> None:
    def body(rank: int) -> torch.Tensor:
        tensor = mine(rank).reshape(2, 3).t()
        dist.broadcast(tensor, 0)
        return tensor

    for result in in_group(body, 2):
        assert torch.equal(result, mine(0).reshape(2, 3).t())


def test_a_broadcast_ends_on_the_root_s_side_before_the_last_rank_arrives() -> None:
    def body(rank: int) -> float:
        dist.barrier()
        begin = now_ns()
        sleep_s(1.0 * (rank == 3))
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, 0)
        assert tensor.item() == 0.0
        return round((now_ns() - begin) / 1e9, 2)

    # Rank 1 sends to rank 3 in the second round.
    assert in_group(body, 4) == [0.0, 1.0, 0.0, 1.0]


def test_a_gather_lets_the_leaves_go_on_when_the_root_has_heard_them() -> None:
    def body(rank: int) -> float:
        dist.barrier()
        begin = now_ns()
        sleep_s(1.0 * (rank == 2))
        dist.gather(ones(1), [ones(1) for _ in range(3)] if rank == 0 else None, 0)
        return round((now_ns() - begin) / 1e9, 2)

    assert in_group(body, 3) == [1.0, 0.0, 1.0]


# -- ranks that do not agree -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensor", [torch.ones(5), torch.ones(4, dtype=torch.float64)], ids=["another size", "another dtype"]
)
def test_payloads_that_do_not_fit_are_a_mismatch(tensor: torch.Tensor) -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(tensor.clone() if dist.get_rank() == 1 else ones())

    result = simdist.run(main, world_size=2, strict=True)

    assert all(isinstance(rank.exception, MismatchError) for rank in result.ranks)


def test_ranks_that_disagree_give_each_other_what_fits() -> None:
    """As real Gloo 2.13: the root of each operation waits for the ranks that called something else."""

    def body(rank: int) -> list[float]:
        tensor, parts = torch.full((2,), float(rank)), [torch.full((2,), 7.0 + place) for place in range(4)]
        if rank < 2:
            attempt(lambda: dist.gather(tensor, [torch.zeros(2) for _ in range(4)] if rank == 1 else None, dst=1))
        else:
            attempt(lambda: dist.scatter(tensor, parts if rank == 3 else None, src=3))
        sleep_s(6)
        return tensor.tolist()

    result = simdist.run(lambda: in_timed_group(body), world_size=4)

    assert [result.values[0], *result.values[1:3]] == [[0.0, 0.0], [1.0, 1.0], [9.0, 9.0]]
    assert [(event.rank, event.data["op"]) for event in result.events if event.kind == "complete"] == [
        (0, "gather"),
        (2, "scatter"),
    ]


def in_timed_group(body: Callable[[int], list[float]]) -> list[float]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    return body(dist.get_rank())


def test_what_has_completed_has_the_name_of_its_own_call() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        rank, tensor = dist.get_rank(), torch.ones(2)
        if rank == 0:
            dist.broadcast(tensor, 0)
        else:
            dist.scatter(tensor, [torch.ones(2)] * 4 if rank == 3 else None, src=3)

    result = simdist.run(body, world_size=4)

    assert {event.data["op"] for event in result.events if event.kind == "complete"} == {"scatter"}
