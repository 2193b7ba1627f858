"""A rank is missing, late or dead: what the others see and when, as measured on real Gloo (torch 2.13)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash
from tests.c10d.worlds import APP_CLOSED, BROKEN, CLOSED, RESET, Diary, ones, timed_out

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

SEND, RECV = timed_out("send", 1000), timed_out("recv", 1000)
SEND_2S, RECV_2S = timed_out("send", 2000), timed_out("recv", 2000)
Expected = dict[int, list[tuple[float, str | Sequence[str]]]]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def parts(count: int = 4) -> list[torch.Tensor]:
    return [ones(count) for _ in range(dist.get_world_size())]


def whole() -> torch.Tensor:
    return ones(4 * dist.get_world_size())


COLLECTIVES: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(ones()),
    "all_reduce of 1": lambda: dist.all_reduce(ones(1)),
    "all_reduce of 1000": lambda: dist.all_reduce(ones(1000)),
    "all_reduce of 4 MiB": lambda: dist.all_reduce(ones(1 << 20)),
    "broadcast": lambda: dist.broadcast(ones(), 0),
    "reduce": lambda: dist.reduce(ones(), 0),
    "gather": lambda: dist.gather(ones(), parts() if dist.get_rank() == 0 else None, 0),
    "scatter": lambda: dist.scatter(ones(), parts() if dist.get_rank() == 0 else None, 0),
    "all_gather": lambda: dist.all_gather(parts(), ones()),
    "reduce_scatter": lambda: dist.reduce_scatter(ones(), parts()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(ones(), whole()),
    "all_to_all_single": lambda: dist.all_to_all_single(whole(), whole()),
    "barrier": lambda: dist.barrier(),
}


def story(
    body: Callable[[Diary], None], size: int, timeout_s: float, faults: Sequence[simdist.faults.Fault] = ()
) -> list[Diary | None]:
    """Return the diaries of the ranks that survived."""

    def main() -> Diary:
        diary = Diary.begin(timeout_s)
        body(diary)
        diary.sleep_until(10)
        return diary

    result = simdist.run(main, world_size=size, faults=faults)
    for rank in result.ranks:
        assert rank.status in ("returned", "killed", "exited"), rank
    return [rank.value for rank in result.ranks]


def check(diaries: list[Diary | None], expected: Expected) -> None:
    reported = {rank: [(e.ended_ms, e.outcome) for e in diary.entries] for rank, diary in enumerate(diaries) if diary}
    for rank, calls in expected.items():
        diary = diaries[rank]
        assert diary is not None
        assert len(diary.entries) == len(calls)
        for entry, (ended_s, outcome) in zip(diary.entries, calls, strict=True):
            assert entry.is_as(ended_s, outcome), (rank, entry, (ended_s, outcome), reported)


def absent(diary: Diary, missing: int, dead: bool, calls: Sequence[str], at_s: float = 0.3) -> None:
    if dist.get_rank() == missing:
        if dead:
            die()
        return
    diary.sleep_until(at_s)
    for name in calls:
        diary.call(name, COLLECTIVES[name])


# (a): rank 1 is alive and never calls; a rank that timed out then refuses at once.
A_ROWS = [
    (3, "all_reduce", {0: RECV, 2: SEND}),
    (4, "all_reduce of 1", {0: RECV, 2: SEND, 3: RECV}),
    (4, "all_reduce", {0: RECV, 2: SEND, 3: RECV}),
    (4, "all_reduce of 1000", {0: RECV, 2: SEND, 3: RECV}),
    (4, "all_reduce of 4 MiB", {0: RECV, 2: SEND, 3: RECV}),
    (5, "all_reduce of 1", {0: RECV, 2: SEND, 3: RECV, 4: RECV}),
    (5, "all_reduce", {0: RECV, 2: SEND, 3: RECV, 4: RECV}),
    (5, "all_reduce of 1000", {0: RECV, 2: SEND, 3: SEND, 4: RECV}),
]


@pytest.mark.parametrize(("size", "name", "first"), A_ROWS)
def test_everyone_times_out_when_a_rank_never_calls_and_is_cut_off_then(
    size: int, name: str, first: dict[int, str]
) -> None:
    diaries = story(lambda diary: absent(diary, 1, False, [name, "all_reduce"]), size, 1)

    # On real processes the error of rank 3 of 5 varies with the payload; here the flow decides it.
    allowed = {rank: (SEND, RECV) if (size, rank) == (5, 3) else text for rank, text in first.items()}
    check(diaries, {rank: [(1.3, text), (1.3, BROKEN)] for rank, text in allowed.items()})


# (f), (g): the first call when rank `missing` is alive elsewhere.
MISSING: list[tuple[int, str, int, dict[int, str]]] = [
    (4, "broadcast", 1, {0: SEND, 2: "ok", 3: RECV}),
    (4, "broadcast", 0, {1: RECV, 2: RECV, 3: RECV}),
    (4, "broadcast", 2, {0: SEND, 1: "ok", 3: "ok"}),
    (4, "broadcast", 3, {0: "ok", 1: SEND, 2: "ok"}),
    (3, "gather", 1, {0: RECV, 2: "ok"}),
    (3, "gather", 0, {1: SEND, 2: SEND}),
    (3, "scatter", 1, {0: SEND, 2: "ok"}),
    (3, "scatter", 0, {1: RECV, 2: RECV}),
    (3, "reduce", 1, {0: RECV, 2: SEND}),
    (3, "reduce", 0, {1: RECV, 2: RECV}),
    (4, "reduce", 1, {0: RECV, 2: SEND, 3: "ok"}),
    (3, "all_gather", 1, {0: SEND, 2: RECV}),
    (4, "all_gather", 1, {0: SEND, 2: RECV, 3: SEND}),
    (3, "reduce_scatter_tensor", 1, {0: RECV, 2: SEND}),
    (3, "all_to_all_single", 1, {0: SEND, 2: SEND}),
    (4, "all_to_all_single", 1, {0: SEND, 2: SEND, 3: SEND}),
    (3, "barrier", 1, {0: SEND, 2: RECV}),
    (4, "barrier", 1, {0: SEND, 2: RECV, 3: RECV}),
]


@pytest.mark.parametrize(("size", "name", "missing", "expected"), MISSING)
def test_who_needs_a_missing_rank_times_out_and_who_does_not_goes_on(
    size: int, name: str, missing: int, expected: dict[int, str]
) -> None:
    diaries = story(lambda diary: absent(diary, missing, False, [name]), size, 1)

    check(diaries, {rank: [(0.3 if text == "ok" else 1.3, text)] for rank, text in expected.items()})


def test_a_reduce_scatter_of_a_list_times_out_like_the_others() -> None:
    diaries = story(lambda diary: absent(diary, 1, False, ["reduce_scatter"]), 3, 1)

    # Two all-reduces are in flight there: rank 0 saw its own closure first in the measured run.
    check(diaries, {0: [(1.3, (RECV, APP_CLOSED))], 2: [(1.3, SEND)]})


def test_after_a_broadcast_without_its_third_rank_the_next_one_breaks() -> None:
    diaries = story(lambda diary: absent(diary, 1, False, ["broadcast", "broadcast"]), 4, 1)

    check(
        diaries,
        {0: [(1.3, SEND), (1.3, BROKEN)], 2: [(0.3, "ok"), (1.3, (RECV, *BROKEN))], 3: [(1.3, RECV), (1.3, BROKEN)]},
    )


# (f), (g): the same with rank `dead` killed before.
DEAD: list[tuple[int, str, int, dict[int, str]]] = [
    (4, "broadcast", 1, {0: CLOSED, 2: RECV, 3: CLOSED}),
    (4, "broadcast", 0, {1: CLOSED, 2: CLOSED, 3: RECV}),
    (4, "broadcast", 2, {0: CLOSED, 1: "ok", 3: "ok"}),
    (4, "broadcast", 3, {0: "ok", 1: CLOSED, 2: "ok"}),
    (3, "gather", 1, {0: CLOSED, 2: SEND}),
    (3, "gather", 0, {1: CLOSED, 2: CLOSED}),
    (3, "scatter", 1, {0: CLOSED, 2: RECV}),
    (3, "scatter", 0, {1: CLOSED, 2: CLOSED}),
    (3, "reduce", 1, {0: CLOSED, 2: CLOSED}),
    (3, "reduce", 0, {1: RECV, 2: CLOSED}),
    (4, "reduce", 1, {0: CLOSED, 2: CLOSED, 3: SEND}),
    (3, "all_gather", 1, {0: CLOSED, 2: CLOSED}),
    (4, "all_gather", 1, {0: CLOSED, 2: CLOSED, 3: SEND}),
    (3, "reduce_scatter_tensor", 1, {0: CLOSED, 2: CLOSED}),
    (3, "reduce_scatter", 1, {0: CLOSED, 2: CLOSED}),
    (3, "all_to_all_single", 1, {0: CLOSED, 2: CLOSED}),
    (4, "all_to_all_single", 1, {0: CLOSED, 2: CLOSED, 3: CLOSED}),
    (3, "barrier", 1, {0: CLOSED, 2: CLOSED}),
    (4, "barrier", 1, {0: CLOSED, 2: CLOSED, 3: RECV}),
]


@pytest.mark.parametrize(("size", "name", "dead", "expected"), DEAD)
def test_ranks_that_talk_to_a_dead_rank_fail_at_once_others_time_out(
    size: int, name: str, dead: int, expected: dict[int, str]
) -> None:
    diaries = story(lambda diary: absent(diary, dead, True, [name]), size, 1)

    check(diaries, {rank: [(1.3 if text in (SEND, RECV) else 0.3, text)] for rank, text in expected.items()})


# (b): the peers of a dead rank catch the error, stay alive and call again.
B_ROWS: list[tuple[int, str, Expected]] = [
    (3, "all_reduce", {rank: [(0.3, CLOSED)] * 3 for rank in (0, 2)}),
    (
        4,
        "all_reduce",
        {
            0: [(0.3, CLOSED), (1.3, SEND), (1.3, BROKEN)],
            2: [(0.3, CLOSED), (1.3, RECV), (1.3, BROKEN)],
            3: [(1.3, SEND), (1.3, BROKEN), (1.3, BROKEN)],
        },
    ),
    (
        5,
        "all_reduce",
        {
            0: [(0.3, CLOSED), (1.3, SEND), (1.3, BROKEN)],
            2: [(0.3, CLOSED), (1.3, RECV), (1.3, BROKEN)],
            3: [(1.3, SEND), (1.3, BROKEN), (1.3, BROKEN)],
            4: [(1.3, RECV), (1.3, BROKEN), (1.3, BROKEN)],
        },
    ),
    (
        4,
        "all_reduce of 1000",
        {
            0: [(0.3, CLOSED), (1.3, (SEND, CLOSED)), (1.3, BROKEN)],
            2: [(0.3, CLOSED), (1.3, (RECV, CLOSED)), (1.3, BROKEN)],
            3: [(1.3, RECV), (1.3, BROKEN), (1.3, BROKEN)],
        },
    ),
]


@pytest.mark.parametrize(("size", "name", "expected"), B_ROWS)
def test_peers_that_survive_a_dead_rank_call_again_in_vain(size: int, name: str, expected: Expected) -> None:
    diaries = story(lambda diary: absent(diary, 1, True, [name, "all_reduce", "barrier"]), size, 1)

    check(diaries, expected)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_when_peers_of_a_dead_rank_exit_all_see_a_closed_connection(size: int) -> None:
    def main() -> None:
        diary = Diary.begin(1)
        if dist.get_rank() == 1:
            die()
        diary.sleep_until(0.3)
        dist.all_reduce(ones())

    result = simdist.run(main, world_size=size)

    # (c): each rank exits on its error, which closes its own connections in turn.
    assert [rank.status for rank in result.ranks] == ["killed" if r == 1 else "raised" for r in range(size)]
    assert result.ranks[1].exit_code == -signal.SIGKILL
    for rank in (0, *range(2, size)):
        text = str(result.ranks[rank].exception)
        assert "Connection closed by peer" in text or "Connection reset by peer" in text
    assert 0.3e9 < result.virtual_time_ns < 0.305e9


@pytest.mark.parametrize(("size", "far"), [(3, {}), (4, {3: (timed_out("recv", 5000), timed_out("send", 5000))})])
def test_a_crash_while_data_is_under_way_resets_its_neighbours_connections(
    size: int, far: dict[int, tuple[str, ...]]
) -> None:
    def body(diary: Diary) -> None:
        diary.call("all_reduce", lambda: dist.all_reduce(torch.ones(1 << 18)))

    diaries = story(body, size, 5, [Crash(rank=1, op="all_reduce", when="during")])

    # (d): ranks far away time out; a neighbour may see only the end of the connection.
    check(
        diaries,
        {rank: [(5.0, far[rank])] if rank in far else [(0.0, (RESET, CLOSED))] for rank in range(size) if rank != 1},
    )


def test_a_rank_that_comes_after_the_timeout_finds_its_connections_closed() -> None:
    def body(diary: Diary) -> None:
        late = dist.get_rank() == 1
        diary.sleep_until(2.0 if late else 0.0)
        diary.call("all_reduce", lambda: dist.all_reduce(ones()))
        diary.call("2nd", lambda: dist.all_reduce(ones()))
        diary.sleep_until(2.5)
        diary.call("3rd", lambda: dist.all_reduce(ones()))
        peer = dist.get_rank() ^ 1
        diary.call("p2p", lambda: dist.send(ones(), peer) if dist.get_rank() % 2 else dist.recv(ones(), peer))

    diaries = story(body, 4, 1)

    # (e)
    after: list[tuple[float, str | Sequence[str]]] = [(1.0, BROKEN), (2.5, BROKEN), (2.5, BROKEN)]
    check(
        diaries,
        {
            0: [(1.0, RECV), *after],
            1: [(2.0, CLOSED), (2.0, CLOSED), (2.5, CLOSED), (2.5, CLOSED)],
            2: [(1.0, SEND), *after],
            3: [(1.0, RECV), *after],
        },
    )


def leave(how: str) -> None:
    if how == "killed":
        die()
    elif how == "exited":
        sys.exit(0)
    else:
        dist.destroy_process_group()


@pytest.mark.parametrize("how", ["killed", "exited"])
@pytest.mark.parametrize(("size", "far"), [(3, {}), (4, {3: (2.0, RECV_2S)})])
def test_peers_that_wait_see_a_rank_go(how: str, size: int, far: dict[int, tuple[float, str]]) -> None:
    def body(diary: Diary) -> None:
        if dist.get_rank() == 1:
            diary.sleep_until(0.5)
            leave(how)
        diary.call("all_reduce", lambda: dist.all_reduce(ones()))

    diaries = story(body, size, 2)

    # (n)
    check(diaries, {rank: [far.get(rank, (0.5, CLOSED))] for rank in range(size) if rank != 1})


def test_a_broadcast_breaks_only_for_those_that_still_need_the_rank() -> None:
    def body(diary: Diary) -> None:
        if dist.get_rank() == 1:
            diary.sleep_until(0.5)
            leave("exited")
        diary.call("broadcast", lambda: dist.broadcast(ones(), 0))

    diaries = story(body, 3, 2)

    check(diaries, {0: [(0.5, CLOSED)], 2: [(0.0, "ok")]})


O_ROWS: list[tuple[int, int, Expected]] = [
    (3, 1, {rank: [(0.3, CLOSED), (0.3, CLOSED)] for rank in (1, 2)}),
    # The last chunk of 4 elements on 3 ranks is empty: rank 1 waits for rank 2 before it sends anything to rank 0.
    (3, 4, {1: [(2.3, RECV_2S), (2.3, BROKEN)], 2: [(0.3, CLOSED), (0.3, CLOSED)]}),
    (
        4,
        1,
        {
            1: [(0.3, CLOSED), (2.3, RECV_2S)],
            2: [(2.3, RECV_2S), (2.3, BROKEN)],
            3: [(0.3, CLOSED), (2.3, SEND_2S)],
        },
    ),
]


@pytest.mark.parametrize(("size", "count", "expected"), O_ROWS)
def test_a_group_that_one_rank_has_destroyed_is_broken_for_the_others(
    size: int, count: int, expected: Expected
) -> None:
    def body(diary: Diary) -> None:
        if dist.get_rank() == 0:
            dist.destroy_process_group()
            return
        diary.sleep_until(0.3)
        diary.call("all_reduce", lambda: dist.all_reduce(ones(count)))
        diary.call("2nd", lambda: dist.all_reduce(ones(count)))

    diaries = story(body, size, 2)

    # (o)
    check(diaries, expected)


def test_ranks_that_wait_see_a_peer_destroy_its_group() -> None:
    def body(diary: Diary) -> None:
        if dist.get_rank() == 0:
            diary.sleep_until(0.5)
            dist.destroy_process_group()
            return
        diary.call("all_reduce", lambda: dist.all_reduce(ones(1)))

    diaries = story(body, 3, 2)

    check(diaries, {1: [(0.5, CLOSED)], 2: [(0.5, CLOSED)]})


def test_a_timeout_of_half_an_hour_is_the_default() -> None:
    def main() -> Diary:
        dist.init_process_group("gloo")
        diary = Diary()
        if dist.get_rank() == 0:
            diary.call("all_reduce", lambda: dist.all_reduce(ones()))
        else:
            diary.sleep_until(4000)
        return diary

    result = simdist.run(main, world_size=2)

    entry = result.ranks[0].value.entries[0]
    assert entry.outcome in (timed_out("recv", 1_800_000), timed_out("send", 1_800_000))
    assert 1_800_000 <= entry.ended_ms < 1_800_002


def test_new_group_s_own_timeout_replaces_the_default_one() -> None:
    def body(diary: Diary) -> None:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
        if dist.get_rank() == 0:
            diary.call("barrier", lambda: dist.barrier(group))

    diaries = story(body, 2, 1)

    check(diaries, {0: [(3.0, (timed_out("recv", 3000), timed_out("send", 3000)))]})
