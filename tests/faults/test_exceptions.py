from __future__ import annotations

import builtins
import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import FaultError
from simdist.faults import Crash, Hang, Raise, SlowRank
from simdist.faults.kinds.processes._raise import DEVICE_ERRORS, TORCH_ERRORS
from tests.faults.programs import COMPUTE_NS, MS, events_of, run, statuses

CLEAN = run()
STEP_ENDS: list[int] = CLEAN.values[0]


def caught_and_repeated(count: int = 3) -> dict[str, Any]:
    """All-reduce; a rank that gets an exception computes for a millisecond and tries again."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    errors, sums = [], []
    for index in range(count):
        try:
            simdist.step(index)
        except Exception as error:
            errors.append(f"step {index}: {error!r}")
        values = torch.ones(8)
        while True:
            try:
                dist.all_reduce(values)
                break
            except Exception as error:
                errors.append(repr(error))
                time.sleep(0.001)
        sums.append(values[0].item())
    return {"errors": errors, "sums": sums}


def test_an_operation_raises_in_place_of_being_issued() -> None:
    result = run(Raise(rank=1, op="all_reduce", nth=2, error="ValueError", message="not today"))

    assert statuses(result) == ["raised", "raised", "raised"]
    assert repr(result.ranks[1].exception) == "ValueError('not today')"
    assert result.ranks[1].ended_ns == STEP_ENDS[0] + COMPUTE_NS
    assert all("Connection closed by peer" in str(result.ranks[rank].exception) for rank in (0, 2))
    assert len(events_of(result, "issue", ranks=[1])) == 1
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (STEP_ENDS[0] + COMPUTE_NS, 1)
    assert event.data == {"fault": "raise", "text": "rank 1 raises ValueError: not today", "life": 0}


def test_a_step_raises_where_the_program_names_it() -> None:
    result = run(Raise(rank=2, at_step=1, error="KeyError", message="shard"))

    assert repr(result.ranks[2].exception) == "KeyError('shard')"
    assert result.ranks[2].ended_ns == STEP_ENDS[0]


def test_without_a_name_it_is_a_runtime_error() -> None:
    result = run(Raise(rank=0, nth=1))

    assert repr(result.ranks[0].exception) == "RuntimeError('injected by a fault')"


@pytest.mark.parametrize("name", TORCH_ERRORS)
def test_the_exceptions_of_torch_are_torchs_own(name: str) -> None:
    result = run(Raise(rank=0, nth=1, error=name, message="x"))

    assert type(result.ranks[0].exception) is getattr(dist, name)


@pytest.mark.parametrize("name", DEVICE_ERRORS)
def test_what_devices_raise_is_torchs_own_with_the_text_as_given(name: str) -> None:
    result = run(Raise(rank=0, nth=1, error=name, message="CUDA out of memory."))

    assert type(result.ranks[0].exception) is getattr(torch, name)
    assert str(result.ranks[0].exception) == "CUDA out of memory."


def test_no_other_name_of_torch_can_be_raised() -> None:
    with pytest.raises(FaultError, match=r"or one of torch: AcceleratorError, OutOfMemoryError"):
        run(Raise(rank=0, nth=1, error="Tensor"))


def test_every_exception_that_torch_exports_is_known() -> None:
    exported = {
        name
        for name, kind in vars(dist).items()
        if issubclass(type(kind), type) and issubclass(kind, Exception) and not hasattr(builtins, name)
    }

    assert exported == set(TORCH_ERRORS)


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_who_catches_it_may_call_again_and_all_is_well(backend: str) -> None:
    faults = [Raise(rank=1, op="all_reduce", nth=2, message="flaky"), Raise(rank=0, at_step=2, message="late")]
    result = simdist.run(caught_and_repeated, world_size=3, faults=faults, backend=backend)

    assert [value["errors"] for value in result.values] == [
        ["step 2: RuntimeError('late')"],
        ["RuntimeError('flaky')"],
        [],
    ]
    assert [value["sums"] for value in result.values] == [[3.0, 3.0, 3.0]] * 3


def test_messages_and_monitored_barriers_raise_too_and_keep_their_numbers() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        rank, seen = dist.get_rank(), []
        tensor = torch.full((2,), float(rank))
        calls: list[Any] = [
            lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0),
            lambda: dist.monitored_barrier(timeout=timedelta(seconds=5)),
        ]
        for call in calls:
            for _ in range(2):
                try:
                    call()
                    break
                except ValueError as error:
                    seen.append(str(error))
        return [*seen, str(tensor[0].item())]

    faults = [
        Raise(rank=1, op="recv", error="ValueError", message="a"),
        Raise(rank=0, op="monitored_barrier", error="ValueError", message="b"),
    ]
    result = simdist.run(body, world_size=2, faults=faults)

    assert result.values == [["b", "0.0"], ["a", "0.0"]]
    numbers = [event.data["seq"] for event in events_of(result, "issue")]
    assert numbers == [0, 0, 0, 0]


def test_a_slow_rank_is_late_and_a_hang_over_before_the_exception() -> None:
    result = run(SlowRank(rank=1, delay_ns=3 * MS), Hang(rank=1, nth=1, duration_ns=2 * MS), Raise(rank=1, nth=1))

    first_call_ns = STEP_ENDS[0] - (STEP_ENDS[1] - STEP_ENDS[0] - COMPUTE_NS)
    assert result.ranks[1].ended_ns == first_call_ns + 5 * MS
    assert [event.data["fault"] for event in events_of(result, "fault")] == ["slow_rank", "hang", "raise"]


def test_who_dies_at_the_same_operation_raises_nothing() -> None:
    result = run(Crash(rank=1, nth=1), Raise(rank=1, nth=1))

    assert result.ranks[1].status == "killed"
    assert [event.data["fault"] for event in events_of(result, "fault")] == ["crash"]


def test_it_belongs_to_one_life() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        dist.barrier()
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    result = simdist.run(body, world_size=2, faults=[Raise(rank=1, op="barrier")], max_restarts=2)

    assert result.values == ["1", "1"]
    assert result.restarts == 1
