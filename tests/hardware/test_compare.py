"""Which differences between two runs are found, and how they are reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash, Fault
from simdist.hardware.compare._account import Account, account_of
from simdist.hardware.compare._compare import Point, compare
from simdist.hardware.compare._parity import ParityReport, Timing, exit_code
from simdist.scenario import Plan, load


def program(steps: int = 3, elements: int = 8, value: float = 0.1) -> float:
    dist.init_process_group("gloo")
    values = torch.full((elements,), value) * (dist.get_rank() + 1)
    for step in range(steps):
        simdist.step(step)
        dist.all_reduce(values)
    return values.sum().item()


def account(*faults: Fault, state: dict[str, str] | None = None, **kwargs: Any) -> Account:
    arguments = {"world_size": 3, "max_restarts": kwargs.pop("max_restarts", 0)}
    result = simdist.run(program, kwargs=kwargs, faults=faults, record_results=True, **arguments)
    return account_of(result, state or {})


def wrong(points: tuple[Point, ...]) -> set[str]:
    return {point.name for point in points if not point.ok}


def test_a_run_agrees_with_itself_in_every_point() -> None:
    crash = Crash(rank=1, op="all_reduce", nth=2)

    points = compare(account(crash), account(crash))

    assert wrong(points) == set()
    assert {"outcome", "exception", "operations", "results", "errors", "steps", "faults", "restarts"} <= {
        point.name for point in points
    }


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"steps": 2}, {"operations", "results", "steps", "value"}),
        ({"elements": 9}, {"operations", "results", "value"}),
        ({"value": 0.2}, {"results", "value"}),
        ({"state": {"{tmp}/a.pt": "1234"}}, set()),
    ],
)
def test_each_kind_of_difference_is_found(other: dict[str, Any], expected: set[str]) -> None:
    assert wrong(compare(account(), account(**other))) == expected


def test_another_state_on_disk_is_a_difference() -> None:
    here, there = account(state={"{tmp}/a.pt": "1234"}), account(state={"{tmp}/a.pt": "5678"})

    assert wrong(compare(here, there)) == {"state of {tmp}/a.pt"}


def test_a_rank_that_dies_elsewhere_is_a_difference_in_all_that_it_touches() -> None:
    here, there = account(Crash(rank=1, op="all_reduce", nth=2)), account(Crash(rank=1, op="all_reduce", nth=3))

    assert wrong(compare(here, there)) >= {"operations", "errors"}


def test_how_far_a_life_came_that_the_launcher_ended_is_not_judged() -> None:
    crash = Crash(rank=1, op="all_reduce", nth=2)
    here = account(crash, max_restarts=1)
    shorter = {key: list(value)[:1] if key == (0, 0) else value for key, value in here.operations.items()}
    there = dataclasses.replace(here, operations=shorter, errors={**here.errors, (0, 0): {}})

    assert wrong(compare(here, there)) == set()


def test_a_torn_operation_is_not_judged_but_what_a_timeout_left_is() -> None:
    here = account(Crash(rank=1, op="all_reduce", nth=2))
    key: tuple[object, ...] = ("all_reduce", "0", 1)
    there = dataclasses.replace(here, results={**here.results, (0, 0): {**here.results[0, 0], key: 1}})
    timed_out = {(rank, 0): {key: "RuntimeError: Timed out waiting 5ms for recv"} for rank in range(3)}

    assert wrong(compare(here, there)) == set()
    assert wrong(
        compare(dataclasses.replace(here, errors=timed_out), dataclasses.replace(there, errors=timed_out))
    ) == {"results"}


# -- reports -----------------------------------------------------------------------------------------------------------

PLAN: Plan = load("scenarios/straggler.toml")
GOOD, BAD = Point("outcome", 0, True, "returned", "returned"), Point("outcome", 1, False, "returned", "raised")


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ([ParityReport(PLAN, "gloo", (GOOD,))], 0),
        ([ParityReport(PLAN, "gloo", (GOOD,)), ParityReport(PLAN, "gloo", (GOOD, BAD))], 1),
        ([ParityReport(PLAN, "gloo", (GOOD,)), ParityReport(PLAN, "gloo", reason="no backend")], 0),
        ([ParityReport(PLAN, "gloo", reason="no backend")], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_3_if_nothing_was_comparable(reports: list[ParityReport], code: int) -> None:
    assert exit_code(reports) == code


def test_timings_are_judged_only_where_asked() -> None:
    late = Timing(0, 1.0, (2.0, 3.0))

    assert ParityReport(PLAN, "gloo", (GOOD,), timings=(late,)).status == "parity"
    assert ParityReport(PLAN, "gloo", (GOOD,), timings=(late,), timing_tolerance=0.1).status == "difference"
    assert ParityReport(PLAN, "gloo", (GOOD,), timings=(late,), timing_tolerance=0.6).status == "parity"
