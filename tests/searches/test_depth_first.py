"""The search over all orders finds every outcome that brute force finds, in far fewer runs."""

from __future__ import annotations

import _thread
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.cluster import make
from simdist.errors import ArgumentError, SimdistError
from simdist.kernel import EVERYTHING, Simulation, guided_by, make_policy
from simdist.searches import Attempt
from simdist.searches._depth_first import DepthFirst
from simdist.searches._outcomes import outcome_of
from simdist.searches._shrinking import shrunk_order
from tests.searches.programs import all_together, first_come, lost_update

OURS = f"/tmp/simdist-{os.getpid()}"  # other processes that run these tests have files of their own
stores: Any = dist  # torch's stubs leave them out


def lost_between_two() -> int:
    """Read a counter on each rank and write it back."""
    store = stores.FileStore(f"{OURS}-counter", -1)
    found: int = store.add("count", 0)
    store.set("count", str(found + 1))
    return found


def lock_beside_a_store() -> list[str]:
    """Take a lock in two threads of rank 0; rank 1 uses a store meanwhile, independently."""
    if os.environ["RANK"] == "1":
        store = stores.FileStore(f"{OURS}-beside", -1)
        store.set("a", "")
        return []
    order: list[str] = []
    lock, ended = _thread.allocate_lock(), _thread.allocate_lock()
    ended.acquire()

    def work() -> None:
        with lock:
            order.append("thread")
        ended.release()

    _thread.start_new_thread(work, ())
    with lock:
        order.append("main")
    ended.acquire()
    return order


def last_writer(folder: str) -> None:
    """Write the same file on each rank."""
    Path(folder, "last").write_text(os.environ["RANK"])


def searched(function: Callable[[], Any], world_size: int, *, reduced: bool) -> tuple[set[str], int]:
    """Return the outcomes of a program, and the number of runs that found them."""
    orders, outcomes, runs = DepthFirst(reduced=reduced), set(), 0
    while True:
        orders.begin()
        with guided_by(orders):
            result = simdist.run(function, world_size=world_size, policy=orders.policy)
        outcomes.add(outcome_of(result))
        runs += 1
        more = orders.end(result)
        assert orders.reduced == reduced, (result.shared_state, result.programs, {each.kind for each in result.events})
        if not more:
            return outcomes, runs


@pytest.mark.parametrize(
    ("function", "world_size", "outcomes"),
    [(lost_between_two, 2, 3), (lock_beside_a_store, 2, 2)],
)
def test_a_search_has_the_outcomes_of_brute_force_in_a_tenth_of_its_runs(
    function: Callable[[], Any], world_size: int, outcomes: int
) -> None:
    found, runs = searched(function, world_size, reduced=True)
    all_there_are, brute = searched(function, world_size, reduced=False)

    assert found == all_there_are
    assert len(found) == outcomes
    assert runs * 10 <= brute


def test_a_systematic_search_ends_when_every_order_was_had() -> None:
    report = simdist.explore(first_come, world_size=3, systematic=True)

    assert report.coverage is not None
    assert (report.runs, len(report.outcomes)) == (6, 2)
    assert (report.coverage.exhaustive, report.coverage.reduced) == (True, True)
    assert report.coverage.decisions == 42
    assert "every order that can differ was tried" in str(report)
    assert json.loads(json.dumps(report.summary()))["coverage"]["exhaustive"]


def test_a_systematic_search_that_hits_its_bound_says_so() -> None:
    report = simdist.explore(first_come, world_size=3, systematic=True, runs=5)

    assert report.coverage is not None
    assert (report.runs, report.coverage.exhaustive) == (5, False)
    assert "not every order was tried" in str(report)


def test_an_update_is_lost_in_an_order_that_can_be_replayed() -> None:
    report = simdist.explore(lost_update, world_size=2, kwargs={"wait_ms": 0}, systematic=True, until_found=True)
    (failure,) = report.failures

    again = simdist.run(lost_update, world_size=2, kwargs={"wait_ms": 0}, policy=failure.attempt.policy)

    assert failure.attempt.policy.startswith("order:")
    assert "1 of 2 updates" in str(again.first_failure())


def test_of_an_order_that_fails_the_fewest_choices_are_left() -> None:
    def fails(attempt: Attempt) -> bool:
        places = [*map(int, attempt.policy.removeprefix("order:").split(".")), *[0] * 9]
        return bool(places[3]) and places[7] >= 2

    order = shrunk_order(Attempt(policy="order:1.0.2.3.1.0.1.4.1"), fails)

    assert (order.attempt.policy, order.choices, order.of_choices) == ("order:0.0.0.1.0.0.0.2", 2, 7)
    assert order.minimal
    assert order.runs < 40


def test_an_order_without_which_it_fails_as_well_is_the_usual_one() -> None:
    order = shrunk_order(Attempt(policy="order:1.1"), lambda attempt: True)

    assert (order.attempt.policy, order.choices, order.runs) == ("order:0", 0, 1)


def fails_out_of_order() -> None:
    got = first_come()
    if got is not None and got != sorted(got):
        raise ValueError("out of order")


def test_an_order_that_a_search_has_found_is_shrunk_and_fails_alike() -> None:
    report = simdist.explore(fails_out_of_order, world_size=4, systematic=True)
    (failure,) = report.failures
    places = failure.attempt.policy.removeprefix("order:").split(".")

    assert failure.shrunk is not None
    assert failure.shrunk.minimal
    assert 0 < failure.shrunk.choices == len(places) - places.count("0") <= failure.shrunk.of_choices
    assert f"schedule: {failure.attempt.policy}, {failure.shrunk.choices} of" in str(report)
    assert not simdist.run(fails_out_of_order, world_size=4, policy=failure.attempt.policy).ok
    for place, chosen in enumerate(places):
        if chosen != "0":
            policy = f"order:{'.'.join([*places[:place], '0', *places[place + 1 :]])}"
            assert simdist.run(fails_out_of_order, world_size=4, policy=policy, judges=True).ok


def fails_in_every_order() -> None:
    dist.init_process_group("gloo")
    raise ValueError("always")


def test_a_failure_of_every_order_is_shrunk_to_the_plain_one() -> None:
    report = simdist.explore(fails_in_every_order, world_size=2, systematic=True)
    (failure,) = report.failures

    assert failure.shrunk is not None
    assert failure.shrunk.choices == 0
    assert "schedule: the plain order: the first task always goes next" in str(report)


def test_operations_of_all_together_leave_few_orders_that_differ() -> None:
    report = simdist.explore(all_together, world_size=2, systematic=True)

    assert report.coverage is not None
    assert report.coverage.exhaustive
    assert (report.runs, len(report.outcomes)) == (2, 1)


def over_nccl() -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device=f"cuda:{dist.get_rank()}"))


def test_where_groups_are_of_nccl_no_order_is_left_out() -> None:
    cluster = make(2, devices_per_host="ranks")
    found = simdist.run(over_nccl, world_size=2, cluster=cluster)
    report = simdist.explore(over_nccl, world_size=2, cluster=cluster, systematic=True, runs=3)

    assert (found.backend, found.backends) == ("gloo", ("nccl",))
    assert report.coverage is not None
    assert not report.coverage.reduced


def test_where_ranks_write_files_no_order_is_left_out(tmp_path: Path) -> None:
    report = simdist.explore(last_writer, world_size=2, args=(str(tmp_path),), systematic=True, judges=False)

    assert report.coverage is not None
    assert (report.coverage.exhaustive, report.coverage.reduced) == (True, False)
    assert "no two orders are known to be equal" in str(report)


def test_what_does_not_repeat_itself_is_refused() -> None:
    runs: list[int] = []

    def other_each_time() -> None:
        runs.append(0)
        store = stores.FileStore(f"{OURS}-other", -1)
        for number in range(max(0, 8 - len(runs))):
            store.set(str(number), "")

    with pytest.raises(SimdistError, match="depends on what an earlier run left behind"):
        simdist.explore(other_each_time, world_size=2, systematic=True)


def test_a_systematic_search_has_no_seed() -> None:
    with pytest.raises(ArgumentError, match="schedules: a systematic search draws none"):
        simdist.explore(first_come, world_size=2, systematic=True, schedules=3)


# -- the reduction itself, on programs of a few steps ----------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """Stands in for a rank's process."""

    rank: int

    @property
    def oldest(self) -> Process:
        return self


Script = list[tuple[str, str]]
"""The actions of a task between turns: "read", "write", "wait" for another's write, "sleep", or "end" all others."""


def outcomes_of(scripts: list[Script], *, reduced: bool) -> tuple[set[Any], int]:
    orders, outcomes, runs = DepthFirst(reduced=reduced), set(), 0
    while True:
        orders.begin()
        with guided_by(orders):
            outcomes.add(played(scripts, orders))
        runs += 1
        if not orders.end(None):
            return outcomes, runs


def played(scripts: list[Script], orders: DepthFirst) -> Any:
    """Do one run; returns what each task has seen, and the final value of every variable."""
    simulation = Simulation(policy=make_policy(orders.policy, 0))
    touch = simulation.policy.touch
    assert touch is not None
    held: dict[str, list[int]] = {}
    seen: list[list[Any]] = [[] for _ in scripts]
    tasks: list[Any] = []

    class Wait:
        def describe(self) -> str:
            return "a variable"

        def waits_for(self) -> list[Any]:
            return []

    def body(me: int, script: Script) -> None:
        for what, name in script:
            if what == "sleep":
                simulation.sleep(len(name))
                continue
            simulation.offer()
            if what == "end":
                touch(EVERYTHING, writes=True)
                for task in tasks:
                    if task is not tasks[me]:
                        simulation.kill(task)
                continue
            touch(name, writes=what == "write")
            while what == "wait" and not held.get(name):
                in_time = simulation.park(Wait(), simulation.now_ns + 50)
                touch(name, writes=False)
                if not in_time:
                    break
            seen[me].append(tuple(held.get(name, ())))
            if what == "write":
                held.setdefault(name, []).append(me)
                for task in tasks:
                    if isinstance(task.waiting, Wait):
                        simulation.wake(task)

    for me, script in enumerate(scripts):
        tasks.append(simulation.spawn(lambda me=me, script=script: body(me, script), f"task {me}", Process(me)))  # type: ignore[misc]
    simulation.run()
    simulation.close()
    return tuple(map(tuple, seen)), tuple(sorted((name, tuple(them)) for name, them in held.items()))


actions = st.tuples(
    st.sampled_from(["read", "write", "write", "wait", "sleep", "end"]), st.sampled_from(["x", "y", "zz"])
)


@settings(max_examples=15)
@given(st.lists(st.lists(actions, min_size=1, max_size=2), min_size=2, max_size=3))
def test_no_outcome_of_random_programs_is_lost(scripts: list[Script]) -> None:
    found, runs = outcomes_of(scripts, reduced=True)
    all_there_are, brute = outcomes_of(scripts, reduced=False)

    assert found == all_there_are
    assert runs <= brute
