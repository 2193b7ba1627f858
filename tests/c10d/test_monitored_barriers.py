"""(l): `monitored_barrier` names the missing ranks, in real Gloo's words and at its times."""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta

import torch.distributed as dist

import simdist
from tests.c10d.worlds import APP_CLOSED, CLOSED, Diary, in_group, now_ns, ones, timed_out

ORIGINAL = "\n Original exception: \n"


def failed(rank: int, cause: str) -> str:
    return f"RuntimeError: [Rank 0]: Rank {rank} failed to pass monitoredBarrier in 1000 ms{ORIGINAL}{bare(cause)}"


def all_failed(ranks: str) -> str:
    return f"RuntimeError: [Rank 0]: Ranks {ranks} failed to pass monitoredBarrier in 1000 ms"


def reached(rank: int, cause: str) -> str:
    return (
        f"RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
        f"send/recv from rank 0. Please check rank 0 logs for faulty rank.{ORIGINAL}{bare(cause)}"
    )


def bare(cause: str) -> str:
    return cause.removeprefix("RuntimeError: ")


def stories(
    size: int,
    missing: tuple[int, ...],
    *,
    wait_all: bool = False,
    dead: bool = False,
    at_s: float = 0.0,
) -> dict[int, list[tuple[str, float]]]:
    """Return each calling rank's diary of a barrier of 1 s, then an all_reduce of one float; the group has 2 s."""

    def main() -> Diary:
        diary = Diary.begin(2)
        if dist.get_rank() in missing:
            if dead:
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            diary.sleep_until(at_s)
            second = timedelta(seconds=1)
            diary.call("barrier", lambda: dist.monitored_barrier(timeout=second, wait_all_ranks=wait_all))
            diary.call("all_reduce", lambda: dist.all_reduce(ones(1)))
        diary.sleep_until(10)
        return diary

    result = simdist.run(main, world_size=size)
    return {
        rank.rank: [(entry.outcome, round(entry.ended_ms / 1000, 2)) for entry in rank.value.entries]
        for rank in result.ranks
        if rank.rank not in missing
    }


def test_it_names_the_first_rank_that_did_not_come() -> None:
    reported = stories(3, (1,))

    assert reported[0] == [(failed(1, timed_out("recv", 1000)), 1.0), (APP_CLOSED, 1.0)]
    assert reported[2] == [(reached(2, CLOSED), 1.0), (timed_out("send", 2000), 3.0)]


def test_what_is_left_of_the_time_is_for_the_next_rank() -> None:
    reported = stories(3, (2,))

    said, at_s = reported[0][0]
    left = re.search(r"waiting (\d+)ms", said)
    assert left is not None
    assert 990 <= int(left[1]) <= 1000  # rank 1 used a little of it
    assert said == failed(2, timed_out("recv", int(left[1])))
    assert at_s == 1.0
    assert reported[1][0] == (reached(1, CLOSED), 1.0)


def test_it_names_all_of_them_if_asked() -> None:
    assert stories(3, (1,), wait_all=True)[0][0] == (all_failed("1"), 1.0)
    reported = stories(4, (1, 2), wait_all=True)

    assert reported[0] == [(all_failed("1, 2"), 1.0), (APP_CLOSED, 1.0)]
    assert reported[3][0] == (reached(3, CLOSED), 1.0)


def test_it_stops_at_the_first_of_several() -> None:
    reported = stories(4, (1, 2))

    assert reported[0][0] == (failed(1, timed_out("recv", 1000)), 1.0)
    assert reported[3][0] == (reached(3, CLOSED), 1.0)


def test_without_rank_0_the_others_wait_for_the_group_s_timeout() -> None:
    reported = stories(3, (0,))

    for rank in (1, 2):
        assert reported[rank] == [(reached(rank, timed_out("send", 2000)), 2.0), (APP_CLOSED, 2.0)]


def test_rank_0_reports_a_dead_rank_bare_and_the_others_wait() -> None:
    reported = stories(3, (1,), dead=True, at_s=0.2)

    assert reported[0][0] == (CLOSED, 0.2)
    assert reported[2][0] == (reached(2, timed_out("send", 2000)), 2.2)


def test_everyone_passes_when_everyone_comes() -> None:
    def body(rank: int) -> float:
        begin = now_ns()
        Diary(begin).sleep_until(0.5 * rank)
        dist.monitored_barrier()
        return round((now_ns() - begin) / 1e9, 2)

    assert in_group(body, 3) == [1.0] * 3


def test_its_own_timeout_is_half_an_hour_on_rank_0_the_group_s_elsewhere() -> None:
    def main() -> Diary:
        diary = Diary.begin(2)
        if dist.get_rank() == 1:
            diary.sleep_until(3)  # and exits
        else:
            diary.call("barrier", lambda: dist.monitored_barrier())
            diary.sleep_until(4)
        return diary

    result = simdist.run(main, world_size=3)

    said = {rank.rank: [(e.outcome, round(e.ended_ms / 1000, 2)) for e in rank.value.entries] for rank in result.ranks}
    cause = failed(1, CLOSED).replace("1000 ms", "1800000 ms")
    assert said[0] == [(cause, 3.0)]
    assert said[2] == [(reached(2, timed_out("recv", 2000)), 2.0)]
