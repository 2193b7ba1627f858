from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from simdist.errors import DeadlockError
from simdist.faults import Crash, Partition
from simdist.result import Event, FaultResult, RankResult, RunResult
from simdist.scenario import Expectations, ExpectedException, Plan, Verdict, Workload
from simdist.scenario._oracles import Seen, judge


def returned(rank: int, value: Any = None) -> RankResult:
    return RankResult(rank, "returned", value=value, exit_code=0)


def raised(rank: int, error: BaseException) -> RankResult:
    return RankResult(rank, "raised", None, exception=error, exit_code=1)


def result_of(*ranks: RankResult, events: Sequence[Event] = (), **other: Any) -> RunResult:
    return RunResult("digest", other.pop("virtual_time_ns", 0), other.pop("restarts", 0), ranks, events, **other)


def verdicts(
    result: RunResult, *, tmp: Path | str = "", baseline: RunResult | None = None, faults: Any = (), **expect: Any
) -> dict[str, Verdict]:
    plan = Plan(
        source="file.toml",
        title="",
        world_size=len(result.ranks),
        workload=Workload(target="job:work", folder=Path()),
        expect=Expectations(outcomes=expect.pop("outcomes", ("returned",) * len(result.ranks)), **expect),
        faults=faults,
    )
    return {verdict.name: verdict for verdict in judge(Seen(plan, result, baseline, str(tmp)))}


def test_without_expectations_all_return_and_nothing_deadlocks() -> None:
    assert verdicts(result_of(returned(0), returned(1))) == {
        "outcomes": Verdict("outcomes", True, "ranks 0, 1 returned"),
        "deadlock": Verdict("deadlock", True, "none"),
    }


def test_another_outcome_is_reported_by_rank() -> None:
    killed = RankResult(2, "killed", None, exit_code=-9)
    result = result_of(returned(0), raised(1, OSError()), killed, raised(3, OSError()))

    assert verdicts(result)["outcomes"] == Verdict(
        "outcomes", False, "ranks 1, 3 raised OSError, expected returned; rank 2 was killed, expected returned"
    )


@pytest.mark.parametrize(
    ("want", "ok"),
    [
        (ExpectedException(type="ConnectionError"), True),
        (ExpectedException(type="OSError"), True),
        (ExpectedException(type="ValueError"), False),
        (ExpectedException(message="(by peer)"), True),
        (ExpectedException(message="by pear"), False),
        (ExpectedException(pattern="clos.*peer"), True),
        (ExpectedException(pattern="^peer"), False),
        (ExpectedException(type="ConnectionError", message="nothing"), False),
    ],
)
def test_an_exception_is_judged_by_type_or_base_and_by_text(want: ExpectedException, ok: bool) -> None:
    result = result_of(raised(0, ConnectionError("closed (by peer)")))

    verdict = verdicts(result, outcomes=("raised",), exceptions={0: want})["exception"]

    assert verdict == Verdict("exception", ok, "rank 0 ConnectionError: closed (by peer)")


def test_a_rank_that_raised_nothing_fails_its_expected_exception() -> None:
    verdict = verdicts(result_of(returned(0)), exceptions={0: ExpectedException(type="OSError")})["exception"]

    assert verdict == Verdict("exception", False, "rank 0 returned, no exception")


def test_restarts_are_counted() -> None:
    assert verdicts(result_of(returned(0), restarts=1), restarts=1)["restarts"].ok
    assert verdicts(result_of(returned(0), restarts=2), restarts=1)["restarts"] == Verdict(
        "restarts", False, "2, expected 1"
    )


def test_equal_values_name_the_first_difference() -> None:
    same = result_of(returned(0, {"a": 1, "b": 2}), returned(1, {"a": 1, "b": 3}))

    assert verdicts(same, equal_values=("a",))["equal_values"] == Verdict("equal_values", True, "a equal on ranks 0, 1")
    assert verdicts(same, equal_values=())["equal_values"] == Verdict(
        "equal_values", False, "ranks 0 and 1 differ at ['b']: 2 and 3"
    )


def test_equal_values_need_values() -> None:
    result = result_of(returned(0, {"a": 1}), raised(1, OSError()))

    assert verdicts(result, equal_values=())["equal_values"].evidence == "rank 1 returned nothing: it raised OSError"
    assert verdicts(result, equal_values=("b",))["equal_values"].evidence == "rank 0 returned {'a': 1}, without 'b'"


def test_values_are_compared_with_the_fault_free_run() -> None:
    result, other = result_of(returned(0, {"parameters": "ab"})), result_of(returned(0, {"parameters": "cd"}))
    keys: Any = {"same_as_without_faults": ("parameters",)}

    assert verdicts(result, baseline=result, **keys)["same_as_without_faults"] == Verdict(
        "same_as_without_faults", True, "final parameters equal: yes, on rank 0"
    )
    assert verdicts(result, baseline=other, **keys)["same_as_without_faults"] == Verdict(
        "same_as_without_faults",
        False,
        "final parameters equal: no; rank 0 at ['parameters']: 'ab' and 'cd' without faults",
    )


def test_bounds_on_values_hold_on_every_rank() -> None:
    result = result_of(returned(0, {"accuracy": 0.9}), returned(1, {"accuracy": 0.7}))

    assert verdicts(result, min_values={"accuracy": 0.6})["min_values"] == Verdict(
        "min_values", True, "accuracy 0.7 >= 0.6"
    )
    assert verdicts(result, min_values={"accuracy": 0.8})["min_values"] == Verdict(
        "min_values", False, "accuracy is 0.7, expected >= 0.8"
    )
    assert verdicts(result, max_values={"accuracy": 0.8})["max_values"] == Verdict(
        "max_values", False, "accuracy is 0.9, expected <= 0.8"
    )


def test_a_bound_on_what_is_no_number_fails() -> None:
    assert not verdicts(result_of(returned(0, {"a": "x"})), min_values={"a": 0})["min_values"].ok
    assert not verdicts(result_of(returned(0, {"a": True})), min_values={"a": 0})["min_values"].ok
    assert not verdicts(result_of(returned(0, {"a": float("nan")})), min_values={"a": 0})["min_values"].ok


def test_a_checkpoint_has_to_load(tmp_path: Path) -> None:
    torch.save({"step": 3}, tmp_path / "good.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:100])

    def judged(name: str) -> Verdict:
        return verdicts(result_of(returned(0)), tmp=tmp_path, checkpoints=(f"{{tmp}}/{name}",))["checkpoint"]

    assert judged("good.pt") == Verdict("checkpoint", True, "{tmp}/good.pt loads, with step")
    assert judged("none.pt") == Verdict("checkpoint", False, "{tmp}/none.pt does not exist")
    assert not judged("cut.pt").ok
    assert str(tmp_path) not in judged("cut.pt").evidence


def test_a_deadlock_is_expected_or_not() -> None:
    free = result_of(returned(0))
    stuck = replace(free, deadlock=DeadlockError("report", ("rank 0", "rank 1", "rank 0"), 3_000_000))

    assert verdicts(free, deadlock=True)["deadlock"] == Verdict("deadlock", False, "none, expected one")
    assert verdicts(stuck, deadlock=True)["deadlock"] == Verdict(
        "deadlock", True, "at 3 ms: rank 0 -> rank 1 -> rank 0"
    )
    assert not verdicts(stuck)["deadlock"].ok


def test_virtual_time_has_two_bounds() -> None:
    result = result_of(returned(0), virtual_time_ns=5_000_000)

    found = verdicts(result, min_virtual_time_ns=5_000_000, max_virtual_time_ns=4_000_000)

    assert found["min_virtual_time"] == Verdict("min_virtual_time", True, "5 ms, at least 5 ms")
    assert found["max_virtual_time"] == Verdict("max_virtual_time", False, "5 ms, at most 4 ms")


def test_a_fault_that_never_strikes_fails_the_scenario() -> None:
    faults = (Crash(rank=0, at_step=1), Crash(rank=0, at_step=2), Partition(groups=((0,), (1,))))
    crash = FaultResult("Crash(rank=0, at_step=1)", "crash of rank 0", "crash", 0)
    split = FaultResult("Partition()", "'split' (partition)", "partition", -1, struck_ns=(5,))
    result = result_of(returned(0), faults=(crash, replace(crash, struck_ns=(6,)), split))
    fine = replace(result, faults=(replace(crash, required=False), split))

    assert verdicts(result, faults=faults)["faults_strike"] == Verdict(
        "faults_strike", False, "never struck: crash of rank 0"
    )
    assert verdicts(fine, faults=faults[1:])["faults_strike"] == Verdict("faults_strike", True, "1 of 2 struck")
    assert "faults_strike" not in verdicts(result, faults=faults, faults_strike=False)


def test_the_number_of_events_is_bounded() -> None:
    result = result_of(returned(0), events=[Event(0, "start", 0, {})] * 3)

    assert verdicts(result, max_events=2)["max_events"] == Verdict("max_events", False, "3, at most 2")
