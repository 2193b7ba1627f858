"""One rank gets another result of a collective than the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import FaultError
from simdist.faults import Crash, Fault, RankFault, WrongResult
from simdist.result import RunResult
from tests.faults.programs import events_of


def _negative(rank: int, op: str = "all_reduce", byte: int = 3, **more: Any) -> WrongResult:
    """Return a fault that flips the sign of the first float32 in the rank's result."""
    return WrongResult(rank=rank, op=op, byte=byte, bit=7, **({"nth": 1} | more))


def _run(body: Callable[..., Any], *faults: Fault, **options: Any) -> RunResult:
    result = simdist.run(body, faults=faults, **({"world_size": 2} | options))
    result.raise_for_failure()
    return result


def _device(backend: str) -> torch.device:
    if backend != "nccl":
        dist.init_process_group(backend)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def _gotten(operation: str, backend: str = "gloo") -> Any:
    """Return the result on this rank, if rank 0's input is ones and rank 1's twos."""
    device = _device(backend)
    mine = torch.full((2,), dist.get_rank() + 1.0, device=device)
    got = torch.zeros(4, device=device)
    parts = [torch.zeros(2, device=device) for _ in range(2)]
    if operation == "all_reduce":
        dist.all_reduce(mine)
        return mine.tolist()
    if operation == "broadcast":
        dist.broadcast(mine, 0)
        return mine.tolist()
    if operation == "reduce":
        dist.reduce(mine, 0)
        return mine.tolist() if dist.get_rank() == 0 else None
    if operation == "all_gather_into_tensor":
        dist.all_gather_into_tensor(got, mine)
        return got.tolist()
    if operation == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(got[:1], mine)
        return got[:1].tolist()
    if operation == "reduce_scatter":
        dist.reduce_scatter(got[:1], list(mine.chunk(2)))
        return got[:1].tolist()
    if operation == "all_to_all":
        dist.all_to_all(parts, [mine, mine.clone()])
    if operation == "gather":
        dist.gather(mine, parts if dist.get_rank() == 0 else None, 0)
    if operation == "scatter":
        dist.scatter(parts[0], [mine, mine.clone()] if dist.get_rank() == 1 else None, 1)
    if operation == "all_gather":
        dist.all_gather(parts, mine)
    return [part.tolist() for part in parts]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # torch 2.13 warns
@pytest.mark.parametrize("backend", ["gloo", "nccl", "sim"])
@pytest.mark.parametrize(
    ("operation", "rank", "values"),
    [
        ("all_reduce", 1, [[3, 3], [-3, 3]]),
        ("broadcast", 1, [[1, 1], [-1, 1]]),
        ("reduce", 0, [[-3, 3], None]),
        ("all_gather_into_tensor", 1, [[1, 1, 2, 2], [-1, 1, 2, 2]]),
        ("reduce_scatter_tensor", 1, [[3], [-3]]),
        ("reduce_scatter", 0, [[-3], [3]]),
        ("all_gather", 0, [[[-1, 1], [2, 2]], [[1, 1], [2, 2]]]),
        ("all_to_all", 1, [[[1, 1], [2, 2]], [[-1, 1], [2, 2]]]),
        ("gather", 0, [[[-1, 1], [2, 2]], [[0, 0], [0, 0]]]),
        ("scatter", 0, [[[-2, 2], [0, 0]], [[2, 2], [0, 0]]]),
    ],
)
def test_one_rank_gets_a_wrong_result_and_the_others_the_right_one(
    backend: str, operation: str, rank: int, values: list[Any]
) -> None:
    fault = _negative(rank, operation)
    result = _run(_gotten, fault, args=(operation, backend), backend=backend, strict=False)

    assert result.values == values
    assert [event.data["text"] for event in events_of(result, "fault")] == [
        f"bit 7 of byte 3 of what rank {rank} gets out of {operation} is wrong"
    ]


def test_bytes_count_through_all_tensors_and_the_middle_is_the_default() -> None:
    second = _run(_gotten, _negative(1, "all_gather", byte=15), args=("all_gather",))
    middle = _run(_gotten, WrongResult(rank=1, op="all_gather", nth=1, bit=7), args=("all_gather",))

    assert second.values[1] == [[1, 1], [2, -2]]
    assert middle.values[1][1] == pytest.approx([2, 2], rel=1e-4)
    assert middle.values[1][1] != [2, 2]


def test_it_is_reported_when_the_operation_is_over_and_takes_no_time() -> None:
    plain, result = (_run(_gotten, *faults, args=("all_reduce",)) for faults in ((), (_negative(1),)))

    (done,) = events_of(plain, "complete")
    assert [event.time_ns for event in events_of(result, "fault")] == [done.time_ns]
    assert result.virtual_time_ns == plain.virtual_time_ns


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_an_operation_without_a_wait_is_changed_when_its_result_is_there(backend: str) -> None:
    def body() -> list[list[float]]:
        device = _device(backend)
        tensor = torch.full((2,), dist.get_rank() + 1.0, device=device)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        before = tensor.tolist() if backend == "gloo" else []
        work.wait()
        return [before, tensor.tolist()]

    result = _run(body, _negative(1), backend=backend)

    before = [[], []] if backend == "nccl" else [[1, 1], [2, 2]]
    assert result.values == [[before[0], [3, 3]], [before[1], [-3, 3]]]


def test_a_tensor_that_is_not_contiguous_gets_the_wrong_result_too() -> None:
    def body() -> list[list[float]]:
        dist.init_process_group("gloo")
        mine, got = torch.full((2,), dist.get_rank() + 1.0), [torch.zeros(4)[::2] for _ in range(2)]
        dist.all_gather(got, mine)
        return [part.tolist() for part in got]

    assert _run(body, _negative(0, "all_gather")).values == [[[-1, 1], [2, 2]], [[1, 1], [2, 2]]]


def test_faults_of_one_operation_add_up_and_every_strikes_again() -> None:
    def body() -> list[list[float]]:
        dist.init_process_group("gloo")
        found = []
        for _ in range(3):
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            found.append(tensor.tolist())
        return found

    result = _run(body, _negative(0, every=2), _negative(0, byte=7))

    assert result.values == [[[-2, -2], [2, 2], [-2, 2]], [[2, 2]] * 3]
    assert [len(fault.struck_ns) for fault in result.faults] == [2, 1]


def test_a_message_by_message_collective_is_changed_too() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        tensor = torch.full((2,), dist.get_rank() + 1.0)
        try:
            dist.all_reduce(tensor)
            dist.all_reduce(torch.ones(2))
        except RuntimeError:
            pass
        return tensor.tolist()

    faults = [_negative(1), Crash(rank=2, op="all_reduce", nth=1, when="after")]
    result = simdist.run(body, world_size=3, faults=faults)

    assert [rank.value for rank in result.ranks] == [[6, 6], [-6, 6], None]


def test_an_operation_that_fails_leaves_nothing_to_change() -> None:
    faults = [_negative(1), Crash(rank=0, op="all_reduce", nth=1, when="before")]
    result = simdist.run(_gotten, args=("all_reduce",), world_size=2, faults=faults)

    assert result.faults[0].struck_ns == ()
    assert not result.faults[0].struck


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_rank_that_gets_nothing_has_no_bit_to_flip(backend: str) -> None:
    result = simdist.run(
        _gotten,
        args=("broadcast", backend),
        world_size=2,
        backend=backend,
        faults=[_negative(0, "broadcast")],
    )

    said = "rank 0 gets 0 bytes out of broadcast; there is no byte 3"
    assert repr(result.ranks[0].exception) == repr(ValueError(said))
    assert result.ranks[1].ok


def test_the_judge_of_replicas_names_the_rank_that_differs() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    result = simdist.run(body, world_size=3, judges=True, faults=[WrongResult(rank=1, nth=1, byte=3, bit=5)])

    assert [finding.judge for finding in result.findings] == ["replicas"]


class Zeroed(RankFault):
    """The rank's result becomes zero."""

    op: str | None = "all_reduce"
    when: Any = "after"

    def change_result(self, results: Any, draw: Callable[[], float]) -> Any:
        return [torch.zeros_like(each) for each in results]


class Doubled(Zeroed):
    """The rank's result becomes twice as long, which is not allowed."""

    def change_result(self, results: Any, draw: Callable[[], float]) -> Any:
        return [torch.cat([each, each]) for each in results]


def test_a_users_own_fault_changes_what_comes_out() -> None:
    assert _run(_gotten, Zeroed(rank=0, nth=1), args=("all_reduce",)).values == [[0, 0], [3, 3]]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Doubled(rank=0, nth=1), "a judge makes other shapes of the results of all_reduce; they must stay as they are"),
        (Zeroed(rank=0, op="barrier", nth=1), "barrier can't be done with another result, as a judge wants it"),
        (Zeroed(rank=0, op="send", nth=1), "send can't be done with another result, as a judge wants it"),
    ],
)
def test_what_cannot_be_changed_says_so(fault: Fault, said: str) -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        tensor = torch.ones(1)
        dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
        dist.all_reduce(tensor)

    result = simdist.run(body, world_size=2, faults=[fault])

    assert said in str(result.ranks[0].exception)


def test_what_is_wrong_with_it_is_reported() -> None:
    faults = [
        WrongResult(rank=0, op="barrier", nth=1),
        WrongResult(rank=0, op="send", nth=1),
        WrongResult(rank=0, nth=1, when="before"),
        WrongResult(rank=0, nth=1, bit=8),
    ]
    with pytest.raises(FaultError) as caught:
        simdist.run(print, world_size=1, faults=faults)

    text = str(caught.value)
    for line in (
        "faults[0].op: 'barrier' fills no tensors; op is a collective that does",
        "faults[1].op: 'send' fills no tensors; op is a collective that does",
        "faults[2].when: 'before' is too early; the result is there after the operation",
        "faults[3].bit: ",
    ):
        assert line in text
    with pytest.raises(FaultError, match='wrong_result changes what an operation carries, and values="shapes"'):
        simdist.run(print, world_size=1, values="shapes", faults=[WrongResult(rank=0, nth=1)])
