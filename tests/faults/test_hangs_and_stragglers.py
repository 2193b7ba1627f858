from __future__ import annotations

import itertools
import os
import time

import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash, Hang, SlowRank
from simdist.result import RunResult
from tests.faults.programs import COMPUTE_NS, MS, ends, events_of, run, statuses

CLEAN = run()
STEP_ENDS: list[int] = CLEAN.values[0]
REDUCE_NS = STEP_ENDS[1] - STEP_ENDS[0] - COMPUTE_NS
START_NS = STEP_ENDS[0] - COMPUTE_NS - REDUCE_NS
LATE_NS = 1_000_000  # Gloo notices so much later that a wait has timed out


# -- hangs ----------------------------------------------------------------------------------------------------------


def test_a_rank_that_hangs_for_good_has_no_exit_code_and_peers_time_out() -> None:
    result = run(Hang(rank=1, at_ns=500_000), timeout_s=2)

    called_ns = START_NS + COMPUTE_NS
    hung = result.ranks[1]
    assert (hung.status, hung.exit_code, hung.ok) == ("hung", None, False)
    assert hung.waiting == "stopped by a fault, in sleep until 0.001200000 s"
    assert statuses(result) == ["raised", "hung", "raised"]
    # The rank that waits for nothing else times out first; the other gets its first part before it waits.
    ends_ns = sorted(rank.ended_ns - called_ns for rank in result.ranks[::2])
    assert ends_ns[0] == 2_000 * MS + LATE_NS
    assert 2_000 * MS + LATE_NS <= ends_ns[1] < 2_001 * MS + LATE_NS
    assert all("Timed out waiting 2000ms" in str(rank.exception) for rank in result.ranks[::2])
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (500_000, 1)
    assert event.data == {"fault": "hang", "text": "rank 1 hangs for good", "life": 0}


def test_with_the_ideal_backend_a_hang_leaves_all_waiting_but_no_deadlock() -> None:
    result = run(Hang(rank=1, at_ns=500_000), backend="sim")

    assert statuses(result) == ["hung", "hung", "hung"]
    assert result.deadlock is None
    assert result.ranks[0].waiting == "all_reduce #0 in group '0'"


def test_a_hang_that_ends_before_the_rank_is_needed_changes_no_time() -> None:
    result = run(Hang(rank=1, at_ns=START_NS + 100, duration_ns=COMPUTE_NS // 2))

    assert result.values == CLEAN.values
    (event,) = events_of(result, "fault")
    assert event.data["text"] == "rank 1 hangs for 0.5 ms"


def test_a_hang_in_a_sleep_ends_at_its_own_time() -> None:
    result = run(Hang(rank=1, at_ns=START_NS + 100, duration_ns=20 * MS))

    late_ns = START_NS + 100 + 20 * MS - (START_NS + COMPUTE_NS)
    assert result.ok
    assert result.values == [[end_ns + late_ns for end_ns in STEP_ENDS]] * 3


def test_a_hang_at_a_step_delays_the_step() -> None:
    result = run(Hang(rank=2, at_step=1, duration_ns=7 * MS))

    assert result.values == [[STEP_ENDS[0], STEP_ENDS[1] + 7 * MS, STEP_ENDS[2] + 7 * MS]] * 3


def test_a_hang_before_an_operation_delays_it() -> None:
    result = run(Hang(rank=0, op="all_reduce", nth=3, duration_ns=7 * MS))

    assert result.values == [[*STEP_ENDS[:2], STEP_ENDS[2] + 7 * MS]] * 3


def test_a_hang_after_an_operation_holds_up_its_rank_but_not_the_peers() -> None:
    result = run(Hang(rank=0, nth=2, when="after", duration_ns=7 * MS))

    assert result.ok
    # The next call of the rank is late, and then every rank is.
    assert [values[1] - STEP_ENDS[1] for values in result.values] == [7 * MS, 0, 0]
    assert [values[2] - STEP_ENDS[2] for values in result.values] == [7 * MS] * 3


def test_a_hang_in_an_operation_holds_up_all_until_its_data_leaves() -> None:
    result = run(Hang(rank=0, nth=2, when="during", duration_ns=7 * MS))

    late_ns = [values[1] - STEP_ENDS[1] for values in result.values]
    assert result.ok
    assert all(7 * MS <= late < 7 * MS + REDUCE_NS for late in late_ns)


def test_a_hung_rank_can_still_be_killed() -> None:
    result = run(Hang(rank=1, at_ns=500_000), Crash(rank=1, at_ns=900_000))

    assert ends(result)[1] == ("killed", -9, 900_000)


def test_a_hang_may_strike_more_than_once() -> None:
    hangs = [Hang(rank=1, nth=index + 1, duration_ns=MS) for index in range(3)]
    result = run(*hangs)

    assert result.values == [[end_ns + (index + 1) * MS for index, end_ns in enumerate(STEP_ENDS)]] * 3


def test_overlapping_hangs_end_with_the_last() -> None:
    def body() -> int:
        time.sleep(0.001)
        return time.monotonic_ns()

    result = simdist.run(
        body,
        world_size=1,
        faults=[Hang(rank=0, at_ns=10, duration_ns=5 * MS), Hang(rank=0, at_ns=20, duration_ns=9 * MS)],
    )

    assert result.values == [20 + 9 * MS]


def test_the_connections_of_a_hung_rank_stay_open() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        tensor = torch.zeros(1)
        if dist.get_rank() == 0:
            dist.recv(tensor, 1)
        else:
            time.sleep(0.001)
            dist.send(torch.ones(1), 0)
        return tensor.item()

    result = simdist.run(body, world_size=2, faults=[Hang(rank=1, at_ns=500_000, duration_ns=1_000 * MS)])

    assert result.values == [1.0, 0.0]
    assert result.virtual_time_ns > 1_000 * MS


# -- stragglers -----------------------------------------------------------------------------------------------------


def test_every_operation_of_a_slow_rank_starts_late() -> None:
    result = run(SlowRank(rank=1, delay_ns=3 * MS))

    assert result.values == [[end_ns + (index + 1) * 3 * MS for index, end_ns in enumerate(STEP_ENDS)]] * 3
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (0, 1)
    assert event.data == {"fault": "slow_rank", "text": "rank 1 starts each operation 3 ms late", "life": 0}


def test_two_slow_ranks_are_slow_side_by_side_two_delays_of_one_add_up() -> None:
    beside = run(SlowRank(rank=1, delay_ns=3 * MS), SlowRank(rank=2, delay_ns=2 * MS))
    twice = run(SlowRank(rank=1, delay_ns=3 * MS), SlowRank(rank=1, delay_ns=2 * MS))

    assert beside.values == [[end_ns + (index + 1) * 3 * MS for index, end_ns in enumerate(STEP_ENDS)]] * 3
    assert twice.values == [[end_ns + (index + 1) * 5 * MS for index, end_ns in enumerate(STEP_ENDS)]] * 3


def test_a_rank_is_slow_from_one_time_until_another() -> None:
    second_call_ns = STEP_ENDS[1] - REDUCE_NS
    result = run(SlowRank(rank=0, delay_ns=3 * MS, start_ns=second_call_ns, until_ns=second_call_ns + 1))

    assert result.values == [[STEP_ENDS[0], STEP_ENDS[1] + 3 * MS, STEP_ENDS[2] + 3 * MS]] * 3
    (event,) = events_of(result, "fault")
    assert event.time_ns == second_call_ns


def test_a_slow_time_that_ends_before_the_first_operation_changes_nothing() -> None:
    assert run(SlowRank(rank=0, delay_ns=3 * MS, until_ns=START_NS + 5)).values == CLEAN.values


def test_a_slow_time_that_starts_after_the_end_makes_no_run_longer() -> None:
    result = run(SlowRank(rank=0, delay_ns=3 * MS, start_ns=3_600_000 * MS))

    assert result.virtual_time_ns == CLEAN.virtual_time_ns


def lateness(result: RunResult) -> list[int]:
    """Return how much later each step ends than without faults, beyond the lateness of the steps before it."""
    late = [end_ns - clean_ns for end_ns, clean_ns in zip(result.values[0], CLEAN.values[0], strict=True)]
    return [now_ns - before_ns for before_ns, now_ns in itertools.pairwise([0, *late])]


def test_each_operation_draws_how_much_later_it_starts() -> None:
    jitter = SlowRank(rank=1, delay_ns=3 * MS, jitter_ns=2 * MS)
    ones = [lateness(run(jitter, seed=seed)) for seed in (0, 0, 1)]

    assert ones[0] == ones[1] != ones[2]
    assert len({*ones[0], *ones[2]}) == 6
    assert all(3 * MS <= late_ns <= 5 * MS for late_ns in (*ones[0], *ones[2]))
    (event,) = events_of(run(jitter), "fault")
    assert event.data["text"] == "rank 1 starts each operation 3 ms and up to 2 ms late"


def test_a_share_of_the_operations_starts_much_later() -> None:
    tail = SlowRank(rank=1, tail_share=0.5, tail_ns=7 * MS)
    late_ns = [each_ns for seed in range(10) for each_ns in lateness(run(tail, seed=seed))]

    assert set(late_ns) == {0, 7 * MS}
    assert 8 <= late_ns.count(7 * MS) <= 22
    assert lateness(run(SlowRank(rank=1, tail_share=1, tail_ns=7 * MS))) == [7 * MS] * 3
    (event,) = events_of(run(tail), "fault")
    assert event.data["text"] == "rank 1 starts 50 % of its operations 7 ms late"


def test_each_life_draws_its_own_delays() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        began_ns = time.monotonic_ns()
        dist.all_reduce(torch.ones(1))
        took_ns[dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])] = time.monotonic_ns() - began_ns
        time.sleep(1)

    took_ns: dict[tuple[int, int], int] = {}
    faults = [SlowRank(rank=1, jitter_ns=50 * MS), Crash(rank=1, at_ns=500 * MS)]
    simdist.run(body, world_size=2, faults=faults, max_restarts=1)

    assert sorted(took_ns) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert took_ns[1, 0] > MS < took_ns[1, 1] != took_ns[1, 0]


def test_messages_of_a_slow_rank_start_late_too() -> None:
    def body() -> int:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.zeros(1), 0)
        return time.monotonic_ns()

    clean = simdist.run(body, world_size=2).values
    slow = simdist.run(body, world_size=2, faults=[SlowRank(rank=0, delay_ns=5 * MS)]).values

    assert slow[0] >= clean[0] + 5 * MS - REDUCE_NS
    assert slow[1] > 5 * MS


def test_a_slow_rank_still_crashes_at_its_operation() -> None:
    result = run(SlowRank(rank=1, delay_ns=3 * MS), Crash(rank=1, nth=2))

    assert result.ranks[1].status == "killed"
    assert result.values[0] is None


def test_a_slow_rank_is_late_for_the_operation_in_which_it_hangs() -> None:
    slow = SlowRank(rank=0, delay_ns=3 * MS)
    result = run(slow, Hang(rank=0, nth=3, when="after", duration_ns=MS))

    late = [end_ns + (index + 1) * 3 * MS for index, end_ns in enumerate(STEP_ENDS)]
    assert result.values == [[*late[:2], late[2] + MS], late, late]
