"""With `values="shapes"` large floating-point payloads are not moved; all else is the same as with values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist import RunResult
from simdist.faults import Crash, SlowRank
from simdist.result import Event

pytestmark = pytest.mark.filterwarnings("ignore:.*(is deprecated|will be deprecated|under current context)")

LARGE, SMALL = 2000, 1000  # elements of four bytes: more, and less, than the limit for moving
SIZE = 2
Made = Callable[[float], torch.Tensor]


def start(backend: str) -> str:
    dist.init_process_group(backend)
    if backend == "gloo":
        return "cpu"
    torch.cuda.set_device(dist.get_rank())
    return f"cuda:{dist.get_rank()}"


def every_collective(backend: str, dtype: torch.dtype, count: int) -> dict[str, Any]:
    """Return the rank's outputs after each collective; they hold -1 before, and each rank sends its number."""
    device = start(backend)

    def made(value: float) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=device)

    rank = dist.get_rank()
    return {name: call(made, rank) for name, call in _CALLS.items()}


def _first(*tensors: torch.Tensor) -> list[int]:
    return [int(tensor.reshape(-1)[0].real) for tensor in tensors]


def _in_place(call: Callable[[torch.Tensor], Any]) -> Callable[[Made, int], list[int]]:
    def do(made: Made, rank: int) -> list[int]:
        tensor = made(rank)
        call(tensor)
        return _first(tensor)

    return do


def _gathered(made: Made, rank: int) -> list[int]:
    outputs = [made(-1) for _ in range(SIZE)]
    dist.all_gather(outputs, made(rank))
    return _first(*outputs)


def _gathered_singly(made: Made, rank: int) -> list[int]:
    output = torch.cat([made(-1)] * SIZE)
    dist.all_gather_into_tensor(output, made(rank))
    return _first(*output.chunk(SIZE))


def _scattered_sum(made: Made, rank: int) -> list[int]:
    output = made(-1)
    dist.reduce_scatter_tensor(output, torch.cat([made(rank)] * SIZE))
    return _first(output)


def _gathered_at_root(made: Made, rank: int) -> list[int]:
    outputs = [made(-1) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(made(rank), outputs, 0)
    return _first(*outputs or [])


def _scattered(made: Made, rank: int) -> list[int]:
    output = made(-1)
    dist.scatter(output, [made(10 + other) for other in range(SIZE)] if rank == 0 else None, 0)
    return _first(output)


def _exchanged(made: Made, rank: int) -> list[int]:
    outputs = [made(-1) for _ in range(SIZE)]
    dist.all_to_all(outputs, [made(rank) for _ in range(SIZE)])
    return _first(*outputs)


def _message(made: Made, rank: int) -> list[int]:
    tensor = made(-1) if rank else made(7)
    (dist.recv if rank else dist.send)(tensor, 1 - rank)
    return _first(tensor)


_CALLS: dict[str, Callable[[Made, int], list[int]]] = {
    "all_reduce": _in_place(dist.all_reduce),
    "broadcast": _in_place(lambda tensor: dist.broadcast(tensor, 0)),
    "reduce": _in_place(lambda tensor: dist.reduce(tensor, 0)),
    "all_gather": _gathered,
    "all_gather_into_tensor": _gathered_singly,
    "reduce_scatter_tensor": _scattered_sum,
    "gather": _gathered_at_root,
    "scatter": _scattered,
    "all_to_all": _exchanged,
    "message": _message,
}
MOVED = (
    {
        "all_reduce": [1],
        "broadcast": [0],
        "reduce": [1],
        "all_gather": [0, 1],
        "all_gather_into_tensor": [0, 1],
        "reduce_scatter_tensor": [1],
        "gather": [0, 1],
        "scatter": [10],
        "all_to_all": [0, 1],
        "message": [7],
    },
    {
        "all_reduce": [1],
        "broadcast": [0],
        "reduce": [1],
        "all_gather": [0, 1],
        "all_gather_into_tensor": [0, 1],
        "reduce_scatter_tensor": [1],
        "gather": [],
        "scatter": [11],
        "all_to_all": [0, 1],
        "message": [7],
    },
)
HELD = (
    {
        "all_reduce": [0],
        "broadcast": [0],
        "reduce": [0],
        "all_gather": [-1, -1],
        "all_gather_into_tensor": [-1, -1],
        "reduce_scatter_tensor": [-1],
        "gather": [-1, -1],
        "scatter": [-1],
        "all_to_all": [-1, -1],
        "message": [7],
    },
    {
        "all_reduce": [1],
        "broadcast": [1],
        "reduce": [1],
        "all_gather": [-1, -1],
        "all_gather_into_tensor": [-1, -1],
        "reduce_scatter_tensor": [-1],
        "gather": [],
        "scatter": [-1],
        "all_to_all": [-1, -1],
        "message": [-1],
    },
)


def course_of(result: RunResult) -> list[Event]:
    """Return the events of a run without checksums."""
    return [Event(e.time_ns, e.kind, e.rank, {**e.data, "crc": 0}) for e in result.events]


def both(fn: Callable[..., Any], **settings: Any) -> tuple[RunResult, RunResult]:
    """Return the run with values and the run without; only the tensors' values may differ."""
    given = {"world_size": SIZE, **settings}
    with_values, without = (simdist.run(fn, values=values, **given) for values in ("all", "shapes"))
    assert course_of(without) == course_of(with_values)
    assert without.virtual_time_ns == with_values.virtual_time_ns
    return with_values, without


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_large_floating_point_payloads_stay_where_they_are(backend: str, dtype: torch.dtype) -> None:
    count = 2 * LARGE
    with_values, without = both(every_collective, backend=backend, args=(backend, dtype, count))

    assert tuple(with_values.values) == MOVED
    assert tuple(without.values) == HELD
    assert without.digest != with_values.digest


def sums_complex_numbers(backend: str) -> complex:
    device = start(backend)
    tensor = torch.full((LARGE,), 1j * (1 + dist.get_rank()), device=device)
    dist.all_reduce(tensor)
    return complex(tensor[0])


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_complex_numbers_are_floating_point_numbers(backend: str) -> None:
    with_values, without = both(sums_complex_numbers, backend=backend, args=(backend,))

    assert with_values.values == [3j, 3j]
    assert without.values == [1j, 2j]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_integers_and_bytes_are_moved(backend: str, dtype: torch.dtype) -> None:
    def made(value: int) -> int:
        return value % 256 if dtype is torch.uint8 else value

    _, without = both(every_collective, backend=backend, args=(backend, dtype, LARGE))

    assert [{name: list(map(made, held)) for name, held in MOVED[rank].items()} for rank in range(SIZE)] == (
        without.values
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_small_payloads_are_moved_but_those_of_an_all_to_all(backend: str) -> None:
    _, without = both(every_collective, backend=backend, args=(backend, torch.float32, SMALL // SIZE))

    assert without.values == [{**MOVED[rank], "all_to_all": [-1, -1]} for rank in range(SIZE)]


def gathers_several() -> list[int]:
    start("gloo")
    rank = dist.get_rank()
    tensors = [torch.full((LARGE,), float(rank)), torch.full((LARGE,), float(10 + rank))]
    outputs = [[torch.empty(LARGE) for _ in tensors] for _ in range(SIZE)]
    dist.all_gather_coalesced([list(each) for each in outputs], tensors)
    return _first(*itertools.chain(*outputs))


def test_several_tensors_that_are_gathered_at_once_are_moved() -> None:
    _, without = both(gathers_several)

    assert without.values == [[0, 10, 1, 11]] * SIZE


def objects_and_stores(backend: str) -> tuple[list[Any], Any, bytes]:
    start(backend)
    rank = dist.get_rank()
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": rank, "text": "x" * 10_000})
    sent = [torch.full((LARGE,), 3.5)] if rank == 0 else [None]
    dist.broadcast_object_list(sent, 0)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", "value")
    dist.barrier()
    return [each["rank"] for each in found], _first(*sent), bytes(store.get("key"))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_objects_stores_and_barriers_are_as_always(backend: str) -> None:
    _, without = both(objects_and_stores, backend=backend, args=(backend,))

    assert without.values == [([0, 1], [3], b"value")] * SIZE


def trains(backend: str, steps: int) -> list[float]:
    device = start(backend)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(device)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = wrapped(torch.ones(4, 64, device=device) * (1 + dist.get_rank())).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(float(mean))
    return losses


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_ddp_training_takes_its_course(backend: str) -> None:
    with_values, without = both(trains, backend=backend, args=(backend, 3), judges=True)

    assert without.values[0] == without.values[1]  # the loss is small
    assert without.values != with_values.values  # gradients are not
    assert set(with_values.judges) - set(without.judges) == {"replicas", "finite"}
    again = simdist.run(trains, world_size=SIZE, backend=backend, args=(backend, 3), values="shapes")
    assert again.digest == without.digest


def fails_in_the_middle(backend: str) -> None:
    device = start(backend)
    for _ in range(4):
        dist.all_reduce(torch.ones(1 << 20, device=device))
        dist.broadcast(torch.ones(LARGE, device=device), 0)
    if backend == "gloo":
        dist.all_to_all_single(torch.empty(SIZE * LARGE), torch.ones(SIZE * LARGE))


@pytest.mark.parametrize(
    "fault",
    [
        Crash(rank=1, op="all_reduce", nth=2),
        Crash(rank=1, op="all_reduce", nth=2, when="during"),
        Crash(rank=0, op="broadcast", nth=1),
        SlowRank(rank=1, delay_ns=5_000_000, start_ns=0),
    ],
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_faults_do_is_the_same(backend: str, fault: Any) -> None:
    both(fails_in_the_middle, backend=backend, args=(backend,), faults=[fault])


def disagrees() -> torch.Tensor:
    start("gloo")
    tensor = torch.full((LARGE + 100 * dist.get_rank(),), float(dist.get_rank()))
    dist.all_reduce(tensor)
    return tensor


@pytest.mark.parametrize("strict", [False, True])
def test_what_does_not_fit_ends_as_it_does_with_values(strict: bool) -> None:
    def caught() -> str:
        try:
            disagrees()
        except RuntimeError as error:
            return str(error)
        return "no error"

    with_values, without = both(caught, strict=strict, isolate=False)

    assert without.values == with_values.values


def sends_to_itself_in_the_middle() -> list[int]:
    start("gloo")
    rank = dist.get_rank()
    if rank == 0:
        work = dist.isend(torch.full((LARGE,), 5.0), 1)
        flags = dist.isend(torch.full((3,), 4.0), 1)
        assert work is not None
        assert flags is not None
        work.wait()
        flags.wait()
        return []
    large, small = torch.full((LARGE,), -1.0), torch.full((3,), -1.0)
    dist.recv(large)
    dist.recv(small)
    return _first(large, small)


def test_messages_to_any_receiver_arrive_in_their_order() -> None:
    _, without = both(sends_to_itself_in_the_middle)

    assert without.values[1] == [-1, 4]
