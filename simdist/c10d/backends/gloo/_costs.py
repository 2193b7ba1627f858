"""Closed forms for collectives on an idle, symmetric network whose members all arrive at once.

They equal the durations of Gloo's message schedules when every message is followed, to within a few percent where
segments are clipped and exactly elsewhere. (`simdist.c10d` follows the messages as soon as anything is out of the
ordinary.) A message costs two latencies unless its receiver was early: a notice that the receive is posted, then the
data. `latency_ns` and `byte_ns` are those of the slowest pair that the algorithm uses.
"""

from __future__ import annotations

__all__ = ["allgather_ns", "allreduce_ns", "alltoall_ns", "barrier_ns", "reduce_ns", "reduce_segments", "segments"]

MAX_SEGMENT = 1 << 20


def segments(size_bytes: int, element_bytes: int, ranks: int) -> tuple[int, int, int]:
    """Return how Gloo cuts a ring all-reduce: number of segments, segments per rank, bytes per segment.

    Source: gloo/allreduce.cc. Gloo sends nothing for a payload of zero bytes; the numbers are then meaningless.
    """
    largest = element_bytes * max(1, MAX_SEGMENT // element_bytes)
    count = _up_to_multiple(max(-(-size_bytes // largest), 2 * ranks), ranks)
    segment = _up_to_multiple(-(-size_bytes // count), element_bytes)
    return count, count // ranks, segment


def reduce_segments(size_bytes: int, element_bytes: int, ranks: int) -> tuple[int, int, int]:
    """Return what `segments` returns, for a reduce to one rank (gloo/reduce.cc)."""
    largest = element_bytes * max(1, MAX_SEGMENT // element_bytes)
    segment = _up_to_multiple(min(-(-size_bytes // (2 * ranks)), largest), element_bytes)
    count = _up_to_multiple(max(-(-size_bytes // segment), 2 * ranks), ranks)
    return count, count // ranks, segment


def allreduce_ns(size_bytes: int, element_bytes: int, ranks: int, latency_ns: int, byte_ns: float) -> int:
    """Segmented ring reduce-scatter, then ring all-gather, two segments in flight."""
    if ranks == 1 or size_bytes == 0:
        return 0
    count, per_rank, segment = segments(size_bytes, element_bytes, ranks)
    steps = count - per_rank
    wire_ns = segment * byte_ns
    chunks = -(-size_bytes // (per_rank * segment))  # that are not empty
    if chunks < ranks:
        hops = 2 * ranks - 2 + chunks + max(0, 2 * chunks - ranks)
        return round(hops * latency_ns + 2 * steps * wire_ns * chunks / ranks)
    return round(2 * _ring_ns(steps, latency_ns, wire_ns))


def reduce_ns(size_bytes: int, element_bytes: int, ranks: int, latency_ns: int, byte_ns: float) -> int:
    """Ring reduce-scatter, then every chunk goes straight to the root."""
    if ranks == 1 or size_bytes == 0:
        return 0
    count, per_rank, segment = reduce_segments(size_bytes, element_bytes, ranks)
    chunks = -(-size_bytes // (per_rank * segment))
    last_ns = 2 * latency_ns + per_rank * segment * byte_ns
    if chunks < ranks:
        hops = ranks + (chunks if chunks > 1 else 0)
        return round(hops * latency_ns + 2 * chunks * per_rank * segment * byte_ns)
    return round(_ring_ns(count - 2, latency_ns, segment * byte_ns) + last_ns)


def allgather_ns(block_bytes: int, ranks: int, latency_ns: int, byte_ns: float) -> int:
    """Ring, each block cut in two halves, two in flight."""
    if ranks == 1:
        return 0
    return round(_ring_ns(2 * (ranks - 1), latency_ns, block_bytes / 2 * byte_ns))


def alltoall_ns(block_bytes: int, ranks: int, latency_ns: int, byte_ns: float) -> int:
    """All messages are posted at once; those of one rank go out one after the other."""
    if ranks == 1:
        return 0
    return round(2 * latency_ns + (ranks - 1) * block_bytes * byte_ns)


def barrier_ns(ranks: int, latency_ns: int) -> int:
    """Dissemination."""
    return (ranks - 1).bit_length() * 2 * latency_ns


def _ring_ns(steps: int, latency_ns: int, wire_ns: float) -> float:
    """`steps` consecutive segments around a ring, two in flight: bound by the wire or by the latency."""
    return steps * max(wire_ns, latency_ns + wire_ns / 2) + min(2 * latency_ns, wire_ns)


def _up_to_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
