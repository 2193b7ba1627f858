"""Results of collectives, bit for bit those of real Gloo: the order of summation, rounding, NaN, chunk boundaries.

The list of cases is `tests/bits`; `python tools/conformance.py --bits` runs it for more world sizes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.bits.run import BITS_FAMILIES, bits_cases, digest, name_difference, run_bits
from tests.parity.arms import simulated, template
from tests.real_gloo import run_real

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),
]

WORLD_SIZES = (2, 3, 5)


def body(world_size: int, titles: frozenset[str]) -> list[Any]:
    return run_bits(world_size, titles, words=template)


@cache
def reality(world_size: int) -> list[dict[str, Any]]:
    """Run everything in one real world, since its processes cost more than the work."""
    titles = [case.title for case in bits_cases(world_size)]
    outcomes = run_real(body, world_size, args=(world_size, frozenset(titles)))
    assert [outcome.status for outcome in outcomes] == ["returned"] * world_size, outcomes
    return [dict(zip(titles, outcome.value, strict=True)) for outcome in outcomes]


@pytest.mark.parametrize("family", BITS_FAMILIES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_same_bits(world_size: int, family: str) -> None:
    theirs = reality(world_size)
    titles = [case.title for case in bits_cases(world_size, {family})]

    ours = simulated(body, world_size, args=(world_size, frozenset(titles)))

    assert [outcome.status for outcome in ours] == ["returned"] * world_size, ours[0].message
    for rank in range(world_size):
        assert dict(zip(titles, ours[rank].value, strict=True)) == {title: theirs[rank][title] for title in titles}


def test_every_family_has_cases_and_every_case_a_family() -> None:
    families = {case.family for case in bits_cases(4)}

    assert families == set(BITS_FAMILIES)


def test_where_a_nan_came_from_shows_only_in_what_was_moved() -> None:
    one, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, -0x400000))

    assert digest(one) == digest(other)
    assert digest(one, moved=True) != digest(other, moved=True)


def test_a_difference_is_named_by_its_first_element() -> None:
    ours, theirs = [torch.zeros(2), torch.ones(4)], [torch.zeros(2), torch.tensor([1.0, 1.0, 2.0, 3.0])]

    assert name_difference(ours, theirs) == (
        "tensor 1, element 2 (2 of 4 differ): simulated 1.0 (bytes 0000803f), real 2.0 (bytes 00000040)"
    )
    assert name_difference(ours, ours) == ""
    assert name_difference("RuntimeError: no", theirs).startswith(
        "simulated RuntimeError: no, real [(torch.float32, 2)"
    )
