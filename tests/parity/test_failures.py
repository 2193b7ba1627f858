"""Failures as real Gloo shows them: the same exception types and texts on the same ranks at the same moments."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.parity.arms import Case, Log, simulated, story_test
from tests.real_gloo import run_real

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

TIMEOUT_S = 0.6
CALL_S = 0.2  # the system is slow to close the connections of a dead process: it frees its memory first
END_S = 1.0  # every surviving rank lives until here, so that no exit is mistaken for a crash


def ones(count: int = 4) -> torch.Tensor:
    return torch.ones(count)


def die(log: Log, at_s: float = 0.05) -> None:
    """Send SIGKILL a moment after the barrier: all sent data has been read by then, so peers see a clean end."""
    log.sleep_until(at_s)
    os.kill(os.getpid(), signal.SIGKILL)


def parts() -> list[torch.Tensor]:
    return [ones() for _ in range(dist.get_world_size())]


def gather(root: int = 0) -> None:
    dist.gather(ones(), parts() if dist.get_rank() == root else None, root)


def scatter(root: int = 0) -> None:
    dist.scatter(ones(), parts() if dist.get_rank() == root else None, root)


COLLECTIVES: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(ones()),
    "all_reduce of 1": lambda: dist.all_reduce(ones(1)),
    "all_reduce of 1000": lambda: dist.all_reduce(ones(1000)),
    "broadcast": lambda: dist.broadcast(ones(), 0),
    "reduce": lambda: dist.reduce(ones(), 0),
    "gather": gather,
    "scatter": scatter,
    "all_gather": lambda: dist.all_gather(parts(), ones()),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(ones(4 * dist.get_world_size()), ones()),
    "reduce_scatter": lambda: dist.reduce_scatter(ones(), parts()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(ones(), ones(4 * dist.get_world_size())),
    "all_to_all_single": lambda: dist.all_to_all_single(ones(12), ones(12)),
    "barrier": lambda: dist.barrier(),
}


def absent(name: str, rank: int, dead: bool) -> Log:
    """Call a collective from which one rank is missing: it is alive elsewhere, or dead before."""
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == rank:
        if dead:
            die(log)
        log.sleep_until(END_S)
        return log
    log.sleep_until(CALL_S)
    log.call(name, COLLECTIVES[name.removesuffix("~")])
    log.sleep_until(END_S)
    return log


# "~": on real processes the direction of the timeout, or which of two events comes first, varies from run to run.
MISSING = [
    *((name, 3, 1) for name in COLLECTIVES if name not in ("reduce_scatter", "all_to_all_single")),
    ("reduce_scatter~", 3, 1),
    ("all_to_all_single~", 3, 1),
    *((name, 3, 0) for name in ("broadcast", "gather", "scatter", "reduce")),
    *((name, 4, 1) for name in ("all_reduce", "broadcast", "barrier", "reduce")),
    *(("broadcast", 4, rank) for rank in (0, 2, 3)),
    ("all_gather~", 4, 1),
    ("all_reduce of 1000~", 5, 1),
]
DEAD = [
    *((name, 3, 1) for name in COLLECTIVES),
    *((name, 3, 0) for name in ("broadcast", "gather", "scatter", "reduce")),
    *((name, 4, 1) for name in ("broadcast", "barrier", "reduce", "all_gather")),
    # not rank 2 of 4: it is a race between processes whether the root's first send leaves before the second fails
    *(("broadcast", 4, rank) for rank in (0, 3)),
    ("all_reduce~", 4, 1),
    ("all_reduce of 1000~", 5, 1),
]


def peers_exit_on_error() -> None:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log)
    log.sleep_until(CALL_S)
    dist.all_reduce(ones())


def second_call_after_a_timeout() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        log.sleep_until(END_S)
        log.call("late", COLLECTIVES["all_reduce"])
    else:
        log.call("first", COLLECTIVES["all_reduce"])
        log.call("second~", COLLECTIVES["all_reduce"])
    log.sleep_until(END_S + 0.2)
    return log


def second_call_after_a_death() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log)
    log.sleep_until(CALL_S)
    for name in ("all_reduce", "barrier", "all_gather"):
        log.call(name, COLLECTIVES[name])
    log.sleep_until(END_S)
    return log


def rank_that_returned() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() != 1:
        log.sleep_until(0.1)
        log.call("all_reduce", COLLECTIVES["all_reduce"])
        log.sleep_until(END_S)
    return log


def rank_that_returns_while_peers_wait() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        log.sleep_until(0.3)
        return log
    log.call("all_reduce", COLLECTIVES["all_reduce"])
    log.sleep_until(END_S)
    return log


def rank_that_dies_while_peers_wait() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log, 0.3)
    log.call("all_reduce", COLLECTIVES["all_reduce"])
    log.sleep_until(END_S)
    return log


def group_destroyed_on_one_rank() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 0:
        dist.destroy_process_group()
        log.call("after destroy", COLLECTIVES["all_reduce"])
        log.call("destroy twice", dist.destroy_process_group)
    else:
        log.sleep_until(0.1)
        log.call("all_reduce", COLLECTIVES["all_reduce"])
    log.sleep_until(END_S)
    return log


def wait_with_a_timeout() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() != 1:
        work = dist.all_reduce(ones(), async_op=True)
        log.call("wait 0.2", lambda: work.wait(timedelta(seconds=0.2)))
        log.call("still running", lambda: (work.is_completed(), work.is_success(), work.exception()), repr)
        log.call("wait", work.wait)
        log.call("over", lambda: (work.is_completed(), work.is_success()), repr)
        log.call("wait again", work.wait)
    log.sleep_until(END_S)
    return log


def future_of_a_timeout() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() != 1:
        future = dist.all_reduce(ones(), async_op=True).get_future()
        log.call("wait", future.wait)
    log.sleep_until(END_S)
    return log


def callback_after_a_timeout() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() != 1:
        future = dist.all_reduce(ones(), async_op=True).get_future()
        future.add_done_callback(lambda done: log.call("in the callback", done.value))
    # A simulated rank runs its callbacks on its own thread, when it next blocks; real Gloo has a thread for them.
    while time.monotonic() < log.zero + END_S:
        time.sleep(0.05)
    return log


def point_to_point_never_matched() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 0:
        log.call("recv", lambda: dist.recv(ones(), 1))
        log.call("recv again~", lambda: dist.recv(ones(), 1))
    elif dist.get_rank() == 2:
        log.call("send", lambda: dist.send(ones(), 1))
        log.call("send again~", lambda: dist.send(ones(), 1))
    else:
        log.sleep_until(END_S)
        log.call("late send", lambda: dist.send(ones(), 0))
    log.sleep_until(END_S + 0.2)
    return log


def point_to_point_with_a_dead_peer() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log)
    log.sleep_until(CALL_S)
    if dist.get_rank() == 0:
        log.call("recv", lambda: dist.recv(ones(), 1))
        log.call("recv again", lambda: dist.recv(ones(), 1))
        log.call("recv from any", lambda: dist.recv(ones()), repr)
    else:
        log.call("send", lambda: dist.send(ones(), 1))
        log.call("send again", lambda: dist.send(ones(), 1))
        log.call("send to 0", lambda: dist.send(ones(), 0))
    log.sleep_until(END_S)
    return log


def point_to_point_whose_peer_dies() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log, 0.3)
    elif dist.get_rank() == 0:
        log.call("recv", lambda: dist.recv(ones(), 1))
    else:
        log.call("send", lambda: dist.send(ones(), 1))
    log.sleep_until(END_S)
    return log


def requests_with_their_own_timeout() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 0:
        receive = dist.irecv(ones(), 1)
        assert receive is not None
        log.call("irecv", lambda: receive.wait(timedelta(seconds=0.3)))
        log.call("irecv again", receive.wait)
        log.call("completed", receive.is_completed, repr)
    elif dist.get_rank() == 2:
        send = dist.isend(ones(), 1)
        assert send is not None
        log.sleep_until(0.2)
        log.call("isend", lambda: send.wait(timedelta(seconds=0.3)))
        log.call("isend again", send.wait)
    log.sleep_until(END_S)
    return log


def recv_from_any_without_a_sender() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 0:
        log.call("recv", lambda: dist.recv(ones()))
    log.sleep_until(END_S)
    return log


def recv_from_any_past_a_death() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log, 0.2)
    elif dist.get_rank() == 0:
        log.call("recv", lambda: dist.recv(ones()), repr)
    else:
        log.sleep_until(0.4)
        log.call("send", lambda: dist.send(ones(), 0))
    log.sleep_until(END_S)
    return log


def sends_that_wait_for_their_receiver() -> Log:
    log = Log.of_world(2.0)
    if dist.get_rank() == 0:
        log.call("send", lambda: dist.send(ones(), 1))
        log.call("broadcast", lambda: dist.broadcast(ones(), 0))
        log.call("reduce", lambda: dist.reduce(ones(), 1))
    else:
        log.sleep_until(0.5)
        if dist.get_rank() == 1:
            log.call("recv", lambda: dist.recv(ones(), 0))
        log.sleep_until(1.0)
        log.call("broadcast", lambda: dist.broadcast(ones(), 0))
        log.sleep_until(1.5)
        log.call("reduce", lambda: dist.reduce(ones(), 1))
    log.sleep_until(1.7)
    return log


def barrier_with(missing: tuple[int, ...], wait_all_ranks: bool) -> Callable[[], Log]:
    def monitored_barrier() -> Log:
        log = Log.of_world(TIMEOUT_S)
        if dist.get_rank() not in missing:
            timeout = timedelta(seconds=0.4)
            log.call(
                "monitored_barrier", lambda: dist.monitored_barrier(timeout=timeout, wait_all_ranks=wait_all_ranks)
            )
        log.sleep_until(END_S)
        return log

    return monitored_barrier


def monitored_barrier_with_a_dead_rank() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() == 1:
        die(log)
    log.sleep_until(CALL_S)
    log.call("monitored_barrier", lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.4)))
    log.sleep_until(END_S)
    return log


def store_without_the_key() -> Log:
    log = Log.of_world(TIMEOUT_S)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        log.call("get", lambda: store.get("nope"))
        log.call("wait", lambda: store.wait(["nope", "nor this"], timedelta(seconds=0.2)))
    log.sleep_until(END_S)
    return log


def store_whose_host_died() -> Log:
    log = Log.of_world(TIMEOUT_S)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        die(log, 0.2)
    log.call("get", lambda: store.get("nope"))
    log.call("all_reduce~", COLLECTIVES["all_reduce"])
    return log


def new_group_without_a_member() -> Log:
    log = Log.of_world(TIMEOUT_S)
    if dist.get_rank() != 1:
        log.call("new_group", lambda: dist.new_group([0, 1, 2], timeout=timedelta(seconds=0.3)))
    log.sleep_until(END_S)
    return log


def init_without_a_rank() -> Log:
    log = Log()
    if os.environ["RANK"] != "1":
        log = Log(zero=time.monotonic())
        log.call("init", lambda: dist.init_process_group("gloo", timeout=timedelta(seconds=1)))
        log.call("initialized", dist.is_initialized, repr)
        log.sleep_until(2.5)
    return log


def init_twice() -> Log:
    log = Log.of_world(TIMEOUT_S)
    log.call("twice", lambda: dist.init_process_group("gloo"))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    log.zero = time.monotonic()  # on real processes a second rendezvous may take a retry of half a second
    log.call("all_reduce", COLLECTIVES["all_reduce"])
    return log


STORIES: list[tuple[str, Callable[[], Any], int]] = [
    ("peers exit on error", peers_exit_on_error, 3),
    ("second call after a timeout", second_call_after_a_timeout, 3),
    ("second call after a death", second_call_after_a_death, 3),
    ("rank that returned", rank_that_returned, 3),
    ("rank that returns while peers wait", rank_that_returns_while_peers_wait, 3),
    ("rank that dies while peers wait", rank_that_dies_while_peers_wait, 3),
    ("rank that dies while peers wait", rank_that_dies_while_peers_wait, 4),
    ("group destroyed on one rank", group_destroyed_on_one_rank, 3),
    ("wait with a timeout", wait_with_a_timeout, 3),
    ("future of a timeout", future_of_a_timeout, 3),
    ("callback after a timeout", callback_after_a_timeout, 3),
    ("point to point never matched", point_to_point_never_matched, 3),
    ("point to point with a dead peer", point_to_point_with_a_dead_peer, 3),
    ("point to point whose peer dies", point_to_point_whose_peer_dies, 3),
    ("requests with their own timeout", requests_with_their_own_timeout, 3),
    ("recv from any without a sender", recv_from_any_without_a_sender, 3),
    ("recv from any past a death", recv_from_any_past_a_death, 3),
    ("sends that wait for their receiver", sends_that_wait_for_their_receiver, 3),
    ("monitored barrier without 1", barrier_with((1,), False), 3),
    ("monitored barrier without 2", barrier_with((2,), False), 3),
    ("monitored barrier without 0", barrier_with((0,), False), 3),
    ("monitored barrier without 1, all ranks awaited", barrier_with((1,), True), 3),
    ("monitored barrier without 1 and 2, all ranks awaited", barrier_with((1, 2), True), 4),
    ("monitored barrier without 1 and 2", barrier_with((1, 2), False), 4),
    ("monitored barrier with a dead rank", monitored_barrier_with_a_dead_rank, 3),
    ("store without the key", store_without_the_key, 2),
    ("store whose host died", store_whose_host_died, 3),
    ("new group without a member", new_group_without_a_member, 3),
    ("init without a rank", init_without_a_rank, 3),
    ("init twice", init_twice, 2),
]


def _cases() -> list[Case]:
    cases = []
    for dead, absences in ((False, MISSING), (True, DEAD)):
        for name, world_size, rank in absences:
            label = f"{name.removesuffix('~')}: rank {rank} of {world_size} {'is dead' if dead else 'never calls'}"
            cases.append(Case(label, partial(absent, name, rank, dead), world_size))
    return cases + [Case(f"{name} ({world_size})", body, world_size) for name, body, world_size in STORIES]


CASES = _cases()


test_the_same_story = story_test(CASES)


def endless_large_all_reduces() -> Log:
    log = Log.of_world(3.0)
    tensor = torch.ones((32 << 20) // 4)
    while not log.entries or log.entries[-1].outcome == "ok":
        log.entries.clear()
        log.call("all_reduce", lambda: dist.all_reduce(tensor))
    log.sleep_until(3.5)
    return log


def test_a_death_within_a_large_all_reduce_reaches_both_neighbours() -> None:
    crash = simdist.faults.Crash(rank=1, op="all_reduce", nth=3, when="during")

    simulation = simulated(endless_large_all_reduces, 3, faults=(crash,))
    reality = run_real(endless_large_all_reduces, 3, kill={1: 0.8})

    for arm in (simulation, reality):
        assert [outcome.status for outcome in arm] == ["returned", "killed", "returned"]
        for outcome in (arm[0], arm[2]):
            (entry,) = outcome.value.entries
            assert entry.outcome == "RuntimeError"
            assert entry.text.startswith(("Read error", "Connection closed by peer"))
