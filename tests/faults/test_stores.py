from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import FaultError
from simdist.faults import Fault, Machine, StoreAway, StoreDelay, StoreLost, StoreStale
from simdist.result import RunResult
from simdist.testing import Sim
from tests.faults.programs import MS, events_of

CLOSED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"

TRIP = 100_000  # ns, to the store and back
LATE_NS = 1_000_000  # a store finds so much later that a wait has timed out


def connect(timeout_s: float = 1.0) -> Any:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False)  # type: ignore[attr-defined]


def words(call: Callable[[], object]) -> tuple[str, int]:
    """Return the result or error of a call, and when it ended."""
    try:
        text = repr(call())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return text, time.monotonic_ns()


def run(body: Callable[[], object], *faults: Fault, world_size: int = 2, max_restarts: int = 0) -> RunResult:
    return simdist.run(body, world_size=world_size, faults=faults, max_restarts=max_restarts)


def two_requests() -> tuple[bytes, int]:
    store = connect()
    store.set("key", "value")
    return store.get("key"), time.monotonic_ns()


def test_every_request_of_every_rank_takes_longer() -> None:
    result = run(two_requests, StoreDelay(delay_ns=5 * MS))

    assert result.values == [(b"value", 10 * MS + TRIP)] * 2
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (0, -1)
    assert event.data["text"] == "requests of all ranks to the launcher's store take 5 ms longer"


def test_one_rank_alone_is_slow_and_delays_add_up() -> None:
    faults = [StoreDelay(delay_ns=5 * MS, rank=1), StoreDelay(delay_ns=2 * MS)]
    result = run(two_requests, *faults)

    assert [value[1] for value in result.values] == [4 * MS + TRIP, 14 * MS + TRIP]
    assert [(event.rank, event.data["text"]) for event in events_of(result, "fault")] == [
        (1, "requests of rank 1 to the launcher's store take 5 ms longer"),
        (-1, "requests of all ranks to the launcher's store take 2 ms longer"),
    ]


def test_a_store_is_slow_from_one_time_until_another() -> None:
    result = run(two_requests, StoreDelay(delay_ns=5 * MS, until_ns=3 * MS), world_size=1)

    assert result.values == [(b"value", 5 * MS + TRIP)]  # the second request leaves after the end


def test_a_request_longer_than_its_timeout_fails_when_it_was_called_back() -> None:
    def body() -> list[tuple[str, int]]:
        store = connect(0.05)
        store.set("key", "value")
        return [words(lambda: store.get("key")), words(lambda: store.wait(["key"], timedelta(milliseconds=20)))]

    result = run(body, StoreDelay(delay_ns=100 * MS, start_ns=MS), world_size=1)

    assert result.values[0] == [(repr(b"value"), TRIP), ("None", 2 * TRIP)]

    result = run(body, StoreDelay(delay_ns=100 * MS), world_size=1)

    assert result.values[0] == [
        ("DistStoreError: wait timeout after 50ms, keys: /key", 250 * MS + LATE_NS),
        ("DistStoreError: wait timeout after 20ms, keys: /key", 370 * MS + 2 * LATE_NS),
    ]


def test_the_wait_for_a_key_counts_from_the_request() -> None:
    result = run(lambda: words(lambda: connect(0.05).get("never")), StoreDelay(delay_ns=30 * MS), world_size=1)

    assert result.values == [("DistStoreError: wait timeout after 50ms, keys: /never", 80 * MS + LATE_NS)]


def test_a_store_that_a_rank_serves_itself_is_neither_slow_nor_lost() -> None:
    def body() -> tuple[bytes, int]:
        store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=1))  # type: ignore[attr-defined]
        store.set("key", "value")
        time.sleep(0.01)
        return store.get("key"), time.monotonic_ns()

    result = run(body, StoreDelay(delay_ns=5 * MS), StoreLost(at_ns=MS), world_size=1)

    assert result.values == [(b"value", 10 * MS + TRIP)]


def test_a_lost_store_ends_waits_and_answers_nobody() -> None:
    def body() -> list[tuple[str, int]]:
        waiting, writing = connect(), connect()
        heard = [words(lambda: waiting.get("never")), words(lambda: writing.set("key", "value"))]
        return [*heard, words(lambda: writing.get("key")), words(lambda: connect(0.2))]

    result = run(body, StoreLost(at_ns=7 * MS), world_size=1)

    assert result.values[0] == [
        (f"DistNetworkError: {CLOSED}", 7 * MS),
        ("None", 7 * MS),  # a request without an answer leaves before the loss is noticed
        ("DistNetworkError: Broken pipe", 7 * MS),
        (
            "DistNetworkError: The client socket has timed out after 200ms while trying to connect to "
            "(127.0.0.1, 29500).",
            207 * MS + LATE_NS,
        ),
    ]
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (7 * MS, -1)
    assert event.data["text"] == "the launcher's store is gone"


def test_a_group_needs_no_store_any_more() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        time.sleep(0.01)
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    assert run(body, StoreLost(at_ns=5 * MS)).values == [2.0, 2.0]


def test_a_new_group_does() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        time.sleep(0.01)
        dist.new_group([0, 1])

    result = run(body, StoreLost(at_ns=5 * MS))

    assert [type(rank.exception) for rank in result.ranks] == [dist.DistNetworkError] * 2


def test_a_restart_brings_a_new_store() -> None:
    def body() -> str:
        time.sleep(0.01)
        store = connect()
        store.set("key", "value")
        return str(store.get("key"), "utf-8")

    result = run(body, StoreLost(at_ns=5 * MS), max_restarts=1)

    assert result.values == ["value", "value"]
    assert result.restarts == 1


@pytest.mark.parametrize("faults", [[], [StoreDelay(delay_ns=1, start_ns=10**12)]])
def test_who_asks_no_store_meets_no_fault(faults: list[Fault]) -> None:
    result = run(lambda: time.sleep(0.01), *faults)

    assert result.virtual_time_ns == 10 * MS
    assert events_of(result, "fault", "delay") == []


def test_ranks_that_wait_for_members_are_freed_when_the_store_is_lost() -> None:
    def body() -> tuple[str, int] | None:
        if os.environ["RANK"] == "0":
            return words(lambda: dist.init_process_group("gloo"))
        time.sleep(0.02)
        return None

    result = run(body, StoreLost(at_ns=5 * MS))

    assert result.values == [(f"DistNetworkError: {CLOSED}", 5 * MS), None]


# -- jitter ---------------------------------------------------------------------------------------------------------


def test_each_request_draws_how_much_longer_it_takes() -> None:
    def body() -> list[int]:
        store = connect()
        ends_ns = [time.monotonic_ns()]
        for _ in range(4):
            store.add("key", 1)
            ends_ns.append(time.monotonic_ns())
        return [after - before - TRIP for before, after in itertools.pairwise(ends_ns)]

    jitter = StoreDelay(delay_ns=5 * MS, jitter_ns=2 * MS)
    one, again, other = (simdist.run(body, world_size=2, faults=[jitter], seed=seed) for seed in (0, 0, 1))

    assert one.values == again.values != other.values
    took_ns = [late_ns for ran in (one, other) for late in ran.values for late_ns in late]
    assert all(5 * MS <= late_ns <= 7 * MS for late_ns in took_ns)
    assert len(set(took_ns)) == 16
    (event,) = events_of(one, "fault")
    assert event.data["text"] == "requests of all ranks to the launcher's store take 5 ms and up to 2 ms longer"


def test_jitter_of_one_rank_begins_and_ends() -> None:
    def body() -> list[int]:
        store = connect()
        late_ns = []
        for second in range(3):
            time.sleep(max(0.0, second - time.monotonic()))
            began_ns = time.monotonic_ns()
            store.check(["key"])
            late_ns.append(time.monotonic_ns() - began_ns)
        return late_ns

    jitter = StoreDelay(rank=1, jitter_ns=500 * MS, start_ns=900 * MS, until_ns=1_100 * MS)
    quick, slow = run(body, jitter).values

    assert max(quick) < MS > slow[0]
    assert MS < slow[1] <= 501 * MS
    assert slow[2] < MS


# -- a store that does not answer -----------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_keeps_requests_and_answers_later() -> None:
    def body() -> list[tuple[str, int]]:
        store, other = connect(60), connect(60)
        time.sleep(1)
        return [
            words(lambda: store.set("key", "value")),
            words(lambda: other.get("key")),
            words(lambda: store.add("count", 1)),
        ]

    result = run(body, StoreAway(start_ns=500 * MS, until_ns=4_000 * MS), world_size=1)

    assert result.values[0] == [
        ("None", 1_000 * MS),
        (repr(b"value"), 4_000 * MS + TRIP),
        ("1", 4_000 * MS + 2 * TRIP),
    ]
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank, event.data["text"]) == (500 * MS, -1, "the launcher's store does not answer")


def test_waits_that_run_out_of_time_fail_when_the_store_is_back() -> None:
    def body() -> list[str]:
        store, early = connect(1), connect(1)
        store.set("key", "value")
        found = []
        thread = threading.Thread(target=lambda: found.append(words(lambda: early.get("never"))))
        thread.start()
        time.sleep(0.5)
        found.append(words(lambda: store.wait(["key"], timedelta(milliseconds=500))))
        thread.join()
        return [f"{text} at {time_ns // MS} ms" for text, time_ns in found]

    result = run(body, StoreAway(start_ns=200 * MS, until_ns=4_200 * MS), world_size=1)

    assert sorted(result.values[0]) == [
        "DistStoreError: wait timeout after 1000ms, keys: /never at 4200 ms",
        "DistStoreError: wait timeout after 500ms, keys: /key at 4200 ms",
    ]


def test_a_new_connection_waits_too_beyond_its_timeout() -> None:
    result = run(lambda: (connect(1) is not None, time.monotonic_ns()), StoreAway(until_ns=3_000 * MS), world_size=1)

    assert result.values == [(True, 3_000 * MS)]


def test_a_group_comes_about_when_the_store_is_back() -> None:
    def body() -> tuple[float, int]:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item(), time.monotonic_ns() // (1_000 * MS)

    assert run(body, StoreAway(until_ns=7_000 * MS)).values == [(2.0, 7), (2.0, 7)]


def test_a_new_group_waits_for_the_store_too_and_may_time_out_then() -> None:
    def body(timeout_s: float) -> tuple[str, int]:
        dist.init_process_group("gloo")
        time.sleep(1)
        return words(lambda: dist.new_group([0, 1], timeout=timedelta(seconds=timeout_s)) is not None)

    away = StoreAway(start_ns=500 * MS, until_ns=9_000 * MS)
    in_time, late = (
        simdist.run(body, world_size=2, args=(timeout_s,), faults=[away]).values for timeout_s in (60.0, 2.0)
    )

    assert {text for text, _ in in_time} == {"True"}
    assert {time_ns // (1_000 * MS) for _, time_ns in (*in_time, *late)} == {9}
    assert [text.partition(", keys: ")[0] for text, _ in late] == ["DistStoreError: wait timeout after 2000ms"] * 2
    assert [text[-3:] for text, _ in late] == ["0/1", "0/0"]


def test_a_store_that_is_away_for_good_is_a_deadlock_that_says_so() -> None:
    result = run(lambda: connect().add("key", 1), StoreAway())

    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
    assert "an answer of the store at" in str(result.ranks[0].waiting)


def test_a_store_is_away_over_a_restart_and_while_any_fault_says_so() -> None:
    def body() -> int:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(0.5)
            raise ValueError
        connect().add("key", 1)
        return time.monotonic_ns() // (1_000 * MS)

    faults = [StoreAway(start_ns=MS, until_ns=9_000 * MS), StoreAway(start_ns=2 * MS, until_ns=7_000 * MS)]

    assert run(body, *faults, max_restarts=1).values == [9, 9]


def test_a_store_lost_while_it_does_not_answer_ends_its_connections() -> None:
    def body() -> tuple[str, int]:
        store = connect()
        time.sleep(0.01)
        return words(lambda: store.add("key", 1))

    result = run(body, StoreAway(start_ns=MS, until_ns=9_000 * MS), StoreLost(at_ns=50 * MS), world_size=1)

    assert result.values == [(f"DistNetworkError: {CLOSED}", 50 * MS)]


def test_a_store_answers_from_when_the_fault_is_lifted(sim: Sim) -> None:
    away = sim.give(StoreAway())
    with sim.start(lambda: (connect().add("key", 1), time.monotonic_ns() // MS), world_size=1) as world:
        world.advance("2s")
        away.lift()
        result = world.finish()

    assert result.values == [(1, 2_000)]
    assert events_of(result, "fault")[-1].data["text"] == "the launcher's store answers again"


def test_a_real_store_is_away_by_a_delay_until_the_end() -> None:
    away = StoreAway(start_ns=5, until_ns=20)

    assert [away.request_delay_ns(0, now_ns) for now_ns in (4, 5, 19, 20)] == [0, 15, 1, 0]
    assert away.real_obstacle(Machine("gloo", 1, 0)) == ""


# -- stale ----------------------------------------------------------------------------------------------------------

LIFE = "TORCHELASTIC_RESTART_COUNT"


def meets_again(backend: str, lateness_s: list[float]) -> tuple[str, int]:
    """Make a group in the first life, in which rank 1 fails, and one in the second, for which ranks are late."""
    rank, life = int(os.environ["RANK"]), os.environ[LIFE]
    if life == "1":
        time.sleep(lateness_s[rank])
    began_ns = time.monotonic_ns()
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=6))
        total = torch.ones(1, device=f"cuda:{rank}" if backend == "nccl" else "cpu")
        dist.all_reduce(total)
    except Exception as error:
        took_ms = (time.monotonic_ns() - began_ns) // MS
        time.sleep(100)  # so that the others see the consequences
        return f"{type(error).__name__}: {error}", took_ms
    if life == "0" and rank == 1:
        raise ValueError("once")
    dist.all_reduce(total)
    return "met", int(total.item())


def lives(lateness_s: list[float], *faults: Fault, backend: str = "gloo") -> list[Any]:
    size = len(lateness_s)
    return simdist.run(
        meets_again, world_size=size, args=(backend, lateness_s), faults=faults, max_restarts=1, backend=backend
    ).values


def test_a_restart_finds_the_keys_that_the_life_before_left() -> None:
    def body() -> tuple[str, int, list[int]]:
        store = connect()
        if os.environ[LIFE] == "0":
            store.set("epoch", "7")
            store.queue_push("work", "left")
            time.sleep(0.01)
            raise RuntimeError("once")
        return os.environ["MASTER_PORT"], store.num_keys(), [store.check(["epoch"]), store.queue_len("work")]

    stale, fresh = (run(body, *faults, world_size=1, max_restarts=1) for faults in ([StoreStale()], []))

    assert stale.values == [("29500", 1, [True, 1])]
    assert fresh.values == [("45001", 0, [False, 0])]
    (event,) = events_of(stale, "fault")
    assert (event.time_ns, event.rank) == (events_of(stale, "restart")[0].time_ns, -1)
    assert event.data["text"] == "the launcher's store is as the life before left it"


def test_ranks_that_meet_at_once_do_so_in_a_stale_store_as_well() -> None:
    assert lives([0.0, 0.0, 0.0], StoreStale()) == [("met", 9)] * 3


def test_a_rank_that_is_early_looks_for_the_others_where_they_were() -> None:
    early, late, later = lives([0.0, 1.0, 2.0], StoreStale())

    refused = "pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:"
    assert (refused + "40001$0" in early[0], early[1]) == (True, 0)
    assert (refused + "40000$1" in late[0], late[1]) == (True, 0)
    assert (refused + "40000$2" in later[0], later[1]) == (True, 0)
    assert lives([0.0, 1.0, 2.0]) == [("met", 9)] * 3


def test_ranks_of_nccl_that_are_early_follow_an_old_id() -> None:
    _, early, _ = lives([1.0, 0.0, 3.0], StoreStale(), backend="nccl")

    assert "connect to 127.0.0.1<40000> returned Connection refused" in early[0]
    assert early[1] == 59_500
    assert lives([0.0, 1.0, 2.0], StoreStale(), backend="nccl") == [("met", 9)] * 3


def test_a_store_that_is_lost_or_whose_fault_is_lifted_is_not_kept(sim: Sim) -> None:
    def body() -> tuple[str, bool]:
        store = connect()
        if os.environ[LIFE] == "0":
            store.set("key", "value")
            time.sleep(1)
            raise RuntimeError("once")
        return os.environ["MASTER_PORT"], store.check(["key"])

    assert (
        run(body, StoreStale(optional=True), StoreLost(at_ns=500 * MS), max_restarts=1).values == [("45001", False)] * 2
    )

    stale = sim.give(StoreStale())
    with sim.start(body, world_size=1, max_restarts=1) as world:
        world.advance("500ms")
        stale.lift()
        assert world.finish().values == [("45001", False)]


def test_a_stale_store_takes_a_restart() -> None:
    with pytest.raises(FaultError, match=r"no restart finds the store; give max_restarts"):
        run(lambda: None, StoreStale())
    assert StoreStale().real_obstacle(Machine("gloo", 1, 1)) == ""
    assert StoreStale(after="other").real_obstacle(Machine("gloo", 1, 1)).startswith("on real processes only faults")


def test_what_was_sent_to_a_store_that_was_away_is_there_in_the_next_life() -> None:
    def body() -> bytes:
        store = connect(30.0)
        if os.environ[LIFE] == "0":
            time.sleep(0.01)
            store.set("sent", "before the end")
            raise RuntimeError("once")
        return bytes(store.get("sent"))

    faults = [StoreAway(start_ns=MS, until_ns=5_000 * MS), StoreStale()]

    assert run(body, *faults, world_size=1, max_restarts=1).values == [b"before the end"]
