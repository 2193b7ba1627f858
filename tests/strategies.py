"""Hypothesis strategies that several test modules share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from simdist.faults import (
    KINDS,
    Crash,
    Fault,
    Hang,
    Hold,
    HostCrash,
    LinkDelay,
    Partition,
    Raise,
    Signal,
    SlowRank,
    StoreDelay,
    StoreLost,
)

__all__ = [
    "delays_ns",
    "event_lines",
    "fault_fields",
    "fault_schedules",
    "faults",
    "odd_arguments",
    "odd_values",
    "plain_arguments",
    "scenario_tables",
    "seeds",
    "world_sizes",
]

seeds = st.integers(0, 2**64 - 1)
world_sizes = st.integers(1, 5)
delays_ns = st.integers(0, 5_000_000)

_times = st.integers(0, 8_000_000)
_operations = st.sampled_from([None, "all_reduce", "broadcast", "barrier"])


def faults(world_size: int) -> SearchStrategy[Fault]:
    """Draw faults that fit a world of `world_size` ranks."""
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
            lambda rank, trigger, down_ns: HostCrash(rank=rank, down_ns=down_ns, **trigger),
            ranks,
            triggers,
            st.none() | st.integers(0, 5_000_000),
        ),
        st.builds(
            lambda rank, trigger, duration_ns: Hang(rank=rank, duration_ns=duration_ns, **trigger),
            ranks,
            triggers,
            st.none() | delays_ns,
        ),
        st.builds(
            lambda rank, trigger, signal: Signal(rank=rank, signal=signal, **trigger),
            ranks,
            triggers,
            st.sampled_from(["SIGTERM", "SIGUSR1", "SIGCHLD"]),
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
    """Draw up to three faults for one run."""
    return st.lists(faults(world_size), max_size=3)


# -- input that may be anything -------------------------------------------------------------------------------------

_words = st.sampled_from(
    ["", "x", "all_reduce", "isend", "before", "every", "3ms", "1GB/s", "gloo", "SIGKILL", "job:work"]
)
_numbers = st.sampled_from([-1, 0, 1, 2, 3, 255, 2**31, 2**63 - 1, 2**63, 10**30])
_texts = st.text(st.characters(), max_size=8)

# Values that a file can express.
odd_values: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _numbers | st.integers() | st.floats() | _words | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words | _texts, inner, max_size=3),
    max_leaves=6,
)


class _Loud:
    """An object without a repr: asking for it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


_PYTHONS = [object, b"x", 1j, _Loud(), [_Loud()], np.int64(1), np.float32(1), np.arange(2), np.array(1), len]
_ARGUMENTS = (
    *("world_size", "args", "kwargs", "backend", "seed", "cluster", "faults", "max_restarts", "env", "argv"),
    *("policy", "strict", "record_results", "stall_s", "replay", "nprocs", "join", "world_siz"),
)

# Arguments of `simdist.run` and its siblings.
odd_arguments: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(_ARGUMENTS), odd_values | st.sampled_from(_PYTHONS)
)

_KEYS = (
    *("title", "world_size", "seed", "backend", "policy", "max_restarts", "strict", "time_scale", "portable", "faults"),
    *("workload", "cluster", "env", "expect", "world_sise"),
)
_SECTION_KEYS = (
    *("target", "args", "kwargs", "hosts", "latency", "calibration", "kind", "rank", "at", "op", "nth", "life"),
    *("groups", "delay", "outcomes", "exception", "equal_values", "min_values", "checkpoint", "max_events"),
)
_sections = st.dictionaries(st.sampled_from(_SECTION_KEYS), odd_values, max_size=5)

# Scenario files: some valid, most not.
scenario_tables: SearchStrategy[dict[str, Any]] = st.builds(
    lambda fine, odd: {**fine, **odd},
    st.just({"world_size": 2, "workload": {"target": "job:work"}}),
    st.dictionaries(st.sampled_from(_KEYS), odd_values | _sections | st.lists(_sections, max_size=2), max_size=4),
)


@st.composite
def fault_fields(draw: st.DrawFn) -> tuple[type[Fault], dict[str, Any]]:
    """Draw a kind of fault, and values for its fields that both a file and Python can express; many are wrong."""
    kind: type[Fault] = draw(st.sampled_from(sorted(KINDS.values(), key=lambda each: each.kind)))
    values = {
        field.name: draw(st.booleans() | _numbers | _words | st.just([[0], [1]]))
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING or draw(st.integers(0, 3)) == 0
    }
    # A duration is a text with a unit in a file, and nanoseconds in Python.
    return kind, {name: 5 if name.endswith("_ns") and isinstance(each, str) else each for name, each in values.items()}


_plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab'\"\\\n", max_size=4) | st.sampled_from([0.5, -1e30]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text("ab", max_size=2), inner)
    ),
    max_leaves=6,
)

# Arguments of `simdist.run` that can be written down.
plain_arguments: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"world_size": st.integers(1, 3), "seed": seeds},
    optional={
        "args": st.lists(_plain_values, max_size=3),
        "kwargs": st.dictionaries(st.sampled_from(["a", "b"]), _plain_values),
        "backend": st.sampled_from(["gloo", "sim"]),
        "policy": st.sampled_from(["fifo", "random"]),
        "max_restarts": st.integers(0, 1),
        "env": st.none() | st.dictionaries(st.sampled_from(["A", "B"]), st.text("ab =", max_size=3)),
        "argv": st.none() | st.lists(st.text("ab -", max_size=3), max_size=2),
        "strict": st.none() | st.booleans(),
        "record_results": st.booleans(),
    },
)

_KINDS = (
    "issue",
    "complete",
    "error",
    "exit",
    "start",
    "restart",
    "group",
    "sleep",
    "delay",
    "fault",
    "deadlock",
    "odd",
)
_FIELDS = (
    *("op", "group", "seq", "ranks", "desc", "peer", "shape", "dtype", "message", "error", "cycle", "text", "fault"),
    *("duration_ns", "begin_ns", "async_op", "life", "odd"),
)


@st.composite
def event_lines(draw: st.DrawFn) -> str:
    """Draw lines of events: most of them valid, some with a value of another type."""
    wrong = draw(st.booleans())
    lines = []
    for _ in range(draw(st.integers(1, 5))):
        good: dict[str, Any] = {
            **{name: draw(st.sampled_from(["all_reduce", "send", "0"])) for name in ("op", "group", "text", "fault")},
            "seq": draw(st.integers(0, 2)),
            "ranks": [0, 1],
            "peer": draw(st.integers(-1, 2)),
            "shape": [2],
            "cycle": ["rank 0"],
            "duration_ns": draw(st.integers(0, 10**12)),
            "async_op": draw(st.booleans()),
        }
        data = {name: value for name, value in good.items() if draw(st.booleans())}
        if wrong:
            data |= draw(st.dictionaries(st.sampled_from(_FIELDS), odd_values, max_size=2))
        time_ns: Any = draw(odd_values if wrong else st.sampled_from([0, 5, 10**9, 2**63 - 1]))
        record = {
            "time_ns": time_ns,
            "kind": draw(st.sampled_from(_KINDS)),
            "rank": draw(st.integers(-1, 2)),
            "data": data,
        }
        try:
            lines.append(json.dumps(record))
        except ValueError:  # a number that Python can't write
            lines.append("{}")
    return "\n".join(lines)
