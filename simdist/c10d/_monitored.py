"""`monitored_barrier`: a star of messages with rank 0, which names who is missing (as in ProcessGroupGloo.cpp)."""

from __future__ import annotations

from datetime import timedelta

import torch

from simdist.c10d._communicator import Member

__all__ = ["monitored_barrier"]


def monitored_barrier(member: Member, limit_ns: int, group_ns: int, *, wait_all_ranks: bool) -> None:
    """Hear from every rank within `limit_ns`, then let all go on; the others wait for rank 0 for `group_ns`.

    Raises:
        RuntimeError: on rank 0, naming the rank that did not come (all of them with `wait_all_ranks`); on the others,
            pointing to rank 0.
    """
    mailbox = member.communicator.mailbox
    size = member.communicator.size
    token = torch.zeros(1, dtype=torch.uint8)
    if member.rank != 0:
        try:
            for kind in ("send", "recv"):
                mailbox.post(member, kind, 0, "monitored_barrier", token, group_ns).wait()
        except RuntimeError as error:
            raise RuntimeError(
                f"Rank {member.rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
            ) from None
        return
    simulation = member.process.simulation
    limit_ms = limit_ns // 1_000_000
    start_ns = simulation.now_ns
    missing = []
    receives = {
        rank: mailbox.post(member, "recv", rank, "monitored_barrier", token, limit_ns) for rank in range(1, size)
    }
    heard: list[int] = []
    for rank, work in receives.items():
        left_ns = limit_ns - (simulation.now_ns - start_ns)
        if left_ns <= 0 and not wait_all_ranks:
            raise RuntimeError(_no_time_left(heard, limit_ms))
        left_ns = max(1_000_000, left_ns)
        try:
            work.wait(timedelta(microseconds=left_ns // 1000))
        except RuntimeError as error:
            if not wait_all_ranks:
                raise RuntimeError(
                    f"[Rank 0]: Rank {rank} failed to pass monitoredBarrier in {limit_ms} ms\n"
                    f" Original exception: \n{error}"
                ) from None
            missing.append(rank)
        else:
            heard.append(rank)
    if missing:
        names = ", ".join(str(rank) for rank in missing)
        raise RuntimeError(f"[Rank 0]: Ranks {names} failed to pass monitoredBarrier in {limit_ms} ms")
    for work in [mailbox.post(member, "send", rank, "monitored_barrier", token, limit_ns) for rank in range(1, size)]:
        work.wait()


def _no_time_left(heard: list[int], limit_ms: int) -> str:
    text = f"Rank 0 timed out in monitoredBarrier after {limit_ms} ms.\n"
    if not heard:
        return text + "No ranks successfully processed in monitoredBarrier."
    return text + f"Successfully processed ranks: {', '.join(str(rank) for rank in heard)}"
