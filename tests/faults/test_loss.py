"""Lost packets arrive by retransmission, and the data behind them waits."""

from __future__ import annotations

import pytest

from simdist.faults import LinkFault, LinkLoss, numbers_for, problems_of
from simdist.faults._link_fault import LinkEffect
from tests.faults.programs import MS, events_of, run, statuses
from tests.faults.test_jitter import lateness, streamed
from tests.faults.test_links import LATENCY_NS, SIZE_BYTES, START_NS, message_times

LOSS = LinkLoss(src=0, dst=1, share=0.1, both_ways=False)
WAITS_NS = (0, 200 * MS, 600 * MS, 1_400 * MS, 3_000 * MS)  # sent again 200 ms later, then 400 ms, and so on


def expected_lateness(loss: LinkLoss, count: int, gap_ns: int, until_ns: int | None = None) -> list[int]:
    """Return the lateness by an independent model: drawn whenever a message leaves, and no message overtakes."""
    draw = numbers_for(loss, [], seed=0)
    latest, found = 0, []
    for index in range(count):
        leaves_ns = [START_NS + index * gap_ns + wait_ns for wait_ns in WAITS_NS]
        over = [until_ns is not None and moment >= until_ns for moment in leaves_ns]
        passes = [
            done or draw("lost", 0, 1, moment) >= loss.share for moment, done in zip(leaves_ns, over, strict=True)
        ]
        latest = max(latest, leaves_ns[passes.index(True)])
        found.append(latest - START_NS - index * gap_ns)
    return found


def test_a_lost_message_arrives_by_a_retransmission() -> None:
    gap_ns = 1_000 * MS
    loss = LinkLoss(src=0, dst=1, share=0.3, both_ways=False)
    late = lateness(streamed(loss, count=40, gap_ns=gap_ns), gap_ns)

    assert late == expected_lateness(loss, 40, gap_ns)
    assert {0, 200 * MS, 600 * MS} <= set(late)


def test_what_leaves_behind_a_lost_message_waits_for_it() -> None:
    gap_ns = 30 * MS
    late = lateness(streamed(LOSS, count=60, gap_ns=gap_ns), gap_ns)

    assert late == expected_lateness(LOSS, 60, gap_ns)
    assert {200 * MS, 170 * MS, 140 * MS, 110 * MS} <= set(late)


def test_a_retransmission_after_the_end_of_the_fault_arrives() -> None:
    until_ns = START_NS + 150 * MS
    loss = LinkLoss(src=0, dst=1, share=1.0, until_ns=until_ns, both_ways=False)
    late = lateness(streamed(loss, count=6, gap_ns=40 * MS), 40 * MS)

    assert (
        late == expected_lateness(loss, 6, 40 * MS, until_ns) == [each * MS for each in (200, 200, 200, 200, 160, 120)]
    )


def test_a_word_of_a_receiver_can_be_lost_too() -> None:
    loss = LinkLoss(src=1, dst=0, share=1.0, until_ns=START_NS, both_ways=False)

    sent_ns = message_times(loss)[0]
    assert isinstance(sent_ns, int)
    assert sent_ns > START_NS + 190 * MS  # rank 1's notice of about 0 ms is sent again at 200 ms


def test_where_all_is_lost_both_ends_run_out_of_time() -> None:
    assert message_times(LinkLoss(src=0, dst=1, share=1.0)) == {
        0: "Timed out waiting 1000ms",
        1: "Timed out waiting 1000ms",
    }


def test_other_links_and_the_other_way_lose_nothing() -> None:
    loss = LinkLoss(src=0, dst=1, share=1.0, both_ways=False, optional=True)
    arrived_ns = START_NS + SIZE_BYTES + LATENCY_NS

    assert message_times(loss, source=0, target=2)[2] == arrived_ns
    assert message_times(loss, source=2, target=1)[1] == arrived_ns


def test_collectives_over_a_link_that_loses_packets_are_late_and_right() -> None:
    loss = LinkLoss(src=0, dst=1, share=0.3)
    clean, first, second = run(), run(loss), run(loss)

    assert statuses(first) == ["returned"] * 3
    assert first.digest == second.digest
    assert first.values[0][-1] - clean.values[0][-1] >= 200 * MS
    assert first.values != run(loss, seed=1).values
    (event,) = events_of(first, "fault")
    assert event.data["text"] == "a share of 0.3 of the packets between ranks 0 and 1 is lost"


def test_a_fault_of_ones_own_may_lose_packets() -> None:
    class Lossy(LinkFault):
        def effect_on(self, src: int, dst: int) -> LinkEffect | None:
            return LinkEffect(lost=0.5) if dst == 2 else None

    assert run(Lossy()).ok
    assert run(Lossy()).virtual_time_ns >= run().virtual_time_ns + 200 * MS


def test_waits_are_never_longer_than_two_minutes() -> None:
    effect = LinkEffect(lost=1.0)
    late_ns = effect.sent_again_ns(lambda *_: 0.0, 0, 1, 0, 1_000_000 * MS)

    waits_s = [0.2 * 2**index for index in range(10)]  # 0.2 to 102.4
    assert late_ns == round((sum(waits_s) + 7 * 120) * 1_000) * MS


@pytest.mark.parametrize(
    ("share", "problem"),
    [
        (0, "of a share of 0 nothing is lost"),
        (1.1, "1.1 is no share; expected a number from 0 to 1"),
        (-0.5, "-0.5 is no share; expected a number from 0 to 1"),
        ("1%", "expected a number, found the text '1%'"),
    ],
)
def test_a_loss_that_makes_no_sense_is_refused(share: float, problem: str) -> None:
    assert problems_of([LinkLoss(src=0, dst=1, share=share)], 2) == [f"faults[0].share: {problem}"]


def test_a_loss_is_reported_with_its_direction() -> None:
    assert LOSS.begins() == "a share of 0.1 of the packets from rank 0 to rank 1 is lost"
    assert LOSS.ends() == "packets from rank 0 to rank 1 are no longer lost"
    assert repr(LOSS) == "LinkLoss(src=0, dst=1, share=0.1, both_ways=False)"
