from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.errors import StallError
from simdist.faults import Crash
from tests.strategies import seeds

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "random.getrandbits": lambda: random.getrandbits(100),
    "random.shuffle": lambda: shuffled(random.shuffle),
    "numpy rand": lambda: np.random.rand(3).tolist(),
    "numpy randn": lambda: np.random.randn(),
    "numpy randn 3": lambda: np.random.randn(3).tolist(),
    "numpy randint": lambda: np.random.randint(0, 1000, 2).tolist(),
    "numpy shuffle": lambda: shuffled(np.random.shuffle),
    "torch rand": lambda: torch.rand(3).tolist(),
    "torch randn 1": lambda: torch.randn(1).tolist(),
    "torch randn 3": lambda: torch.randn(3).tolist(),
    "torch randn 17": lambda: torch.randn(17).tolist(),
    "torch randn double": lambda: torch.randn(1, dtype=torch.float64).tolist(),
    "torch normal": lambda: torch.normal(0.0, 1.0, (3,)).tolist(),
    "torch randperm": lambda: torch.randperm(7).tolist(),
    "torch bernoulli": lambda: torch.bernoulli(torch.full((5,), 0.5)).tolist(),
    "torch exponential": lambda: torch.empty(2).exponential_().tolist(),
    "torch dropout": lambda: torch.nn.functional.dropout(torch.ones(9)).tolist(),
    "torch init": lambda: torch.nn.Linear(2, 2).weight.tolist(),
    "torch seed": torch.initial_seed,
    "numpy rand 700": lambda: np.random.rand(700).tolist(),
    "torch rand 700": lambda: torch.rand(700).tolist(),
    "random 700": lambda: [random.random() for _ in range(700)],
}


def shuffled(shuffle: Callable[[list[int]], None]) -> list[int]:
    numbers = list(range(6))
    shuffle(numbers)
    return numbers


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # as user code does
    torch.manual_seed(seed)


def drawn_by(rank: int, names: Sequence[str], between: Callable[[], object]) -> list[Any]:
    """Seed with the rank, then draw, and call `between` between the draws."""
    seed_all(rank)
    found = []
    for name in names:
        between()
        found.append(DRAWS[name]())
    return found


def alone(rank: int, names: Sequence[str]) -> list[Any]:
    """Return the draws of a rank in a world of its own."""
    (values,) = simdist.run(drawn_by, world_size=1, args=(rank, names, lambda: None)).values
    return list(values)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_between_barriers_are_those_that_a_rank_makes_alone(name: str) -> None:
    names = [name] * 3

    def body() -> list[Any]:
        dist.init_process_group("gloo")
        return drawn_by(dist.get_rank(), names, dist.barrier)

    result = simdist.run(body, world_size=3)

    assert result.values == [alone(rank, names) for rank in range(3)]


@settings(max_examples=12)
@given(st.lists(st.lists(st.sampled_from(sorted(DRAWS)), max_size=8), min_size=2, max_size=4))
def test_any_mix_of_draws_on_any_rank_leaves_the_others_alone(names: list[list[str]]) -> None:
    def body() -> list[Any]:
        rank = int(os.environ["RANK"])
        return drawn_by(rank, names[rank], lambda: time.sleep(0))

    result = simdist.run(body, world_size=len(names))

    assert result.values == [alone(rank, chosen) for rank, chosen in enumerate(names)]


def test_one_rank_may_draw_gaussians_in_odd_numbers_between_the_others() -> None:
    def body(counts: Sequence[int]) -> list[Any]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        seed_all(rank)
        found: list[Any] = []
        for _ in range(4):
            found += [(random.gauss(0, 1), np.random.randn(), torch.randn(3).tolist()) for _ in range(counts[rank])]
            dist.barrier()
        return found

    together = simdist.run(body, world_size=3, args=((1, 0, 3),)).values

    assert together[0] == simdist.run(body, world_size=1, args=((1,),)).values[0]
    assert together[1] == []
    seed_all(2)
    assert together[2] == [(random.gauss(0, 1), np.random.randn(), torch.randn(3).tolist()) for _ in range(12)]


def test_generators_that_nobody_seeded_differ_by_rank_and_repeat_by_seed() -> None:
    def body() -> tuple[Any, ...]:
        return random.random(), np.random.rand(), torch.rand(1).item(), torch.initial_seed()

    ranks, again, others = (simdist.run(body, world_size=3, seed=seed).values for seed in (5, 5, 6))

    assert ranks == again
    assert [len(set(column)) for column in zip(*ranks, *others, strict=True)] == [6, 6, 6, 6]
    torch_seed, first = ranks[0][3], ranks[0][2]
    assert torch.rand(1, generator=torch.Generator().manual_seed(torch_seed)).item() == first


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (random.seed, random.random),
        (lambda value: np.random.seed([value, 3]), np.random.rand),
        (torch.manual_seed, lambda: torch.rand(1).item()),
    ],
    ids=["python", "numpy", "torch"],
)
def test_a_rank_that_seeds_a_generator_draws_from_it_after_a_collective(
    seed: Callable[[int], Any], draw: Callable[[], float]
) -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        drawn = []
        for turn in range(2):
            seed(10 * dist.get_rank() + turn)
            dist.barrier()
            drawn.append(draw())
        return drawn

    values = simdist.run(body, world_size=3).values

    expected = []
    for rank in range(3):
        drawn = []
        for turn in range(2):
            seed(10 * rank + turn)
            drawn.append(draw())
        expected.append(drawn)
    assert list(values) == expected


def test_the_host_that_seeds_between_two_worlds_finds_its_own_states() -> None:
    for seed in (3, 4):
        random.seed(seed)
        simdist.run(lambda: random.random(), world_size=2)

        assert random.random() == random.Random(seed).random()


@given(seeds)
@settings(max_examples=10)
def test_any_seed_of_the_run_will_do(seed: int) -> None:
    def body() -> tuple[float, float]:
        return random.random(), np.random.rand()

    assert simdist.run(body, world_size=1, seed=seed).values == simdist.run(body, world_size=1, seed=seed).values
    assert simdist.run(body, world_size=1, seed=seed).values != simdist.run(body, world_size=1, seed=seed ^ 1).values


def test_states_that_a_rank_saves_and_sets_are_its_own() -> None:
    def body() -> list[Any]:
        rank = int(os.environ["RANK"])
        seed_all(rank)
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        first = [random.random(), np.random.rand(), torch.rand(1).item()]
        time.sleep(0)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        time.sleep(0)
        return [first, [random.random(), np.random.rand(), torch.rand(1).item()]]

    values = simdist.run(body, world_size=3).values

    assert [first for first, _ in values] == [again for _, again in values]
    assert len({tuple(first) for first, _ in values}) == 3


def test_a_second_life_draws_other_numbers_as_a_new_process_does() -> None:
    drawn: list[tuple[float, float, float]] = []

    def body() -> None:
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
        time.sleep(1)

    for _ in range(2):
        simdist.run(body, world_size=1, max_restarts=1, faults=[Crash(rank=0, at_ns=5)])

    first, second, *again = drawn
    assert [first, second] == again
    assert not set(first) & set(second)


def draws_a_lot() -> None:
    for name in DRAWS:
        DRAWS[name]()
    time.sleep(0.001)


def deadlocks() -> None:
    draws_a_lot()
    dist.init_process_group("gloo")
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def fails() -> None:
    draws_a_lot()
    raise ValueError("x")


def spins() -> None:
    draws_a_lot()
    while os.environ["RANK"] == "1":
        pass


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (draws_a_lot, {}),
        (fails, {}),
        (draws_a_lot, {"faults": [Crash(rank=0, at_ns=5), Crash(rank=1, at_ns=5)]}),
        (deadlocks, {"backend": "sim"}),
        pytest.param(spins, {"stall_s": 0.2}, marks=pytest.mark.real),
    ],
    ids=["returns", "raises", "crashes", "deadlocks", "stalls"],
)
def test_the_host_goes_on_drawing_as_if_there_had_been_no_world(
    body: Callable[[], None], arguments: dict[str, Any]
) -> None:
    def host(world: Callable[[], None]) -> list[Any]:
        seed_all(11)
        first = [
            random.gauss(0, 1),
            np.random.randn(),
            torch.randn(1).item(),
            torch.randn(1, dtype=torch.float64).item(),
        ]
        world()
        return [*first, random.gauss(0, 1), np.random.randn(), torch.randn(1).item(), *torch.randn(20).tolist()]

    def world() -> None:
        try:
            simdist.run(body, world_size=2, **arguments)
        except StallError:
            assert body is spins

    assert host(world) == host(lambda: None)
