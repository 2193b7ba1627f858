from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash
from tests.faults.programs import COMPUTE_NS, ELEMENTS, MS, ends, events_of, run, statuses

CLOSED = "Connection closed by peer [127.0.0.1]:40001."
RESET = "Read error [127.0.0.1]:40001: Connection reset by peer."

CLEAN = run()
STEP_ENDS: list[int] = CLEAN.values[0]
REDUCE_NS = STEP_ENDS[1] - STEP_ENDS[0] - COMPUTE_NS


def message(result: simdist.RunResult, rank: int) -> str:
    """Return the error of a rank, without the location in brackets."""
    error = result.ranks[rank].exception
    assert type(error) is RuntimeError
    return str(error).partition("] ")[2].partition(" This is")[0]


def test_without_faults_the_steps_are_even() -> None:
    assert CLEAN.ok
    assert CLEAN.values == [STEP_ENDS] * 3
    assert STEP_ENDS[2] - STEP_ENDS[1] == COMPUTE_NS + REDUCE_NS


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status", "code", "text"),
    [
        ({}, "killed", -9, "rank 1 dies of SIGKILL"),
        ({"signal": "SIGABRT"}, "killed", -6, "rank 1 dies of SIGABRT"),
        ({"signal": "SIGTERM"}, "killed", -15, "rank 1 dies of SIGTERM"),
        ({"exit_code": 7}, "exited", 7, "rank 1 exits with code 7"),
        ({"exit_code": 0}, "exited", 0, "rank 1 exits with code 0"),
    ],
)
def test_a_crash_is_a_signal_or_an_exit_code_and_an_event(
    how: dict[str, Any], status: str, code: int, text: str
) -> None:
    result = simdist.run(lambda: time.sleep(0.001), world_size=2, faults=[Crash(rank=1, at_ns=400, **how)])

    assert ends(result) == [("returned", 0, MS), (status, code, 400)]
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank, event.data) == (400, 1, {"fault": "crash", "text": text, "life": 0})


def test_no_finally_of_a_crashed_rank_has_an_effect() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        try:
            time.sleep(1)
        finally:
            dist.send(torch.ones(1), 0)
            print("saved")

    def receiver() -> str:
        try:
            if os.environ["RANK"] == "1":
                body()
            dist.init_process_group("gloo")
            dist.recv(torch.zeros(1), 1)
        except RuntimeError as error:
            return str(error).partition("] ")[2].partition(" This is")[0]
        return "received"

    result = simdist.run(receiver, world_size=2, faults=[Crash(rank=1, at_ns=5 * MS)])

    assert result.values == [CLOSED, None]
    assert result.ranks[1].stdout == ""


# -- triggers: time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_ns", [0, 1, 300_000, 700_000, STEP_ENDS[0] - 1, STEP_ENDS[1] + 5])
def test_a_rank_dies_at_the_exact_time(at_ns: int) -> None:
    result = run(Crash(rank=1, at_ns=at_ns), timeout_s=0.5)

    assert ends(result)[1] == ("killed", -9, at_ns)
    assert statuses(result) == ["raised", "killed", "raised"]


def test_a_rank_that_dies_before_its_first_turn_has_never_run() -> None:
    started = []
    simdist.run(lambda: started.append(int(os.environ["RANK"])), world_size=3, faults=[Crash(rank=0, at_ns=0)])

    assert started in ([1, 2], [0, 1, 2])  # at the same instant, the queue decides the order


def test_a_crash_after_a_ranks_end_changes_nothing() -> None:
    result = run(Crash(rank=1, at_ns=STEP_ENDS[-1] + 1))

    assert ends(result) == ends(CLEAN)
    assert result.virtual_time_ns == CLEAN.virtual_time_ns
    assert events_of(result, "fault") == []


# -- triggers: steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_rank_dies_when_its_step_begins(step: int) -> None:
    result = run(Crash(rank=1, at_step=step))

    at_ns = STEP_ENDS[step - 1] if step else STEP_ENDS[0] - COMPUTE_NS - REDUCE_NS
    assert ends(result)[1] == ("killed", -9, at_ns)
    assert [event.data["step"] for event in events_of(result, "step", ranks=[1])] == list(range(step + 1))
    assert [message(result, rank) for rank in (0, 2)] == [CLOSED, CLOSED]


def test_a_step_that_never_comes_kills_nobody() -> None:
    assert run(Crash(rank=1, at_step=3)).digest == CLEAN.digest


def test_naming_a_step_twice_strikes_once() -> None:
    log = []

    def body() -> None:
        for step in (5, 5, 6):
            simdist.step(step)
            log.append((int(os.environ["RANK"]), step))

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_step=5)])

    assert statuses(result) == ["killed", "returned"]
    assert log == [(1, 5), (1, 5), (1, 6)]


# -- triggers: operations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_before_an_operation_nobody_has_noticed_it(nth: int) -> None:
    result = run(Crash(rank=1, op="all_reduce", nth=nth))

    assert ends(result)[1] == ("killed", -9, STEP_ENDS[nth - 1] - REDUCE_NS)
    assert len(events_of(result, "issue", ranks=[1])) == nth - 1
    assert [message(result, rank) for rank in (0, 2)] == [CLOSED, CLOSED]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_during_an_operation_its_peers_go_as_far_as_they_can_without_it(nth: int) -> None:
    result = run(Crash(rank=1, op="all_reduce", nth=nth, when="during"))

    begin_ns = STEP_ENDS[nth - 1] - REDUCE_NS
    status, code, ended_ns = ends(result)[1]
    assert (status, code) == ("killed", -9)
    assert begin_ns <= ended_ns < begin_ns + REDUCE_NS
    assert [len(events_of(result, "issue", ranks=[rank])) for rank in range(3)] == [nth] * 3
    assert [message(result, rank) for rank in (0, 2)] == [CLOSED, CLOSED]
    assert len(events_of(result, "complete")) == nth - 1


def test_during_a_large_operation_a_part_of_the_data_is_under_way() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(4 << 20))

    result = simdist.run(body, world_size=3, faults=[Crash(rank=1, op="all_reduce", when="during")])

    assert result.ranks[1].status == "killed"
    assert RESET in {message(result, rank) for rank in (0, 2)}


def test_during_works_for_the_shortest_operation_too() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.barrier()

    result = simdist.run(body, world_size=3, faults=[Crash(rank=0, op="barrier", when="during")])

    assert result.ranks[0].status == "killed"


def test_during_waits_for_a_late_peer() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        time.sleep(0.005 * dist.get_rank())
        dist.all_reduce(torch.ones(ELEMENTS))

    result = simdist.run(body, world_size=3, faults=[Crash(rank=0, op="all_reduce", when="during")])

    last_ns = max(event.time_ns for event in events_of(result, "issue"))
    assert last_ns >= 10 * MS
    assert ends(result)[0][:2] == ("killed", -9)
    assert last_ns <= ends(result)[0][2] < last_ns + REDUCE_NS


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_after_an_operation_everyone_has_its_result(nth: int) -> None:
    result = run(Crash(rank=1, op="all_reduce", nth=nth, when="after"))

    assert ends(result)[1] == ("killed", -9, STEP_ENDS[nth - 1])
    assert len(events_of(result, "complete")) == nth
    assert statuses(result) == (["returned", "killed", "returned"] if nth == 3 else ["raised", "killed", "raised"])


def test_an_operation_may_be_named_or_any() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.broadcast(torch.ones(1), 0)
        dist.barrier()

    def issued(fault: Crash) -> list[str]:
        result = simdist.run(body, world_size=2, faults=[fault])
        assert result.ranks[1].status == "killed"
        return [str(event.data["op"]) for event in events_of(result, "issue", ranks=[1])]

    assert issued(Crash(rank=1, op="barrier", nth=2)) == ["barrier", "broadcast"]
    assert issued(Crash(rank=1, op="barrier")) == []
    assert issued(Crash(rank=1, op="broadcast")) == ["barrier"]
    assert issued(Crash(rank=1, nth=2)) == ["barrier"]
    assert issued(Crash(rank=1, nth=3)) == ["barrier", "broadcast"]


def test_operations_are_counted_from_the_start_of_a_named_step() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        for index in range(3):
            simdist.step(index)
            for _ in range(2):
                dist.barrier()

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_step=1, op="barrier", nth=2)])

    assert len(events_of(result, "issue", ranks=[0])) == 3
    assert [event.data["step"] for event in events_of(result, "step", ranks=[0])] == [0, 1]


@pytest.mark.parametrize(("op", "dead"), [("send", 0), ("recv", 1)])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_messages_are_operations_too(op: str, dead: int, when: Any) -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        try:
            if dist.get_rank() == 0:
                dist.send(torch.ones(1_000_000), 1)
            else:
                dist.recv(torch.zeros(1_000_000), 0)
        except RuntimeError as error:
            return str(error).partition("] ")[2].partition(" ")[0]
        return "done"

    result = simdist.run(body, world_size=2, faults=[Crash(rank=dead, op=op, when=when)])

    assert result.ranks[dead].status == "killed"
    done = "done" if when == "after" else None
    assert result.ranks[1 - dead].value in ((done,) if done else ("Connection", "Read"))


def test_a_strike_after_an_async_operation_comes_when_it_is_done() -> None:
    log = []

    def body() -> None:
        dist.init_process_group("gloo")
        work = dist.all_reduce(torch.ones(1), async_op=True)
        log.append((dist.get_rank(), "issued"))
        assert work is not None
        work.wait()
        log.append((dist.get_rank(), "waited"))

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, op="all_reduce", when="after")])

    assert statuses(result) == ["killed", "returned"]
    assert log == [(0, "issued"), (1, "issued"), (1, "waited")]


# -- several --------------------------------------------------------------------------------------------------------


def test_two_ranks_can_die_at_one_instant() -> None:
    result = run(Crash(rank=0, at_ns=500_000), Crash(rank=2, at_ns=500_000))

    assert ends(result)[0] == ends(result)[2] == ("killed", -9, 500_000)
    assert statuses(result)[1] == "raised"


def test_a_rank_dies_only_once() -> None:
    result = run(Crash(rank=0, at_ns=500_000), Crash(rank=0, at_ns=600_000), Crash(rank=0, nth=1))

    assert len(events_of(result, "fault")) == 1
    assert ends(result)[0] == ("killed", -9, 500_000)


def test_with_one_rank_left_out_two_runs_are_the_same_run() -> None:
    assert run(Crash(rank=1, nth=2)).digest == run(Crash(rank=1, nth=2)).digest
    assert run(Crash(rank=1, nth=2)).digest != run(Crash(rank=1, nth=3)).digest
