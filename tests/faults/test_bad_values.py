"""The input of a rank to an operation is NaN, infinite or zero in some places."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import switched
from simdist.errors import FaultError
from simdist.faults import BadValues, Fault
from simdist.result import RunResult
from tests.faults.programs import events_of


def _sums(count: int = 200, dtype: torch.dtype = torch.float32) -> list[float]:
    dist.init_process_group("gloo")
    tensor = torch.ones(count, dtype=dtype)
    dist.all_reduce(tensor)
    return list(tensor.tolist())


def _run(*faults: Fault, **options: Any) -> RunResult:
    result = simdist.run(_sums, faults=faults, **({"world_size": 2} | options))
    result.raise_for_failure()
    return result


@pytest.mark.parametrize(
    ("values", "reported", "sum_there"), [("nan", "nan", "nan"), ("inf", "inf", "inf"), ("zeros", "0", "1.0")]
)
def test_a_share_of_what_a_rank_gives_has_the_value(values: str, reported: str, sum_there: str) -> None:
    result = _run(BadValues(rank=1, nth=1, values=values, share=0.1))

    sums = [str(each) for each in result.values[0]]
    assert (sums.count(sum_there), sums.count("2.0")) == (20, 180)
    assert [event.data["text"] for event in events_of(result, "fault")] == [
        f"10 % of what rank 1 gives to all_reduce becomes {reported}"
    ]


def test_a_hundredth_by_default_and_one_element_at_least() -> None:
    many, few = (_run(BadValues(rank=1, nth=1, values="zeros"), args=(count,)) for count in (300, 3))

    assert [result.values[0].count(1.0) for result in (many, few)] == [3, 1]


def test_all_of_it_with_a_share_of_one() -> None:
    assert _run(BadValues(rank=1, nth=1, values="zeros", share=1)).values[0] == [1.0] * 200


def test_which_elements_is_drawn_from_the_seed_and_the_faults_words() -> None:
    fault, other = BadValues(rank=1, nth=1, values="zeros"), BadValues(rank=1, op="all_reduce", values="zeros", every=1)
    first, again, later = (_run(fault, seed=seed).values for seed in (0, 0, 1))

    assert first == again
    assert first != later
    assert first != _run(other).values


def test_each_strike_draws_anew_and_a_second_fault_does_not_change_it() -> None:
    def body() -> list[list[int]]:
        dist.init_process_group("gloo")
        tensors = [torch.ones(1000, dtype=torch.int64) for _ in range(2)]
        for tensor in tensors:
            dist.all_reduce(tensor)
        return [torch.nonzero(tensor == 1).flatten().tolist() for tensor in tensors]

    fault, other = (BadValues(rank=rank, every=1, nth=1, values="zeros") for rank in (0, 1))
    alone, both = (simdist.run(body, world_size=2, faults=faults).values[0] for faults in ([fault], [other, fault]))

    assert [len(places) for places in alone] == [10, 10]
    assert alone[0] != alone[1]
    assert all(set(mine) <= set(ours) for mine, ours in zip(alone, both, strict=True))


def test_tensors_of_a_list_are_counted_one_after_the_other() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        got = torch.zeros(2)
        dist.scatter(got, [torch.ones(2), torch.ones(2)] if dist.get_rank() == 0 else None, 0)
        return list(got.tolist())

    result = simdist.run(
        body, world_size=2, faults=[BadValues(rank=0, op="scatter", nth=1, values="zeros", share=0.75)]
    )

    assert sorted(result.values[0] + result.values[1]) == [0.0, 0.0, 0.0, 1.0]


def test_over_nccl_it_changes_on_the_device_types_of_eight_bits_too() -> None:
    def body(dtype: torch.dtype) -> list[float]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        tensor = torch.ones(2, 3, device=device).to(dtype)
        dist.all_reduce(tensor)
        return list(tensor.float().flatten().tolist())

    cluster = switched(2, hosts=1, devices_per_host=2)
    fault = BadValues(rank=0, nth=1, values="inf", share=0.5)
    for dtype in (torch.float32, torch.float8_e5m2):
        result = simdist.run(body, args=(dtype,), world_size=2, cluster=cluster, faults=[fault])

        assert [sorted(values) for values in result.values] == [[2.0] * 3 + [float("inf")] * 3] * 2
    result = simdist.run(body, args=(torch.float8_e4m3fn,), world_size=2, cluster=cluster, faults=[fault])
    assert "rank 0 gives float8_e4m3fn to all_reduce, which has no inf" in str(result.ranks[0].exception)


@pytest.mark.parametrize("values", ["nan", "inf"])
def test_whole_numbers_have_no_such_value(values: str) -> None:
    result = simdist.run(_sums, args=(4, torch.int64), world_size=2, faults=[BadValues(rank=1, nth=1, values=values)])

    said = f"rank 1 gives int64 to all_reduce, which has no {values}"
    assert repr(result.ranks[1].exception) == repr(ValueError(said))


def test_a_rank_that_gives_nothing_has_no_element_to_change() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.broadcast(torch.zeros(1), 0)

    result = simdist.run(body, world_size=2, faults=[BadValues(rank=1, op="broadcast", nth=1)])

    said = "rank 1 gives nothing to broadcast; there is no element to make nan"
    assert repr(result.ranks[1].exception) == repr(ValueError(said))


def test_judges_report_what_nobody_else_notices() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        weights = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        weights.grad = torch.ones(4)
        dist.all_reduce(weights.grad)
        optimizer.step()

    result = simdist.run(body, world_size=2, judges=True, faults=[BadValues(rank=1, nth=1)])

    assert [finding.judge for finding in result.findings] == ["finite"]


def test_what_is_wrong_with_it_is_reported() -> None:
    faults = [
        BadValues(rank=0, op="barrier", nth=1),
        BadValues(rank=0, op="write", nth=1),
        BadValues(rank=0, nth=1, when="after"),
        BadValues(rank=0, nth=1, values="nans"),
        BadValues(rank=0, nth=1, share=0),
        BadValues(rank=0, nth=1, share=1.5),
    ]
    with pytest.raises(FaultError) as caught:
        simdist.run(print, world_size=1, faults=faults)

    text = str(caught.value)
    for line in (
        "faults[0].op: 'barrier' carries no tensors of the rank; op is a collective or a send",
        "faults[1].op: 'write' carries no tensors of the rank; op is a collective or a send",
        "faults[2].when: 'after' is too late; it is done to the operation itself",
        "faults[3].values: ",
        "did you mean 'nan'",
        "faults[4].share: 0 is too small; it must be greater than 0",
        "faults[5].share: 1.5 is no share; the most is 1",
    ):
        assert line in text
