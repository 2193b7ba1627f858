from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.cluster import Network, build


def network(ranks: int = 4, **options: Any) -> Network:
    return Network(build(ranks, local_latency_ns=50_000, **options))


def test_an_undisturbed_message_takes_the_path_s_latency() -> None:
    net = network(hosts=2, latency_ns=80_000)

    assert net.latency_ns(0, 1, now_ns=5) == 50_000
    assert net.latency_ns(1, 2, now_ns=5) == 80_000
    assert net.open_from_ns(0, 3, now_ns=5) == 5
    assert not net.disturbed


def test_time_per_byte_is_the_reciprocal_of_the_bandwidth() -> None:
    net = network(hosts=2, bandwidth_bytes_per_s=250_000_000, local_bandwidth_bytes_per_s=4_000_000_000)

    assert net.path(0, 2).byte_ns == 4.0
    assert net.path(0, 1).byte_ns == 0.25


def test_a_delay_holds_for_its_direction_and_its_time_only() -> None:
    net = network()

    net.delay(0, 1, 7_000, start_ns=100, until_ns=200)

    assert [net.latency_ns(0, 1, now) for now in (99, 100, 199, 200)] == [50_000, 57_000, 57_000, 50_000]
    assert net.latency_ns(1, 0, 150) == 50_000
    assert net.latency_ns(0, 2, 150) == 50_000
    assert net.disturbed


def test_delays_on_one_link_add_up() -> None:
    net = network()

    net.delay(0, 1, 1_000)
    net.delay(0, 1, 2_000, start_ns=10)

    assert [net.latency_ns(0, 1, now) for now in (0, 10)] == [51_000, 53_000]


def test_a_cut_separates_different_sides_only() -> None:
    net = network(5)

    net.cut([(0, 1), (2, 3)])

    assert net.open_from_ns(0, 1, 9) == 9
    assert net.open_from_ns(0, 2, 9) is None
    assert net.open_from_ns(3, 1, 9) is None
    assert [net.open_from_ns(4, rank, 9) for rank in range(4)] == [9] * 4  # on no side: reaches everyone
    assert net.disturbed


def test_a_cut_that_heals_lets_messages_through_at_its_end() -> None:
    net = network()

    net.cut([(0,), (1,)], start_ns=100, until_ns=300)

    assert [net.open_from_ns(0, 1, now) for now in (99, 100, 299, 300)] == [99, 300, 300, 300]
    assert [net.disturbed_after(now) for now in (0, 299, 300)] == [True, True, False]


def test_a_condition_that_was_lifted_is_nothing_to_what_comes_later() -> None:
    net = network()

    net.lift(net.cut([(0,), (1,)]), now_ns=500)

    assert [net.disturbed_after(now) for now in (499, 500)] == [True, False]


def test_a_cut_for_good_behind_one_that_heals_never_opens() -> None:
    net = network()

    net.cut([(0,), (1,)], until_ns=100)
    net.cut([(0,), (1,)], start_ns=90)

    assert net.open_from_ns(0, 1, 10) is None


CUTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=6)


@settings(max_examples=100, deadline=None)
@given(cuts=CUTS, now=st.integers(0, 90))
def test_the_opening_is_the_first_instant_that_no_cut_covers(cuts: list[tuple[int, int]], now: int) -> None:
    net = network()
    for start, length in cuts:
        net.cut([(0,), (1,)], start_ns=start, until_ns=start + length)

    expected = next(t for t in range(now, 200) if not any(s <= t < s + length for s, length in cuts))

    assert net.open_from_ns(0, 1, now) == expected
