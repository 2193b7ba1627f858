"""A process that aborts because more came than it has room for: the simulated half of `tests/parity/test_aborts.py`."""

from __future__ import annotations

from functools import partial

import pytest

from tests.parity.arms import simulated
from tests.parity.test_aborts import STORIES, ends, reduces_less


@pytest.mark.parametrize(("ranks", "who"), STORIES)
def test_the_sender_of_unread_bytes_reads_a_reset(ranks: int, who: int) -> None:
    assert ends(simulated(partial(reduces_less, who), ranks)) == STORIES[ranks, who]
