from __future__ import annotations

import functools
import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.errors import (
    DeadlockError,
    FaultError,
    InternalError,
    MismatchError,
    RunFailedError,
    SimdistError,
    StallError,
    TopologyError,
    UnsupportedError,
)
from simdist.faults import Crash, Fault, Hang
from simdist.result import Event, RankResult, RunResult
from tests.warm import Interpreters

US = 1_000
MS = 1_000_000


def rank_of() -> int:
    return int(os.environ["RANK"])


def reduces(rounds: int = 2) -> float:
    """Interleave ranks that are runnable at one instant, so that the order of turns shows."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    for _ in range(rounds):
        time.sleep(0.001)
        print("round")
        dist.all_reduce(total)
    return total.item()


# -- what a run is given --------------------------------------------------------------------------------------------


def test_a_run_calls_the_function_once_per_rank_with_its_arguments() -> None:
    def body(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return rank_of(), args, kwargs

    result = simdist.run(body, world_size=3, args=[1, "a"], kwargs={"lr": 0.1})

    assert result.values == [(rank, (1, "a"), {"lr": 0.1}) for rank in range(3)]


def test_ranks_share_what_the_function_closes_over() -> None:
    seen: list[int] = []

    simdist.run(lambda: seen.append(rank_of()), world_size=4)

    assert seen == [0, 1, 2, 3]


def test_a_world_of_one_rank_works_like_any_other() -> None:
    result = simdist.run(reduces, world_size=1)

    assert result.values == [1.0]
    assert result.virtual_time_ns == 2 * MS


class Callable_:
    def __call__(self, value: int) -> int:
        return value + rank_of()


@pytest.mark.parametrize("fn", [Callable_(), functools.partial(Callable_()), functools.partial(lambda a, b: b, 0)])
def test_whatever_can_be_called_can_be_run(fn: Callable[..., Any]) -> None:
    assert simdist.run(fn, world_size=1, args=(5,)).values == [5]


def test_settings_are_keywords() -> None:
    with pytest.raises(TypeError):
        simdist.run(reduces, 2)  # type: ignore[call-arg]


def test_the_cluster_places_the_ranks() -> None:
    result = simdist.run(lambda: os.environ["GROUP_RANK"], world_size=4, cluster=build(4, hosts=2))

    assert result.values == ["0", "0", "1", "1"]
    assert [e.data["host"] for e in result.events if e.kind == "start"] == ["host0", "host0", "host1", "host1"]


def test_a_step_outside_a_world_does_nothing() -> None:
    simdist.step(3)

    assert simdist.run(lambda: simdist.step(4), world_size=1).events[-2].data == {"step": 4}


# -- what a run gives back ------------------------------------------------------------------------------------------


def mixed() -> str:
    """End in every way: return, raise, exit, be killed, hang."""
    rank = rank_of()
    print("hello from", rank)
    time.sleep(rank / 1e3)
    if rank == 1:
        raise ValueError("bad batch [7]")
    if rank == 2:
        sys.exit(3)
    time.sleep(1)
    return "done"


MIXED: list[Fault] = [Crash(rank=3, at_ns=500_000), Hang(rank=4, at_ns=600_000)]


def test_a_result_reports_how_each_rank_ended() -> None:
    result = simdist.run(mixed, world_size=5, faults=MIXED, seed=4)

    assert [
        (r.rank, r.status, r.value, type(r.exception), r.exit_code, r.ended_ns, r.ok, r.waiting) for r in result.ranks
    ] == [
        (0, "returned", "done", type(None), 0, 1_000 * MS, True, ""),
        (1, "raised", None, ValueError, 1, MS, False, ""),
        (2, "exited", None, type(None), 3, 2 * MS, False, ""),
        (3, "killed", None, type(None), -9, 500 * US, False, ""),
        (4, "hung", None, type(None), None, 1_000 * MS, False, "stopped by a fault, in sleep until 0.004000000 s"),
    ]
    assert [rank.stdout for rank in result.ranks] == [f"hello from {rank}\n" for rank in range(5)]
    assert result.values == ["done", None, None, None, None]
    assert (result.ok, result.seed, result.restarts, result.deadlock) == (False, 4, 0, None)
    assert result.virtual_time_ns == 1_000 * MS


def test_a_result_counts_operations_and_names_the_last() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if rank_of() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
            dist.isend(torch.ones(1), 0)

    result = simdist.run(body, world_size=2)

    assert [rank.operations for rank in result.ranks] == [2, 3]
    assert [rank.last_operation for rank in result.ranks] == ["send #0 in group '0'", "send #1 in group '0'"]


def test_a_run_is_ok_if_every_rank_returned_or_left_with_code_0() -> None:
    assert simdist.run(lambda: sys.exit(0), world_size=2).ok
    assert not simdist.run(lambda: sys.exit(rank_of()), world_size=2).ok


def test_a_good_run_raises_nothing() -> None:
    result = simdist.run(reduces, world_size=2)

    result.raise_for_failure()
    assert result.first_failure() is None


def test_the_first_failure_is_the_earliest_and_a_cause_before_an_effect() -> None:
    result = simdist.run(mixed, world_size=5, faults=MIXED)
    at_once = simdist.run(mixed, world_size=4, faults=[Crash(rank=3, at_ns=MS)])

    assert result.first_failure() is result.ranks[3]
    assert at_once.first_failure() is at_once.ranks[3]


def test_a_summary_is_plain_data() -> None:
    result = simdist.run(mixed, world_size=5, faults=MIXED)

    summary = result.summary()

    assert pickle.loads(pickle.dumps(summary)) == summary
    assert {key: summary[key] for key in ("ok", "restarts", "seed", "deadlock")} == {
        "ok": False,
        "restarts": 0,
        "seed": 0,
        "deadlock": None,
    }
    ranks = json.loads(json.dumps(summary))["ranks"]
    assert ranks[1]["exception"] == {"type": "ValueError", "message": "bad batch [7]"}
    assert ranks[3]["exit_code"] == -9


def test_a_value_that_json_does_not_know_is_reported_as_its_repr() -> None:
    summary = json.dumps(simdist.run(lambda: {1j: float("nan")}, world_size=1).summary())

    assert json.loads(summary)["ranks"][0]["value"] == "{1j: nan}"


def test_events_are_a_sequence_in_order_of_time() -> None:
    events = simdist.run(reduces, world_size=2).events

    assert isinstance(events[0], Event)
    assert [event.kind for event in events[:2]] == ["start", "start"]
    assert events[-1].kind == "exit"
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    assert len(list(events)) == len(events)


# -- raise_for_failure ----------------------------------------------------------------------------------------------


def failure(result: RunResult) -> RunFailedError:
    with pytest.raises(RunFailedError) as caught:
        result.raise_for_failure()
    return caught.value


def raises_in_rank_1() -> None:
    time.sleep(0.0025)
    if rank_of() == 1:
        raise ValueError("bad batch [7]\nand a second line")


def test_the_message_of_an_exception() -> None:
    result = simdist.run(raises_in_rank_1, world_size=3, seed=7)

    error = failure(result)

    line = raises_in_rank_1.__code__.co_firstlineno + 3
    assert str(error) == (
        "1 of 3 ranks failed, rank 1 first: raised ValueError: bad batch [7]\n"
        "3 ranks, backend gloo, seed 7 (fifo order), 2.5 ms of virtual time\n"
        f"rank 1, first to fail, at 2.5 ms, test_api.py:{line}: raised ValueError: bad batch [7]\n"
        "    0 ns  sleep of 2.5 ms\n"
        "ranks 0, 2, at 2.5 ms: returned\n"
        "    0 ns  sleep of 2.5 ms\n"
        "last stderr of rank 1:\n"
        "    [rank1]: Traceback (most recent call last):\n"
        f'    [rank1]:   File "{__file__}", line {line}, in raises_in_rank_1\n'
        '    [rank1]:     raise ValueError("bad batch [7]\\nand a second line")\n'
        "    [rank1]: ValueError: bad batch [7]\n"
        "    [rank1]: and a second line\n"
        "replay: simdist.run(raises_in_rank_1, world_size=3, seed=7)"
    )
    assert error.__cause__ is result.ranks[1].exception


def test_the_message_of_a_crash() -> None:
    def sleeps() -> None:
        time.sleep(0.001)
        simdist.step(0)

    faults = [Crash(rank=0, at_ns=700_000), Crash(rank=2, at_step=0, exit_code=3)]
    result = simdist.run(sleeps, world_size=3, faults=faults, replay="make crash")

    error = failure(result)

    line = sleeps.__code__.co_firstlineno + 1
    assert str(error) == (
        "2 of 3 ranks failed, rank 0 first: was killed by SIGKILL\n"
        "3 ranks, backend gloo, seed 0 (fifo order), 1 ms of virtual time\n"
        "fault at 700 us: rank 0 dies of SIGKILL\n"
        "fault at 1 ms: rank 2 exits with code 3\n"
        f"rank 0, first to fail, at 700 us, test_api.py:{line}: was killed by SIGKILL\n"
        "      0 ns  sleep of 1 ms: never done\n"
        "    700 us  rank 0 dies of SIGKILL\n"
        f"rank 2, at 1 ms, test_api.py:{line + 1}: left with exit code 3\n"
        "    1 ms  step 0\n"
        "    1 ms  rank 2 exits with code 3\n"
        "rank 1, at 1 ms: returned\n"
        "    0 ns  sleep of 1 ms\n"
        "    1 ms  step 0\n"
        "replay: make crash"
    )
    assert error.__cause__ is None


def both_receive() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def test_the_message_of_a_deadlock() -> None:
    result = simdist.run(both_receive, world_size=2, backend="sim")
    begin = f"{result.virtual_time_ns / 1e9:.9f} s"
    line = f"test_api.py:{both_receive.__code__.co_firstlineno + 2}"

    error = failure(result)

    assert str(error) == (
        "2 of 2 ranks failed, rank 0 first: hangs for good in recv(src=1, tag=0) in group '0'\n"
        "2 ranks, backend sim, seed 0 (fifo order), 200 us of virtual time\n"
        f"deadlock at {begin}: rank 0 -> rank 1 -> rank 0\n"
        f"  rank 0 waits in recv(src=1, tag=0) in group '0' since {begin}\n"
        f"  rank 1 waits in recv(src=0, tag=0) in group '0' since {begin}\n"
        f"rank 0, first to fail, at 200 us, {line}: hangs for good in recv(src=1, tag=0) in group '0'\n"
        "    200 us  recv #0 of float32[1] from 1: never done\n"
        f"rank 1, at 200 us, {line}: hangs for good in recv(src=0, tag=0) in group '0'\n"
        "    200 us  recv #0 of float32[1] from 0: never done\n"
        "replay: simdist.run(both_receive, world_size=2, seed=0, backend='sim')"
    )
    assert error.__cause__ is result.deadlock


def test_a_long_list_of_failures_is_cut() -> None:
    def fails() -> None:
        raise ValueError(rank_of())

    lines = str(failure(simdist.run(fails, world_size=12))).splitlines()

    assert lines[0] == "12 of 12 ranks failed, rank 0 first: raised ValueError: 0"
    assert [line.split(", test_api")[0] for line in lines[2:4]] == [
        "rank 0, first to fail, at 0 ns",
        "ranks 1-11, at 0 ns",
    ]
    assert len(lines) < 12


# -- deadlocks ------------------------------------------------------------------------------------------------------


def test_with_the_ideal_backend_a_deadlock_ends_the_run_at_once() -> None:
    result = simdist.run(both_receive, world_size=2, backend="sim")

    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
    assert result.deadlock is not None
    assert result.deadlock.cycle == ("rank 0", "rank 1", "rank 0")
    assert result.deadlock.time_ns == result.virtual_time_ns < MS


def test_with_gloo_a_deadlock_is_reported_when_it_forms_and_ranks_time_out() -> None:
    result = simdist.run(both_receive, world_size=2)

    assert [rank.status for rank in result.ranks] == ["raised", "raised"]
    assert result.deadlock is not None
    assert result.deadlock.time_ns < MS
    assert result.virtual_time_ns == result.deadlock.time_ns + 60_001 * MS


# -- determinism ----------------------------------------------------------------------------------------------------


def digest(seed: int = 0, policy: str = "random", fn: Callable[..., Any] = reduces, **arguments: Any) -> str:
    return simdist.run(fn, world_size=4, seed=seed, policy=policy, **arguments).digest


@pytest.mark.parametrize("policy", ["fifo", "random"])
def test_the_same_run_has_the_same_digest(policy: str) -> None:
    assert digest(5, policy) == digest(5, policy)


def test_another_seed_is_another_interleaving() -> None:
    assert len({digest(seed) for seed in range(8)}) == 8


def test_the_digest_sees_data_times_and_output() -> None:
    def other_data() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.tensor([1.0, VALUES[0]]))

    VALUES = [1.0]
    first = digest(fn=other_data)
    VALUES[0] = 1.5

    assert digest(fn=other_data) != first
    assert digest(fn=lambda: print("a")) != digest(fn=lambda: print("b"))
    assert digest(fn=lambda: time.sleep(1)) != digest(fn=lambda: time.sleep(2))
    assert digest(kwargs={"rounds": 2}) != digest(kwargs={"rounds": 3})


SCRIPT = """
import tests.test_api
print(tests.test_api.digest(3), tests.test_api.digest(3, fn=tests.test_api.mixed, faults=tests.test_api.MIXED[:1]))
"""


def test_the_digest_is_the_same_in_another_process_with_another_hash_seed(interpreters: Interpreters) -> None:
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "1"  # of "2" it is the process's first world
    done = interpreters.run([sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": hash_seed})

    assert done.stdout.split() == [digest(3), digest(3, fn=mixed, faults=MIXED[:1])]


# -- errors and pickles ---------------------------------------------------------------------------------------------


def test_a_result_pickles() -> None:
    result = simdist.run(mixed, world_size=5, faults=MIXED, seed=4)

    copy: RunResult = pickle.loads(pickle.dumps(result))

    assert copy.summary() == result.summary()
    assert list(copy.events) == list(result.events)
    assert (copy.digest, copy.replay) == (result.digest, result.replay)


def test_a_deadlock_in_a_result_pickles() -> None:
    result = simdist.run(both_receive, world_size=2, backend="sim")

    copy: RunResult = pickle.loads(pickle.dumps(result))

    assert copy.deadlock is not None
    assert result.deadlock is not None
    assert (copy.deadlock.report, copy.deadlock.cycle) == (result.deadlock.report, result.deadlock.cycle)


@pytest.mark.parametrize(
    "error",
    [
        SimdistError("text"),
        InternalError("text"),
        UnsupportedError("text"),
        TopologyError("text"),
        FaultError(["one", "two"]),
        DeadlockError("report", ("a", "b"), 5),
        StallError("rank 0", 30.5, "stack"),
        MismatchError("text"),
        RunFailedError("text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle(error: SimdistError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_results_are_frozen() -> None:
    result = simdist.run(lambda: 2, world_size=1)

    with pytest.raises(AttributeError):
        result.digest = ""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        result.ranks[0].value = 3  # type: ignore[misc]
    assert isinstance(result.ranks[0], RankResult)
