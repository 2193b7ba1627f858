"""A process that aborts because it received more than fits: the simulated half of `tests/parity/test_aborts.py`."""

from __future__ import annotations

from functools import partial

import pytest

import simdist
from tests.parity.arms import simulated
from tests.parity.test_aborts import SIZES, STORIES, calls_longer, ends, last_words, reduces_less


@pytest.mark.parametrize(("ranks", "who"), STORIES)
def test_the_sender_of_unread_bytes_reads_a_reset(ranks: int, who: int) -> None:
    assert ends(simulated(partial(reduces_less, who), ranks)) == STORIES[ranks, who]


@pytest.mark.parametrize(("how", "ranks"), SIZES)
def test_the_last_words_have_both_sizes(how: str, ranks: int) -> None:
    result = simdist.run(calls_longer, world_size=ranks, args=[how])

    assert result.ranks[-1].exit_code == -6
    assert last_words(how, ranks) in result.ranks[-1].stderr
