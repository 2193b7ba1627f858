"""The effects of an nccl group's calls on tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d as _c

import simdist
from tests.c10d.nccl.worlds import join, of, results, run, said

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # the old names of two functions

_coalesced: Any = c10d._coalescing_manager
_premul: Any = _c._make_nccl_premul_sum


def test_every_collective_moves_what_it_should() -> None:
    def body() -> dict[str, Any]:
        rank = join()
        found: dict[str, Any] = {}
        tensor = of(rank, 1)
        dist.all_reduce(tensor)
        found["all_reduce"] = tensor.tolist()
        tensor = of(rank + 1.0)
        dist.broadcast(tensor, src=1)
        found["broadcast"] = tensor.tolist()
        tensor = of(rank + 1.0)
        dist.reduce(tensor, dst=2)
        found["reduce"] = tensor.tolist()
        parts = [of(0) for _ in range(3)]
        dist.all_gather(parts, of(rank))
        found["all_gather"] = [part.item() for part in parts]
        whole = torch.empty(3, device="cuda")
        dist.all_gather_into_tensor(whole, of(rank))
        found["all_gather_into_tensor"] = whole.tolist()
        tensor = of(0)
        dist.reduce_scatter(tensor, [of(rank), of(10), of(100)])
        found["reduce_scatter"] = tensor.tolist()
        dist.reduce_scatter_tensor(tensor, of(rank, 20, 200))
        found["reduce_scatter_tensor"] = tensor.tolist()
        parts = [of(0) for _ in range(3)]
        dist.all_to_all(parts, [of(10 * rank + other) for other in range(3)])
        found["all_to_all"] = [part.item() for part in parts]
        dist.all_to_all_single(whole, of(*(10 * rank + other for other in range(3))))
        found["all_to_all_single"] = whole.tolist()
        gathered = [of(0) for _ in range(3)] if rank == 0 else None
        dist.gather(of(rank), gathered, dst=0)
        found["gather"] = gathered and [part.item() for part in gathered]
        dist.scatter(tensor, [of(7), of(8), of(9)] if rank == 1 else None, src=1)
        found["scatter"] = tensor.tolist()
        return found

    found = results(body, 3)

    for rank, each in enumerate(found):
        assert each == {
            "all_reduce": [3, 3],
            "broadcast": [2],
            "reduce": [[1], [2], [6]][rank],
            "all_gather": [0, 1, 2],
            "all_gather_into_tensor": [0, 1, 2],
            "reduce_scatter": [[3], [30], [300]][rank],
            "reduce_scatter_tensor": [[3], [60], [600]][rank],
            "all_to_all": [rank, 10 + rank, 20 + rank],
            "all_to_all_single": [rank, 10 + rank, 20 + rank],
            "gather": [0, 1, 2] if rank == 0 else None,
            "scatter": [7 + rank],
        }


def test_uneven_parts_are_gathered_reduced_and_exchanged() -> None:
    def body() -> list[Any]:
        rank = join()
        parts = [torch.empty(length + 1, device="cuda") for length in range(2)]
        dist.all_gather(parts, torch.full((rank + 1,), float(rank), device="cuda"))
        out = torch.empty(rank + 1, device="cuda")
        dist.reduce_scatter(out, [of(1), of(2, 3)])
        received = torch.empty(2 * (rank + 1), device="cuda")
        dist.all_to_all_single(received, of(1, 2, 3) + 10 * rank, [rank + 1] * 2, [1, 2])
        return [[part.tolist() for part in parts], out.tolist(), received.tolist()]

    first, second = results(body)

    assert first == [[[0], [1, 1]], [2], [1, 11]]
    assert second == [[[0], [1, 1]], [4, 6], [2, 3, 12, 13]]


@pytest.mark.parametrize(
    ("operation", "dtype", "expected"),
    [
        (dist.ReduceOp.AVG, torch.float32, [1.5]),
        (dist.ReduceOp.AVG, torch.int32, [1]),
        (dist.ReduceOp.PRODUCT, torch.int64, [2]),
        (dist.ReduceOp.MIN, torch.bfloat16, [1]),
        (dist.ReduceOp.MAX, torch.float16, [2]),
        (dist.ReduceOp.SUM, torch.float8_e4m3fn, [3]),
        (dist.ReduceOp.SUM, torch.bool, [1]),
    ],
)
def test_reduce_operations(operation: Any, dtype: torch.dtype, expected: list[float]) -> None:
    def body() -> list[float]:
        tensor = of(join() + 1.0).to(dtype)
        dist.all_reduce(tensor, operation)
        return tensor.float().tolist()

    assert results(body) == [expected, expected]


def test_a_scaled_sum_multiplies_on_each_rank_first() -> None:
    def body() -> list[Any]:
        rank = join()
        first, second, alone = of(rank + 1.0), of(rank + 1.0), of(2)
        dist.all_reduce(first, _premul(0.5))
        dist.all_reduce(second, _premul(of(3).cpu()))
        group = [dist.new_group([each]) for each in range(2)][rank]
        dist.all_reduce(alone, _premul(0.5), group=group)
        return [first.item(), second.item(), alone.item()]

    assert results(body) == [[1.5, 9, 1]] * 2


def test_a_number_wins_against_a_nan_in_a_minimum() -> None:
    def body() -> list[float]:
        rank = join()
        tensor = of(float("nan") if rank else 1.0, float("nan") if not rank else 2.0)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor.tolist()

    assert results(body) == [[1, 2]] * 2


def test_messages_meet_in_the_order_of_the_calls_whatever_their_tags() -> None:
    def body() -> list[float]:
        rank = join()
        first, second = of(1 + 10 * rank), of(2 + 10 * rank)
        if rank == 0:
            dist.send(first, 1, tag=5)
            dist.send(second, 1, tag=6)
        else:
            dist.recv(first, 0, tag=6)
            dist.recv(second, 0, tag=5)
        return [first.item(), second.item()]

    assert results(body) == [[1, 2], [1, 2]]


def test_a_batch_of_messages_is_one_work() -> None:
    def body() -> tuple[int, float, int]:
        rank = join()
        ours, theirs = of(rank), of(-1)
        operations = [dist.P2POp(dist.isend, ours, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
        group: Any = dist.group.WORLD
        return len(works), theirs.item(), group._get_sequence_number_for_group()

    assert results(body) == [(1, 1, 0), (1, 0, 0)]


def test_a_message_to_oneself_goes_in_a_batch() -> None:
    def body() -> float:
        join()
        theirs = of(-1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, of(4), 0), dist.P2POp(dist.irecv, theirs, 0)]):
            work.wait()
        return theirs.item()

    assert results(body, 1) == [4]


def test_coalesced_calls_are_one() -> None:
    def body() -> list[Any]:
        rank = join()
        group: Any = dist.group.WORLD
        tensors = [of(rank + 1.0), of(rank, rank)]
        with _coalesced(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        number = group._get_sequence_number_for_group()
        with _coalesced(device=torch.device("cuda")):
            dist.broadcast(tensors[0], 1)
            dist.all_reduce(tensors[1])
        whole = torch.empty(2, device="cuda")
        with _coalesced():
            dist.all_gather_into_tensor(whole, of(rank))
        return [number, group._get_sequence_number_for_group(), len(manager.works), tensors[1].tolist(), whole.tolist()]

    assert results(body) == [[1, 3, 1, [2, 2], [0, 1]]] * 2


def test_what_has_no_elements_waits_for_nobody() -> None:
    def body() -> float:
        rank = join()
        dist.all_reduce(of(1))
        if rank == 0:
            dist.all_reduce(torch.empty(0, device="cuda"))
            torch.cuda.synchronize()
        return of(rank).item()

    assert results(body) == [0, 1]


def test_complex_numbers_go_as_their_parts_from_c_too() -> None:
    def body() -> Any:
        rank = join()
        group: Any = dist.group.WORLD
        summed, sent = (torch.tensor([complex(rank + 1, 2)], device="cuda") for _ in range(2))
        group.allreduce([summed]).wait()
        group.broadcast([sent], root=1).wait()
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        return summed.tolist(), sent.tolist(), said(lambda: group.allreduce([summed], options))

    refused = "RuntimeError: all_reduce does not support MAX on complex tensors"
    assert results(body) == [([3 + 4j], [2 + 2j], refused)] * 2


needs_gather_single = pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch has it since 2.14")


@needs_gather_single
def test_tensors_are_gathered_into_one_on_the_root() -> None:
    def body() -> tuple[Any, str]:
        rank = join()
        gather: Any = vars(dist)["gather_single"]
        made = torch.zeros(3, 2, device="cuda") if rank == 1 else None
        gather(torch.full((2,), rank + 1.0, device="cuda"), made, dst=1)
        if made is None:
            return None, ""
        return made.tolist(), said(lambda: gather(torch.zeros(2, device="cuda"), torch.zeros(5, device="cuda"), dst=1))

    text = "ValueError: output tensor size must be equal to world_size times input tensor size"
    assert results(body, 3) == [(None, ""), ([[1.0] * 2, [2.0] * 2, [3.0] * 2], text), (None, "")]


@needs_gather_single
def test_a_fault_strikes_a_gather_into_one() -> None:
    def body() -> None:
        rank = join()
        gather: Any = vars(dist)["gather_single"]
        gather(torch.ones(2, device="cuda"), torch.zeros(4, device="cuda") if rank == 0 else None)

    result = run(body, 2, faults=[simdist.faults.Crash(rank=1, op="gather_single")])

    assert result.ranks[1].status == "killed"
