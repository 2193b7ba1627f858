"""The wait-for graph at a moment, from a trace; and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.scenario import load, run_scenario
from simdist.trace import Trace, Waiting, moment_of, read_trace, save, trace_of, wait_graph, waiting_at, write_events

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def trace(scenario: str) -> Trace:
    return trace_of(run_scenario(load(str(SCENARIOS / f"{scenario}.toml"))).result)


def at_its_moment(scenario: str) -> list[Waiting]:
    found = trace(scenario)
    return waiting_at(found, moment_of(found))


def test_two_ranks_that_receive_wait_for_each_other() -> None:
    assert at_its_moment("deadlock") == [
        Waiting(0, "recv #0 from 1", 200_000, (1,)),
        Waiting(1, "recv #0 from 0", 200_000, (0,)),
    ]


def test_ranks_in_different_collectives_wait_for_each_other() -> None:
    waiting = at_its_moment("mismatched_order")

    assert [(each.doing, each.ranks) for each in waiting] == [
        ("barrier #1", (1, 2)),
        ("all_gather #1", (0,)),
        ("all_gather #1", (0,)),
    ]


def test_ranks_wait_for_one_that_died_inside_the_collective() -> None:
    waiting = at_its_moment("crash_during")

    assert [(each.doing, each.ranks, each.has_ended) for each in waiting] == [
        ("all_reduce #1", (2,), False),
        ("all_reduce #1", (2,), False),
        ("killed by signal 9", (), True),
        ("all_reduce #1", (2,), False),
    ]


def test_ranks_wait_for_one_that_a_fault_stopped() -> None:
    waiting = at_its_moment("hang")

    assert [(each.doing, each.ranks) for each in waiting] == [
        ("all_reduce #1", (1,)),
        ("stopped by a fault", ()),
        ("all_reduce #1", (1,)),
    ]


def test_a_watchdog_that_aborts_ranks_ends_their_wait() -> None:
    waiting = at_its_moment("nccl_hang")

    assert [each.ranks for each in waiting] == [(1,), (), (1,)]


def test_nobody_waits_when_all_have_returned() -> None:
    waiting = at_its_moment("ring")

    assert {(each.doing, each.ranks) for each in waiting} == {("returned", ())}


def test_a_trace_that_was_saved_shows_the_same(tmp_path: Path) -> None:
    result = run_scenario(load(str(SCENARIOS / "deadlock.toml"))).result
    with (tmp_path / "events.jsonl").open("w") as stream:
        write_events(result.events, stream)

    saved = read_trace(tmp_path / "events.jsonl")

    assert waiting_at(saved, moment_of(saved)) == waiting_at(trace_of(result), moment_of(trace_of(result)))


def test_equal_runs_give_equal_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one", "other"):
        save(wait_graph(trace("mismatched_order"), title="ranks"), tmp_path / f"{name}.svg")

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    assert (tmp_path / "one.svg").stat().st_size > 10_000


def test_of_many_ranks_those_that_matter_are_drawn() -> None:
    pytest.importorskip("matplotlib")

    def receive_from_the_next() -> None:
        dist.init_process_group("gloo")
        dist.recv(torch.ones(1), src=(dist.get_rank() + 1) % dist.get_world_size())

    figure = wait_graph(trace_of(simdist.run(receive_from_the_next, world_size=40)))

    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sum(word.startswith("rank ") for word in words) == 24
    assert any("16 more are not shown" in word for word in words)
