"""`monitored_barrier`: a star of messages with rank 0, which names the missing ranks (as in ProcessGroupGloo.cpp)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch

from simdist.c10d.calls._member import Member
from simdist.c10d.engine import P2PWork
from simdist.process import Strike

__all__ = ["monitored_barrier"]

_TAG = "monitored_barrier"


def monitored_barrier(
    member: Member,
    limit_ns: int,
    group_ns: int,
    *,
    wait_all_ranks: bool,
    prefix: str = "",
    strike: Strike | None = None,
) -> None:
    """Run the monitored barrier: rank 0 hears from every rank within `limit_ns`, then releases all of them.

    The other ranks wait for rank 0 for `group_ns`. `strike` is a fault that the call's announcement left to be done.

    Raises:
        RuntimeError: on rank 0, naming the rank that did not arrive (all of them with `wait_all_ranks`); on the others,
            pointing to rank 0; on a rank whose connections are already closed, `prefix` and the connection's own text.
    """
    if not member.communicator.counted:  # a group that serves another one
        _pass(member, limit_ns, group_ns, wait_all_ranks=wait_all_ranks, prefix=prefix)
        return
    simulation = member.process.simulation
    when, action = strike or ("", _nothing)
    number, begin_ns = member.post(_TAG), simulation.now_ns
    if when == "during":
        action()
        simulation.sleep(0)
    try:
        _pass(member, limit_ns, group_ns, wait_all_ranks=wait_all_ranks, prefix=prefix)
    except RuntimeError as error:
        member.failed(_TAG, number, error)
        raise
    member.delivered(_TAG, number, begin_ns, 0)
    if when == "after":
        action()
        simulation.sleep(0)


def _nothing() -> None:
    pass


def _pass(member: Member, limit_ns: int, group_ns: int, *, wait_all_ranks: bool, prefix: str) -> None:
    size = member.communicator.size
    if member.rank == 0:
        start_ns = member.process.simulation.now_ns
        for kind in ("recv", "send"):
            works = {rank: _post(member, kind, rank, limit_ns, prefix) for rank in range(1, size)}
            _wait_for(works, start_ns, limit_ns, wait_all_ranks=wait_all_ranks)
        return
    pair = [_post(member, kind, 0, group_ns, prefix) for kind in ("send", "recv")]
    try:
        for work in pair:
            work.wait()
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {member.rank} successfully reached monitoredBarrier, but received errors while waiting for "
            f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
        ) from None


def _post(member: Member, kind: str, peer: int, timeout_ns: int, prefix: str) -> P2PWork:
    token = torch.zeros(1, dtype=torch.uint8)
    try:
        return member.communicator.mailbox.post(member, kind, peer, _TAG, token, timeout_ns, inner=True)
    except RuntimeError as error:
        raise RuntimeError(f"{prefix}{error}") from None


def _wait_for(works: Mapping[int, P2PWork], start_ns: int, limit_ns: int, *, wait_all_ranks: bool) -> None:
    """Wait on rank 0 for its messages with the others, until `limit_ns` after `start_ns`."""
    limit_ms = limit_ns // 1_000_000
    heard: list[int] = []
    for rank, work in works.items():
        left_ns = limit_ns - (work.process.simulation.now_ns - start_ns)
        if left_ns <= 0 and not wait_all_ranks:
            raise RuntimeError(_no_time_left(heard, limit_ms))
        try:
            work.wait(timedelta(microseconds=max(1_000_000, left_ns) // 1000))
        except RuntimeError as error:
            if not wait_all_ranks:
                raise RuntimeError(
                    f"[Rank 0]: Rank {rank} failed to pass monitoredBarrier in {limit_ms} ms\n"
                    f" Original exception: \n{error}"
                ) from None
        else:
            heard.append(rank)
    missing = [rank for rank in works if rank not in heard]
    if missing:
        names = ", ".join(str(rank) for rank in missing)
        raise RuntimeError(f"[Rank 0]: Ranks {names} failed to pass monitoredBarrier in {limit_ms} ms")


def _no_time_left(heard: list[int], limit_ms: int) -> str:
    text = f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms.\n"
    if not heard:
        return text + "No ranks successfully processed in monitoredBarrier."
    return text + f"Successfully processed ranks: {', '.join(str(rank) for rank in heard)}"
