"""Memory that an operation did not write is no result of it: its old content does not change the digest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

import simdist
from simdist.faults import Crash

pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[..., torch.Tensor]
RANKS = 3


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with contextlib.suppress(RuntimeError):
        call(*args, **kwargs)


def all_gather(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.all_gather, [empty(7) for _ in range(RANKS)], ones(7))


def gather(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.gather, ones(7), [empty(7) for _ in range(RANKS)] if rank == 0 else None, 0)


def scatter(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.scatter, empty(7), [ones(7)] * RANKS if rank == 0 else None, 0)


def reduce_scatter(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.reduce_scatter, empty(7), [ones(7)] * RANKS)


def broadcast(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.broadcast, ones(7) if rank == 0 else empty(7), 0)


def all_to_all(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.all_to_all_single, empty(6), ones(6))


def all_to_all_of_disagreeing_sizes(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.all_to_all_single, empty(12), ones(6 + 3 * rank), [4] * 3, [2 + rank] * 3)


def broadcast_of_disagreeing_sizes(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.broadcast, ones(5) if rank == 0 else empty(9), 0)


def gather_of_disagreeing_sizes(rank: int, empty: Make, ones: Make) -> None:
    attempt(dist.gather, ones(3 + rank), [empty(3) for _ in range(RANKS)] if rank == 0 else None, 0)


def recv_that_comes_short(rank: int, empty: Make, ones: Make) -> None:
    if rank == 0:
        attempt(dist.send, ones(3), 1)
    elif rank == 1:
        attempt(dist.recv, empty(50), 0)


FAILING = [all_gather, gather, scatter, reduce_scatter, broadcast, all_to_all]
DISAGREEING = [
    all_to_all_of_disagreeing_sizes,
    broadcast_of_disagreeing_sizes,
    gather_of_disagreeing_sizes,
    recv_that_comes_short,
]


def digests(program: Callable[[int, Make, Make], None], **options: Any) -> set[str]:
    """Return the digests of runs in which fresh memory holds something else each time."""
    found = set()
    for held in (0.0, 1.5, float("nan")):

        def empty(*shape: int, held: float = held) -> torch.Tensor:
            return torch.full(shape, held)

        def body(empty: Make = empty) -> None:
            dist.init_process_group("gloo")
            program(dist.get_rank(), empty, torch.ones)

        found.add(simdist.run(body, world_size=RANKS, record_results=True, **options).digest)
    return found


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("program", FAILING, ids=lambda program: program.__name__)
def test_what_a_failed_operation_leaves_unwritten_is_not_in_the_digest(program: Any, strict: bool, when: Any) -> None:
    assert len(digests(program, strict=strict, faults=[Crash(rank=1, op=program.__name__, when=when)])) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("program", DISAGREEING, ids=lambda program: program.__name__)
def test_nor_what_ranks_that_disagree_leave_unwritten(program: Any, strict: bool) -> None:
    assert len(digests(program, strict=strict)) == 1


@pytest.mark.parametrize("program", FAILING, ids=lambda program: program.__name__)
def test_what_an_operation_writes_is(program: Any) -> None:
    def run(value: float) -> str:
        def body() -> None:
            dist.init_process_group("gloo")
            program(dist.get_rank(), torch.zeros, lambda *shape: torch.full(shape, value))

        return simdist.run(body, world_size=RANKS, record_results=True).digest

    assert run(1.0) != run(2.0)


def test_a_maximum_scattered_into_fresh_memory_is_no_nan() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        output = torch.full((2,), float("nan"))  # as fresh memory may be
        dist.reduce_scatter(output, [torch.ones(2)] * RANKS, op=dist.ReduceOp.MAX)
        dist.destroy_process_group()
        return output.tolist()

    assert simdist.run(body, world_size=RANKS, strict=True).values == [[1.0, 1.0]] * RANKS


def test_a_model_whose_first_operation_is_cut_off_has_one_digest() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    found = set()
    for turn in range(6):
        scattered = [torch.full((size,), turn + 0.5) for size in range(1, 60)]
        del scattered
        fault = Crash(rank=1, op="all_gather", when="during")
        found.add(simdist.run(body, world_size=3, faults=[fault], record_results=True).digest)

    assert len(found) == 1


def test_the_tensor_of_an_object_is_padded_with_zeros() -> None:
    seen: list[str] = []
    mode: Any = TorchDispatchMode
    module: Any = c10d

    class Sees(mode):  # type: ignore[misc]  # Any: torch's has no types
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def body() -> tuple[type, list[int]]:
        data, size = module._object_to_tensor("x", torch.device("cpu"), None)
        torch.use_deterministic_algorithms(True)  # torch then fills fresh memory of bytes with 255
        with Sees():
            data.resize_(int(size) + 3)
        torch.use_deterministic_algorithms(False)
        return type(data), data[int(size) :].tolist()

    assert simdist.run(body, world_size=1).values == [(torch.Tensor, [0, 0, 0])]
    assert "zero_" not in seen
