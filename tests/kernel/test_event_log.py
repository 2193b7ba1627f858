from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.kernel import EventLog

CHUNK = 4096

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
records = st.builds(
    lambda time_ns, kind, rank, rest: (time_ns, kind, rank, *rest),
    st.integers(0, 2**62),
    st.text(max_size=8),
    st.integers(-1, 100),
    st.lists(values, max_size=3),
)


def log_of(*entries: tuple[Any, ...]) -> EventLog:
    log = EventLog()
    for entry in entries:
        log.add(entry)
    return log


def numbered(count: int) -> list[tuple[Any, ...]]:
    return [(index, "issue", index % 4, "all_reduce", (index, 3)) for index in range(count)]


@settings(max_examples=15)  # of many records each
@given(st.lists(records, max_size=20))
def test_equal_streams_have_equal_digests(entries: list[tuple[Any, ...]]) -> None:
    # Equal content, but different objects, and nothing is interned.
    others = [tuple("".join(list(v)) if isinstance(v, str) else v for v in entry) for entry in entries]

    assert log_of(*entries).digest() == log_of(*others).digest()


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_any_change_changes_the_digest(entries: list[tuple[Any, ...]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    changed = list(entries)
    changed[index] = (entries[index][0] + 1, *entries[index][1:])

    assert log_of(*entries).digest() != log_of(*changed).digest()
    assert log_of(*entries).digest() != log_of(*entries[:-1]).digest()


def test_values_of_another_type_are_other_values() -> None:
    digests = {log_of((0, "x", 0, value)).digest() for value in (0, False, 0.0, -0.0, None, "", b"", ())}

    assert len(digests) == 8


def test_a_digest_has_32_hexadecimal_digits() -> None:
    digest = EventLog().digest()

    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("every", [1, 1000, CHUNK])
def test_settling_changes_no_digest(count: int, every: int) -> None:
    settled = EventLog()
    for index, entry in enumerate(numbered(count)):
        settled.add(entry)
        if index % every == 0:
            settled.settle()

    assert settled.digest() == log_of(*numbered(count)).digest()


@pytest.mark.parametrize("count", [10, CHUNK, CHUNK + 10])
def test_asking_for_the_digest_on_the_way_changes_no_digest(count: int) -> None:
    asked = EventLog()
    for index, entry in enumerate(numbered(2 * CHUNK + 7)):
        asked.add(entry)
        if index == count:
            asked.digest()

    assert asked.digest() == log_of(*numbered(2 * CHUNK + 7)).digest()


def test_asking_twice_gives_the_same_digest() -> None:
    log = log_of(*numbered(10))

    assert log.digest() == log.digest()


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_records_beyond_the_limit_are_forgotten_but_counted_and_digested(every: int) -> None:
    entries = numbered(10 * CHUNK)
    log = EventLog(keep=100)
    for index, entry in enumerate(entries):
        log.add(entry)
        if index % every == 0:
            log.settle()

    assert len(log.records) <= 100 + 2 * CHUNK
    assert log.records[:100] == entries[:100]
    assert len(log) == len(entries)
    assert log.dropped == len(entries) - len(log.records)
    assert log.digest() == log_of(*entries).digest()
