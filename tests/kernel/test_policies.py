from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from simdist.kernel import FifoPolicy, Policy, PriorityPolicy, RandomPolicy, Simulation, Task, make_policy
from tests.kernel.fakes import Script
from tests.strategies import seeds

TASKS = ("a", "b", "c", "d", "e", "f")


def order(policy: Policy) -> list[str]:
    """Return the order in which six tasks take three turns each at one instant."""
    script = Script(Simulation(policy=policy))

    def body(name: str) -> None:
        for _ in range(3):
            script.note(name)
            script.simulation.sleep(0)

    for name in TASKS:
        script.task(name, lambda name=name: body(name))  # type: ignore[misc]
    return [name for _, name in script.run()]


def test_fifo_takes_turns() -> None:
    assert order(FifoPolicy()) == list(TASKS) * 3


def test_random_repeats_itself_with_the_same_seed() -> None:
    assert order(RandomPolicy(7)) == order(RandomPolicy(7))


def test_random_has_another_order_for_another_seed() -> None:
    orders = {tuple(order(RandomPolicy(seed))) for seed in range(8)}

    assert len(orders) == 8
    assert tuple(order(FifoPolicy())) not in orders


@given(seeds)
def test_random_gives_every_task_its_turns(seed: int) -> None:
    assert sorted(order(RandomPolicy(seed))) == sorted(TASKS * 3)


def test_random_reaches_every_first_task() -> None:
    assert {order(RandomPolicy(seed))[0] for seed in range(60)} == set(TASKS)


@pytest.mark.parametrize("policy", [FifoPolicy(), RandomPolicy(0), PriorityPolicy(0, 3)])
def test_an_empty_policy_has_nothing_to_give(policy: Policy) -> None:
    with pytest.raises(IndexError):
        policy.pop()


@pytest.mark.parametrize("policy", [FifoPolicy(), RandomPolicy(0), PriorityPolicy(0, 3)])
def test_a_policy_knows_how_many_tasks_are_runnable(policy: Policy) -> None:
    simulation = Simulation()
    tasks = [Task(simulation, f"{index}", lambda: None, None) for index in range(3)]
    for task in tasks:
        policy.push(task)

    taken = [policy.pop(), policy.pop()]

    assert len(policy) == 1
    assert set(taken) < set(tasks)


def test_policies_are_made_by_name() -> None:
    assert type(make_policy("fifo", 0)) is FifoPolicy
    assert type(make_policy("random", 0)) is RandomPolicy
    assert order(make_policy("random", 5)) == order(RandomPolicy(5))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^unknown scheduling policy 'lifo'; expected 'fifo', 'random', 'pct:D' or 'order:1.0.2'$"
    ):
        make_policy("lifo", 0)


def test_under_the_random_policy_half_of_what_travels_takes_longer() -> None:
    drawn = [RandomPolicy(3).extra_ns(100), *(policy.extra_ns(100) for policy in [RandomPolicy(3)] for _ in range(999))]

    assert drawn[0] == drawn[1]
    assert 400 < drawn.count(0) < 600
    assert max(drawn) <= 800
    assert FifoPolicy().extra_ns(100) == RandomPolicy(3).extra_ns(0) == 0


def test_priorities_that_never_change_give_the_same_order_each_time() -> None:
    whole = order(PriorityPolicy(1, 1))

    assert whole == whole[:6] * 3


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_priorities_change_at_most_depth_minus_one_times(depth: int) -> None:
    counts = set()
    for seed in range(8):
        policy, simulation = PriorityPolicy(seed, depth), Simulation()
        for name in TASKS:
            policy.push(Task(simulation, name, lambda: None, None))
        ran = []
        for _ in range(2**14):
            task = policy.pop()
            ran.append(task.name)
            policy.push(task)
        counts.add(1 + sum(one != other for one, other in itertools.pairwise(ran)))

    assert max(counts) == depth


def test_a_task_of_low_priority_waits_longer_for_its_requests() -> None:
    policy, simulation = PriorityPolicy(5, 1), Simulation()
    for name in TASKS:
        policy.push(Task(simulation, name, lambda: None, None))

    late = []
    while len(policy):
        policy.pop()
        late.append(policy.extra_ns(100))

    assert late == [0, 100, 200, 300, 400, 500]


def test_a_policy_may_draw_from_a_seed_of_its_own() -> None:
    assert order(make_policy("random@5", 1)) == order(RandomPolicy(5))
    assert order(make_policy("pct:2@5", 1)) == order(PriorityPolicy(5, 2))


@pytest.mark.parametrize("name", ["random", "pct:4"])
def test_after_some_decisions_a_policy_draws_anew(name: str) -> None:
    whole = order(make_policy(f"{name}@3", 0))
    turned = {tuple(order(make_policy(f"{name}@3+4@{seed}", 0))) for seed in range(9)}

    assert all(list(each[:4]) == whole[:4] for each in turned)
    assert len(turned) > 1
    assert order(make_policy(f"{name}@3+99@1", 0)) == whole


@pytest.mark.parametrize("name", ["pct:0", "random@", "fifo@3", "random@1+2", "pct:3@1+x@2"])
def test_a_policy_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^(unknown scheduling policy|expected 'pct' or 'pct:D')"):
        make_policy(name, 0)


def test_a_list_says_who_goes_first_at_each_choice() -> None:
    assert order(make_policy("order:5.4", 0))[:3] == ["f", "e", "a"]


def test_behind_the_end_of_the_list_the_first_goes_first() -> None:
    assert order(make_policy("order:0", 0)) == list(TASKS) * 3


def test_a_list_of_choices_has_numbers_only() -> None:
    with pytest.raises(ValueError, match=r"expected 'order:1\.0\.2'"):
        make_policy("order:a", 0)
