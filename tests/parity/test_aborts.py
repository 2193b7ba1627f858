"""A process that aborts because it received more than fits, and what its peers read from the connections."""

from __future__ import annotations

import datetime
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.real_gloo import RealOutcome, run_real


def reduces_less(who: int) -> None:
    """All-reduce 10 floats on rank `who`, 1,000 on the others."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    dist.all_reduce(torch.ones(10 if dist.get_rank() == who else 1000))


def ends(outcomes: list[RealOutcome]) -> list[str]:
    """Return how each rank ended, in a word."""
    return [
        next((word for word in ("reset", "closed by peer") if word in (each.message or "")), each.status)
        for each in outcomes
    ]


# A rank that sent too much reads a reset: its bytes were never read. With three ranks the reports of the two survivors
# differ from run to run, by which connection fails first.
STORIES = {(2, 1): ["reset", "killed"], (4, 2): ["closed by peer", "closed by peer", "killed", "reset"]}


@pytest.mark.parametrize(("ranks", "who"), STORIES)
def test_the_sender_of_unread_bytes_reads_a_reset(ranks: int, who: int) -> None:
    assert ends(run_real(partial(reduces_less, who), ranks)) == STORIES[ranks, who]


def calls_longer(how: str) -> None:
    """Call with 1,000 floats on rank 0, with 10 on the others."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(10 if rank else 1000)
    if how == "send":
        if rank:
            dist.recv(tensor, 0)
        else:
            dist.send(tensor, 1)
    elif how == "all_gather":
        dist.all_gather([torch.empty_like(tensor) for _ in range(size)], tensor)
    elif how == "all_reduce":
        dist.all_reduce(tensor)
    elif how == "broadcast":
        dist.broadcast(tensor, 0)
    else:
        dist.reduce(tensor, 0)


# The bytes of the message that is too long, and of its receive: a collective moves parts of a tensor.
SIZES = {
    ("send", 2): (4000, 40),
    ("all_reduce", 2): (1000, 12),
    ("all_reduce", 3): (668, 8),
    ("broadcast", 2): (4000, 40),
    ("all_gather", 2): (2000, 20),
    ("reduce", 3): (668, 8),
}


def last_words(how: str, ranks: int) -> str:
    """Return the last lines of the rank that aborts."""
    sent, room = SIZES[how, ranks]
    return f"op.preamble.length <= op.nbytes. {sent} vs {room}. Received data size doesn't match expected size."


@pytest.mark.parametrize(("how", "ranks"), SIZES)
def test_the_last_words_have_both_sizes(how: str, ranks: int, capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = run_real(partial(calls_longer, how), ranks)

    assert outcomes[-1].status == "killed"
    assert last_words(how, ranks) in capfd.readouterr().err
