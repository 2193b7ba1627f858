"""Hypothesis strategies for the c10d tests: collectives with arrivals, network costs, store histories."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from simdist.c10d.backends.gloo import _schedules as _programs
from simdist.c10d.engine import Program

__all__ = ["Case", "FakeCosts", "UnsteadyCosts", "cases", "costs", "store_steps"]


@dataclass(frozen=True, slots=True)
class FakeCosts:
    """A network on which every pair has the same costs, and is closed to data until `opens_ns` (None: forever)."""

    latency: int = 50_000
    per_byte: float = 0.25
    opens_ns: int | None = 0

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        return self.latency

    def byte_ns(self, source: int, target: int) -> float:
        """Transfer time per byte."""
        return self.per_byte

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through."""
        return None if self.opens_ns is None else max(now_ns, self.opens_ns)


@dataclass(frozen=True, slots=True)
class UnsteadyCosts(FakeCosts):
    """A network whose latency differs at every moment, and between every two ranks."""

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        return self.latency + zlib.crc32(f"{source} {target} {now_ns}".encode()) % 1_000_000

    def through_ns(self, source: int, target: int, size_bytes: float, start_ns: int, end_ns: int) -> int:
        """Return when a message is through; some links are slow."""
        return max(end_ns, start_ns + round(size_bytes)) if (source + target) % 3 == 1 else end_ns


@dataclass(frozen=True, slots=True)
class Case:
    """A collective of `ranks` with a payload of `size` bytes: `program(rank)` gives each rank's steps."""

    name: str
    ranks: int
    size: int
    root: int

    def program(self, rank: int) -> Program:
        """Gloo's schedule of this rank."""
        ranks, size, root = self.ranks, self.size, self.root
        table: dict[str, Callable[[], Program]] = {
            "all_reduce": lambda: _programs.allreduce(rank, ranks, size, 4),
            "reduce": lambda: _programs.reduce(rank, ranks, size, 4, root),
            "broadcast": lambda: _programs.broadcast(rank, ranks, size, root),
            "all_gather": lambda: _programs.allgather(rank, ranks, size),
            # Rank s sends (s + 2 t) % 5 units to rank t.
            "all_to_all": lambda: _programs.alltoall(
                rank,
                ranks,
                [(rank + 2 * q) % 5 * size for q in range(ranks)],
                [(q + 2 * rank) % 5 * size for q in range(ranks)],
            ),
            "gather": lambda: _programs.gather(rank, ranks, size, root),
            "scatter": lambda: _programs.scatter(rank, ranks, size, root),
            "barrier": lambda: _programs.barrier(rank, ranks),
        }
        return table[self.name]()

    @property
    def needs_everyone(self) -> bool:
        """True if no rank can be done before all have arrived."""
        return self.name == "barrier" or (self.name in ("all_reduce", "all_gather") and self.size > 0)


NAMES = ("all_reduce", "reduce", "broadcast", "all_gather", "all_to_all", "gather", "scatter", "barrier")
SIZES = st.one_of(st.integers(0, 80), st.integers(0, 5 << 20)).map(lambda size: size // 4 * 4)


@st.composite
def cases(draw: st.DrawFn, most_ranks: int = 9) -> Case:
    """Draw any collective; sizes are multiples of four bytes, some of them above Gloo's largest segment."""
    ranks = draw(st.integers(1, most_ranks))
    return Case(draw(st.sampled_from(NAMES)), ranks, draw(SIZES), draw(st.integers(0, ranks - 1)))


costs = st.builds(
    FakeCosts,
    latency=st.integers(0, 1_000_000),
    per_byte=st.sampled_from([0.0, 0.25, 8.0]),
    opens_ns=st.integers(0, 5_000_000),
)

KEYS = st.sampled_from(["a", "b", "c"])
BYTES = st.binary(max_size=3)
NUMBERS = st.integers(-5, 5)

# One call on a store: its name and arguments.
store_steps = st.one_of(
    st.tuples(st.just("set"), KEYS, BYTES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("append"), KEYS, BYTES),
    st.tuples(st.just("compare_set"), KEYS, BYTES, BYTES),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("check"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("wait"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("count"), NUMBERS),
    st.tuples(st.just("multi_set"), st.dictionaries(KEYS, BYTES, max_size=3)),
    st.tuples(st.just("multi_get"), st.lists(KEYS, max_size=3)),
    st.tuples(st.just("queue_push"), KEYS, BYTES),
    st.tuples(st.just("queue_pop"), KEYS),
    st.tuples(st.just("queue_len"), KEYS),
    st.tuples(st.just("num_keys")),
    st.tuples(st.just("list_keys")),
)
