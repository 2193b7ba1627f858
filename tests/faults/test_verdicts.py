"""The effect of a verdict on each announced effect: an operation, a request to a store, a step, a point."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d import MessageRead, OperationAdmitted, OperationCalled, StoreRequested
from simdist.cluster import switched
from simdist.errors import InternalError
from simdist.faults import Crash, Fault, Raise, Stage
from simdist.kernel import PASS, Verdict
from simdist.process import PointReached, StepReached
from simdist.result import RunResult
from tests.faults.programs import MS, events_of

When = Literal["before", "during", "after"]
ANNOUNCED = (OperationCalled, OperationAdmitted, MessageRead, StoreRequested, StepReached, PointReached)
WHENS: list[When] = ["before", "during", "after"]
TRIP_NS = 100_000  # to the store of the same host and back
ASKED: dict[int, Callable[[Any], Verdict]] = {}  # by number: a fault holds plain data


class Judged(Fault):
    """Asks the judge with this number about every event of one type."""

    event: str
    judge: int

    def arm(self, stage: Stage) -> None:
        """Judge from the start on."""
        kind = {each.__name__: each for each in ANNOUNCED}
        stage.judge(kind[self.event], ASKED[self.judge])
        stage.report()


def judged(event: type, judge: Callable[[Any], Verdict]) -> Judged:
    ASKED[len(ASKED)] = judge
    return Judged(event=event.__name__, judge=len(ASKED) - 1)


def diary(*entries: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the result or error of each call, and when it ended."""
    found = []
    for entry in entries:
        try:
            text = repr(entry())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        found.append((text, time.monotonic_ns()))
    return found


def store() -> Any:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, None, False, timedelta(seconds=1), wait_for_workers=False)  # type: ignore[attr-defined]


def requests() -> list[tuple[str, int]]:
    client = store()
    return diary(lambda: client.set("key", "value"), lambda: client.get("key"), lambda: client.add("n", 2))


def on(operation: str, verdict: Callable[[Any], Verdict]) -> Callable[[Any], Verdict]:
    return lambda event: verdict(event) if event.operation == operation else PASS


def of_store(operation: str, verdict: Callable[[Any], Verdict]) -> Judged:
    return judged(StoreRequested, on(operation, verdict))


def run(body: Callable[[], object], *faults: Fault, **options: Any) -> RunResult:
    return simdist.run(body, faults=faults, **({"world_size": 1} | options))


def test_an_error_takes_the_place_of_a_request_which_the_server_never_sees() -> None:
    error = ConnectionResetError("gone")
    client_sees = run(requests, of_store("add", lambda event: Verdict(error=error))).values[0]

    assert client_sees[-1] == ("ConnectionResetError: gone", client_sees[-2][1])
    fine = run(requests).values[0]
    assert fine[-1] == ("2", fine[-2][1] + TRIP_NS)


def test_a_request_is_late_before_it_fails() -> None:
    verdict = Verdict(delay_ns=3 * MS, error=ConnectionResetError("gone"))
    result = run(requests, of_store("get", lambda event: verdict))

    (_, set_ns), (text, failed_ns), _ = result.values[0]
    assert (text, failed_ns - set_ns) == ("ConnectionResetError: gone", 3 * MS)
    assert [event.data for event in events_of(result, "delay")] == [{"duration_ns": 3 * MS, "op": "store.get"}]


@pytest.mark.parametrize("when", WHENS)
def test_a_process_dies_before_its_request_leaves_on_its_way_or_after_it(when: When) -> None:
    def verdict(event: StoreRequested) -> Verdict:
        return Verdict(strike=lambda: event.process.kill(signal.SIGKILL), when=when)

    trip_ns = 4 * MS
    cluster = switched(2, hosts=2, latency_ns=trip_ns // 2)

    def body() -> Any:
        if int(os.environ["RANK"]) == 1:
            return store().add("n", 1)
        time.sleep(1)
        return store().add("n", 0)

    result = run(
        body, of_store("add", lambda e: verdict(e) if e.process.rank == 1 else PASS), cluster=cluster, world_size=2
    )

    began_ns = next(e.time_ns for e in events_of(result, "store", ranks=[1]) if e.data["op"] == "add")
    assert result.ranks[1].exit_code == -9
    lasted_ns = result.ranks[1].ended_ns - began_ns
    assert lasted_ns == {"before": 0, "during": trip_ns // 4, "after": trip_ns}[when]
    assert result.values[0] == (1 if when == "after" else 0)


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("operation", ["set", "get", "wait"])
def test_a_strike_on_a_request_comes_once_even_if_the_request_fails(operation: str, when: When) -> None:
    struck: list[int] = []
    verdict = Verdict(strike=lambda: struck.append(time.monotonic_ns()), when=when)

    def body() -> list[tuple[str, int]]:
        client = store()
        calls = {
            "set": lambda: client.set("key", "value"),
            "get": lambda: client.get("never"),
            "wait": lambda: client.wait(["never"], timedelta(seconds=1)),
        }
        return diary(calls[operation], lambda: client.add("n", 1))

    result = run(body, of_store(operation, lambda event: verdict))

    assert len(struck) == 1
    assert result.values[0][1][0] == "1"
    assert struck[0] == {"before": 0, "during": TRIP_NS // 4, "after": result.values[0][0][1]}[when]


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("kind", [StepReached, PointReached])
def test_a_step_or_a_point_is_late_and_struck_at_once_whatever_the_side(kind: type, when: When) -> None:
    struck: list[int] = []
    verdict = Verdict(delay_ns=2 * MS, strike=lambda: struck.append(time.monotonic_ns()), when=when)

    def body() -> int:
        simdist.step(0) if kind is StepReached else simdist.point("here")
        return time.monotonic_ns()

    result = run(body, judged(kind, lambda event: verdict))

    assert struck == [2 * MS]
    assert result.values == [2 * MS]
    what = "step" if kind is StepReached else "point"
    assert [event.data for event in events_of(result, "delay")] == [{"duration_ns": 2 * MS, "op": what}]


def collective() -> str:
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    return diary(lambda: dist.all_reduce(torch.ones(1)), lambda: dist.barrier())[0][0]


@pytest.mark.parametrize("others_first", [True, False])
def test_a_rank_is_struck_at_an_operation_that_others_judge_too(others_first: bool) -> None:
    asked: list[str] = []

    def judge(event: OperationCalled) -> Verdict:
        asked.append(event.operation)
        return PASS

    faults = [judged(OperationCalled, judge), Crash(rank=1, op="all_reduce")]
    result = run(collective, *(faults if others_first else reversed(faults)), world_size=2)

    assert result.ranks[1].exit_code == -9
    assert asked[0] == "all_reduce"


@pytest.mark.parametrize("trigger", [{"at_step": 1}, {"at_point": "here"}])
def test_a_rank_is_struck_at_a_step_or_a_point_that_others_judge_too(trigger: Any) -> None:
    def body() -> None:
        for index in range(2):
            simdist.step(index)
        simdist.point("here")

    every = [judged(kind, lambda event: PASS) for kind in (StepReached, PointReached)]
    result = run(body, *every, Raise(rank=0, **trigger))

    assert str(result.ranks[0].exception) == "injected by a fault"


def test_the_last_operation_of_a_report_is_not_the_one_a_fault_replaced() -> None:
    dist_error = Verdict(error=PermissionError("barred"))

    def body() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        dist.all_reduce(torch.ones(1))

    result = run(body, judged(OperationCalled, on("all_reduce", lambda event: dist_error)), world_size=2)

    assert [rank.last_operation for rank in result.ranks] == ["barrier #0 in group '0'"] * 2


def test_a_judge_of_admitted_operations_sees_tensors_and_a_taken_number() -> None:
    def judge(event: OperationAdmitted) -> Verdict:
        too_large = event.operation == "all_reduce" and event.tensors[0].numel() > 2
        return Verdict(error=BufferError("too large")) if too_large else PASS

    def body() -> Any:
        dist.init_process_group("gloo")
        found = diary(lambda: dist.all_reduce(torch.ones(3)))
        group: Any = dist.distributed_c10d._get_default_group()
        return found[0][0], group._get_sequence_number_for_group()

    result = run(body, judged(OperationAdmitted, judge), world_size=2)

    assert result.values == [("BufferError: too large", 1)] * 2


def test_an_admitted_operation_can_only_be_refused() -> None:
    verdict = Verdict(strike=lambda: None)

    result = run(collective, judged(OperationAdmitted, on("all_reduce", lambda event: verdict)), world_size=2)

    assert (
        result.values
        == ["SimdistError: an announced OperationAdmitted can only be refused, with an error; a judge wants a strike"]
        * 2
    )


def message() -> str:
    dist.init_process_group("gloo")
    call = dist.send if dist.get_rank() == 0 else dist.recv
    return diary(lambda: call(torch.ones(1), 1 - dist.get_rank()))[0][0]


def test_a_message_that_is_refused_fails_at_both_ends() -> None:
    verdict = Verdict(error=BufferError("not this one"))

    result = run(message, judged(MessageRead, lambda event: verdict), world_size=2)

    assert result.values == ["BufferError: not this one"] * 2


def test_a_message_can_only_be_refused() -> None:
    verdict = Verdict(delay_ns=1)

    with pytest.raises(InternalError, match=r"an announced MessageRead can only be refused, with an error"):
        run(message, judged(MessageRead, lambda event: verdict), world_size=2)
