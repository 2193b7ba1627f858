"""The reference arm itself: it reports every way for a process to end, and nothing hangs or is left behind."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from tests.real_gloo import RealWorld, run_real


def ways_to_end() -> int:
    rank = int(os.environ["RANK"])
    if rank == 1:
        raise KeyError("gone")
    if rank == 2:
        sys.exit(3)
    if rank == 3:
        os._exit(4)
    if rank == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 5:
        time.sleep(60)
    return rank


def test_every_way_to_end_is_distinguished() -> None:
    outcomes = run_real(ways_to_end, 6, timeout_s=1)

    assert [(outcome.status, outcome.exit_code) for outcome in outcomes] == [
        ("returned", 0),
        ("raised", 1),
        ("exited", 3),
        ("exited", 4),
        ("killed", -9),
        ("hung", None),
    ]
    assert (outcomes[1].exception_type, outcomes[1].message) == ("KeyError", "'gone'")


def summed(value: float) -> torch.Tensor:
    dist.init_process_group("gloo")
    tensor = torch.tensor([value * (dist.get_rank() + 1)])
    dist.all_reduce(tensor)
    return tensor


def test_ranks_meet_over_gloo_and_hand_back_tensors() -> None:
    outcomes = run_real(summed, 3, args=(2.0,))

    assert [outcome.value.item() for outcome in outcomes] == [12.0] * 3


def test_a_rank_is_killed_when_it_is_due() -> None:
    outcomes = run_real(lambda: time.sleep(30), 2, timeout_s=0.6, kill={1: 0.2})

    assert [outcome.status for outcome in outcomes] == ["hung", "killed"]
    assert 0.2 <= outcomes[1].seconds < 0.6


def test_an_abandoned_world_leaves_no_process() -> None:
    with RealWorld(lambda: time.sleep(30), 2) as world:
        pids = [child.pid for child in world._children]

    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - a question about a process, not a file
