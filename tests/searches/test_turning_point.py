"""The turning point: the decision at which a failure became inevitable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import simdist
from simdist.programs import Attempt, Ran
from simdist.searches._turning_point import turning_point


def _fails() -> None:
    raise ValueError("found")


def _passes() -> None: ...


def _drawn(passes: Callable[[int, int], bool]) -> Callable[[Attempt], Ran]:
    """Return a function that runs a program; it passes depending on the kept decisions and the seed of the others."""
    failed = Ran(simdist.run(_fails, world_size=1), (("outcomes", "a rank raised"),))
    passed = Ran(simdist.run(_passes, world_size=1))

    def run(attempt: Attempt) -> Ran:
        _, turns, rest = attempt.policy.partition("+")
        kept, _, seed = rest.partition("@")
        return passed if turns and passes(int(kept), int(seed)) else failed

    return run


@pytest.mark.parametrize("first", range(3))  # earlier draws repeat the failing run, event for event
def test_draws_that_repeat_the_failure_do_not_hide_those_that_pass(first: int) -> None:
    found = turning_point(Attempt(policy="random@7"), _drawn(lambda kept, seed: kept < 25 and seed >= first))

    assert found is not None
    assert (found.decision, found.draws) == (25, 6)


def test_a_failure_that_no_draw_avoids_has_no_such_moment() -> None:
    assert turning_point(Attempt(policy="random@7"), _drawn(lambda kept, seed: False)) is None
