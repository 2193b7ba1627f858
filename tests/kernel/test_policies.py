from __future__ import annotations

import pytest
from hypothesis import given

from simdist.kernel import FifoPolicy, Policy, RandomPolicy, Simulation, Task, make_policy
from tests.kernel.fakes import Script
from tests.strategies import seeds

TASKS = ("a", "b", "c", "d", "e", "f")


def order(policy: Policy) -> list[str]:
    """In which order six tasks take three turns each at one instant."""
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


@pytest.mark.parametrize("policy", [FifoPolicy(), RandomPolicy(0)])
def test_an_empty_policy_has_nothing_to_give(policy: Policy) -> None:
    with pytest.raises(IndexError):
        policy.pop()


@pytest.mark.parametrize("policy", [FifoPolicy(), RandomPolicy(0)])
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
    with pytest.raises(ValueError, match=r"^unknown scheduling policy 'lifo'; expected 'fifo' or 'random'$"):
        make_policy("lifo", 0)


def test_under_the_random_policy_half_of_what_travels_takes_longer() -> None:
    drawn = [RandomPolicy(3).extra_ns(100), *(policy.extra_ns(100) for policy in [RandomPolicy(3)] for _ in range(999))]

    assert drawn[0] == drawn[1]
    assert 400 < drawn.count(0) < 600
    assert max(drawn) <= 800
    assert FifoPolicy().extra_ns(100) == RandomPolicy(3).extra_ns(0) == 0
