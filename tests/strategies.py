"""Hypothesis strategies that several test modules share."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from simdist.faults import Crash, Fault, Hang, Hold, LinkDelay, Partition, Raise, SlowRank, StoreDelay, StoreLost

__all__ = ["delays_ns", "fault_schedules", "faults", "seeds", "world_sizes"]

seeds = st.integers(0, 2**64 - 1)
world_sizes = st.integers(1, 5)
delays_ns = st.integers(0, 5_000_000)

_times = st.integers(0, 8_000_000)
_operations = st.sampled_from([None, "all_reduce", "broadcast", "barrier"])


def faults(world_size: int) -> SearchStrategy[Fault]:
    """Faults that fit a world of `world_size` ranks."""
    ranks = st.integers(0, world_size - 1)
    triggers = st.one_of(
        st.fixed_dictionaries({"at_ns": _times}),
        st.fixed_dictionaries({"at_step": st.integers(0, 3)}),
        st.fixed_dictionaries(
            {
                "op": _operations,
                "nth": st.integers(1, 4),
                "when": st.sampled_from(["before", "during", "after"]),
            }
        ),
    )
    kinds: list[SearchStrategy[Fault]] = [
        st.builds(lambda rank, trigger: Crash(rank=rank, **trigger), ranks, triggers),
        st.builds(
            lambda rank, trigger, duration_ns: Hang(rank=rank, duration_ns=duration_ns, **trigger),
            ranks,
            triggers,
            st.none() | delays_ns,
        ),
        st.builds(
            lambda rank, op, nth, error: Raise(rank=rank, op=op, nth=nth, error=error),
            ranks,
            _operations,
            st.integers(1, 4),
            st.sampled_from(["RuntimeError", "DistStoreError"]),
        ),
        st.builds(
            lambda rank, delay_ns, start_ns: StoreDelay(rank=rank, delay_ns=delay_ns, start_ns=start_ns),
            st.none() | ranks,
            delays_ns,
            _times,
        ),
        st.builds(lambda at_ns: StoreLost(at_ns=at_ns), _times),
        st.builds(
            lambda rank, delay_ns, start_ns: SlowRank(rank=rank, delay_ns=delay_ns, start_ns=start_ns),
            ranks,
            delays_ns,
            _times,
        ),
    ]
    if world_size > 1:
        pairs = st.permutations(range(world_size)).map(lambda order: (order[0], order[1]))
        kinds.append(
            st.builds(
                lambda pair, delay_ns, both: LinkDelay(src=pair[0], dst=pair[1], delay_ns=delay_ns, both_ways=both),
                pairs,
                delays_ns,
                st.booleans(),
            )
        )
        kinds.append(
            st.builds(
                lambda pair, start_ns, length_ns, both: Hold(
                    src=pair[0],
                    dst=pair[1],
                    start_ns=start_ns,
                    until_ns=None if length_ns is None else start_ns + length_ns,
                    both_ways=both,
                ),
                pairs,
                _times,
                st.none() | st.integers(1, 5_000_000),
                st.booleans(),
            )
        )
        kinds.append(
            st.builds(
                lambda cut, start_ns, length_ns: Partition(
                    groups=(tuple(range(cut)), tuple(range(cut, world_size))),
                    start_ns=start_ns,
                    until_ns=None if length_ns is None else start_ns + length_ns,
                ),
                st.integers(1, world_size - 1),
                _times,
                st.none() | st.integers(1, 5_000_000),
            )
        )
    return st.one_of(kinds)


def fault_schedules(world_size: int) -> SearchStrategy[list[Fault]]:
    """Up to three faults in one run."""
    return st.lists(faults(world_size), max_size=3)
