"""The assertions of a program: `simdist.always` and `simdist.sometimes`."""

from __future__ import annotations

import simdist
from tests.judges.programs import line_of


def says(broken: int) -> None:
    import os

    rank = int(os.environ["RANK"])
    simdist.sometimes("rank 1 was here", rank == 1)
    simdist.sometimes("rank 7 was here", rank == 7)
    simdist.always("rank is small", rank < broken)


def test_what_always_holds_is_no_finding() -> None:
    result = simdist.run(says, world_size=3, args=(3,))

    assert result.ok
    assert result.findings == ()


def test_what_does_not_hold_is_a_finding_of_its_first_moment() -> None:
    result = simdist.run(says, world_size=3, args=(1,))

    (found,) = result.findings
    assert not result.ok
    assert (found.judge, found.rank, found.subject) == ("always", 1, "rank is small")
    assert found.where == line_of(says, "simdist.always")
    assert found.problem == "rank is small: does not hold"


def test_what_sometimes_holds_is_reported_with_what_never_did() -> None:
    result = simdist.run(says, world_size=3, args=(3,))

    assert result.sometimes == (("rank 1 was here", True), ("rank 7 was here", False))
    assert result.summary()["sometimes"] == {"rank 1 was here": True, "rank 7 was here": False}


def test_outside_of_a_simulation_nothing_happens() -> None:
    simdist.always("never", False)
    simdist.sometimes("never", False)
