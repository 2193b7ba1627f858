"""A process that aborts because more came than it has room for, and what its peers read from the connections."""

from __future__ import annotations

import datetime
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.real_gloo import RealOutcome, run_real


def reduces_less(who: int) -> None:
    """Rank `who` all-reduces 10 floats, the others 1,000."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    dist.all_reduce(torch.ones(10 if dist.get_rank() == who else 1000))


def ends(outcomes: list[RealOutcome]) -> list[str]:
    """How each rank ended, in a word."""
    return [
        next((word for word in ("reset", "closed by peer") if word in (each.message or "")), each.status)
        for each in outcomes
    ]


# A rank that sent too much reads a reset: its bytes were never read. With three ranks the two survivors tell
# different stories in every real run, whichever connection fails first.
STORIES = {(2, 1): ["reset", "killed"], (4, 2): ["closed by peer", "closed by peer", "killed", "reset"]}


@pytest.mark.parametrize(("ranks", "who"), STORIES)
def test_the_sender_of_unread_bytes_reads_a_reset(ranks: int, who: int) -> None:
    assert ends(run_real(partial(reduces_less, who), ranks)) == STORIES[ranks, who]
