from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.c10d.backends.gloo._costs import allgather_ns, allreduce_ns, alltoall_ns, barrier_ns, reduce_ns, segments

MIB = 1 << 20
MESSAGE_NS = 100_000  # an empty message over a latency of 50 us: the notice that the receive is posted, then the data

# (elements, bytes per element, ranks) -> (segments, segments per rank, bytes per segment, elements per chunk)
GLOO_SEGMENTS = [
    (1, 4, 4, 8, 2, 4, 2),
    (10, 4, 3, 6, 2, 8, 4),
    (1000, 4, 4, 8, 2, 500, 250),
    (1001, 2, 8, 16, 2, 126, 126),
    (4097, 4, 5, 10, 2, 1640, 820),
    (1 << 20, 4, 2, 4, 2, 1048576, 524288),
    (1 << 21, 4, 2, 8, 4, 1048576, 1048576),
    (3145733, 4, 3, 15, 5, 838864, 1048580),
    (3145733, 8, 4, 28, 7, 898784, 786436),
]


@pytest.mark.parametrize(("count", "element", "ranks", "total", "per_rank", "size", "chunk"), GLOO_SEGMENTS)
def test_segments_are_those_of_gloo(
    count: int, element: int, ranks: int, total: int, per_rank: int, size: int, chunk: int
) -> None:
    cut = segments(count * element, element, ranks)

    assert cut == (total, per_rank, size)
    assert per_rank * size // element == chunk


@settings(max_examples=200, deadline=None)
@given(count=st.integers(1, 5 * MIB), element=st.sampled_from([1, 2, 4, 8]), ranks=st.integers(2, 40))
def test_segments_cover_the_payload_in_whole_elements(count: int, element: int, ranks: int) -> None:
    total, per_rank, size = segments(count * element, element, ranks)

    assert total == per_rank * ranks
    assert per_rank >= 2
    assert size % element == 0
    assert total * size >= count * element
    assert size <= MIB


def test_alone_nothing_costs_time() -> None:
    assert allreduce_ns(MIB, 4, 1, 50_000, 0.25) == 0
    assert allgather_ns(MIB, 1, 50_000, 0.25) == 0
    assert alltoall_ns(MIB, 1, 50_000, 0.25) == 0
    assert reduce_ns(MIB, 4, 1, 50_000, 0.25) == 0
    assert barrier_ns(1, 50_000) == 0


def test_an_empty_all_reduce_sends_nothing() -> None:
    assert allreduce_ns(0, 4, 8, 50_000, 0.25) == 0


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_a_barrier_takes_one_message_per_doubling(ranks: int, rounds: int) -> None:
    assert barrier_ns(ranks, 50_000) == rounds * MESSAGE_NS


def test_a_small_all_gather_takes_one_message_per_rank_passed() -> None:
    assert allgather_ns(1_000, 5, 50_000, 0.25) == pytest.approx(4 * MESSAGE_NS, rel=0.01)


def test_a_large_all_gather_is_bound_by_the_wire() -> None:
    assert allgather_ns(64 * MIB, 5, 50_000, 0.25) == pytest.approx(4 * 64 * MIB * 0.25, rel=0.01)


def test_an_all_to_all_takes_one_message_and_every_block() -> None:
    assert alltoall_ns(1_000, 5, 50_000, 0.25) == MESSAGE_NS + 4 * 250


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_small_all_reduce_passes_each_rank_but_its_own_twice(ranks: int) -> None:
    # With two segments in flight, each of the two phases takes one message for each rank on the way.
    assert allreduce_ns(8 * ranks, 4, ranks, 50_000, 0.25) == pytest.approx(2 * (ranks - 1) * MESSAGE_NS, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_large_all_reduce_is_bound_by_the_wire(ranks: int) -> None:
    size = 256 * MIB

    wire_ns = 2 * (ranks - 1) / ranks * size * 0.25

    assert allreduce_ns(size, 4, ranks, 50_000, 0.25) == pytest.approx(wire_ns, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(1, 1 << 24),
    more=st.integers(0, 1 << 20),
    ranks=st.integers(2, 64),
    latency_ns=st.integers(0, 1_000_000),
)
def test_more_latency_never_makes_a_collective_faster(size: int, more: int, ranks: int, latency_ns: int) -> None:
    for cost in (allgather_ns, alltoall_ns):
        assert cost(size, ranks, latency_ns + more, 0.25) >= cost(size, ranks, latency_ns, 0.25)
        assert cost(size + more, ranks, latency_ns, 0.25) >= cost(size, ranks, latency_ns, 0.25)
    assert allreduce_ns(size, 1, ranks, latency_ns + more, 0.25) >= allreduce_ns(size, 1, ranks, latency_ns, 0.25)
