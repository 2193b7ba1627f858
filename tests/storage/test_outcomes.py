"""The possible outcomes of a disk after a crash are exactly those of an independent machine."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simdist.kernel import stream
from simdist.storage import PROFILES, Disk, Image, Inode
from tests.storage.by_hand import BLOCK, Call, Held, possible

RULES = ("ext4", "xfs", "btrfs", "posix")
_NAMES = st.sampled_from("ab")
_CALLS = st.one_of(
    st.tuples(st.just("write"), _NAMES, st.integers(0, 3), st.sampled_from([b"x", b"yz"])),
    st.tuples(st.sampled_from(["resize", "allocate"]), _NAMES, st.integers(0, 3)),
    st.tuples(st.sampled_from(["create", "unlink", "fsync", "fdatasync", "close"]), _NAMES),
    st.just(("rename", "a", "b")),
    st.just(("exchange", "a", "b")),
    st.just(("unnamed", "#")),
    st.tuples(st.just("write"), st.just("#"), st.integers(0, 1), st.sampled_from([b"x", b"yz"])),
    st.tuples(st.sampled_from(["fsync", "fdatasync"]), st.just("#")),
    st.tuples(st.just("link"), st.sampled_from("a#"), st.just("b")),
    st.just(("fsync dir",)),
)


def _sensible(calls: list[Call]) -> list[Call]:
    """Return those calls that a real file system would accept."""
    there: dict[str, int] = {}  # names, and their files
    kept: list[Call] = []
    for call in calls:
        what, *rest = call
        if (what in ("create", "unnamed")) == bool(rest and rest[0] in there) and what != "fsync dir":
            continue
        if what == "exchange" and rest[1] not in there:
            continue
        if len(rest) == 2 and there.get(rest[1]) == there[rest[0]]:
            continue  # two names of one file
        if what == "link" and rest[1] in there:
            continue
        kept.append(call)
        if what in ("create", "unnamed"):
            there[rest[0]] = len(kept)
        elif what == "link":
            there[rest[1]] = there[rest[0]]
        elif what == "exchange":
            there[rest[0]], there[rest[1]] = there[rest[1]], there[rest[0]]
        elif what in ("unlink", "rename"):
            number = there.pop(rest[0])
            there.update(dict.fromkeys(rest[1:], number))
    return kept


def _disk(rule: str, program: list[Call]) -> Disk:
    disk = Disk(dataclasses.replace(PROFILES[rule], block_bytes=BLOCK))
    unnamed: dict[str, Inode] = {}
    for what, *rest in program:
        file = unnamed.get(rest[0]) or disk.find(rest[0]) if rest and what != "create" else None
        match what:
            case "create":
                disk.create(rest[0])
            case "unnamed":
                unnamed[rest[0]] = disk.create_unnamed()
            case "exchange":
                disk.exchange(*rest)
            case "link":
                assert file is not None
                disk.link(file, rest[1])
            case "rename":
                disk.rename(*rest)
            case "unlink":
                disk.remove(rest[0])
            case "fsync dir":
                root = disk.find("")
                assert root is not None
                disk.sync_folder(root)
            case _:
                assert file is not None
                if what == "write":
                    disk.write(file, *rest[1:])
                elif what in ("resize", "allocate"):
                    (disk.resize if what == "resize" else disk.allocate)(file, rest[1])
                elif what == "close":
                    disk.close(file)
                else:
                    disk.sync_file(file, data_only=what == "fdatasync")
    return disk


def _held(disk: Disk, image: Image) -> Held:
    return frozenset((path, data or b"") for path, data in disk.contents(image).items())


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(st.lists(_CALLS, max_size=5).map(lambda calls: _sensible([("create", "a"), *calls])))
@example([("create", "a"), ("write", "a", 0, b"yz"), ("fsync", "a"), ("resize", "a", 0), ("write", "a", 0, b"x")])
@example([("create", "b"), ("fsync", "b"), ("create", "a"), ("write", "a", 0, b"yz"), ("rename", "a", "b")])
@example([("create", "a"), ("write", "a", 3, b"x"), ("resize", "a", 1), ("write", "a", 2, b"yz")])
@example([("create", "b"), ("create", "a"), ("allocate", "a", 1), ("write", "a", 0, b"yz"), ("rename", "a", "b")])
@example([("create", "b"), ("create", "a"), ("write", "a", 3, b"x"), ("resize", "a", 1), ("rename", "a", "b")])
@example([("create", "a"), ("write", "a", 0, b"yz"), ("resize", "a", 1), ("write", "a", 0, b"x")])
@example([("create", "a"), ("create", "b"), ("write", "a", 0, b"x"), ("write", "b", 0, b"x"), ("fsync", "b")])
def test_outcomes_are_those_that_a_file_system_can_bring_about(rule: str, program: list[Call]) -> None:
    disk = _disk(rule, program)

    found = {_held(disk, image) for image in disk.outcomes()}

    assert found == possible(rule, program)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30, deadline=None)
@given(
    st.lists(_CALLS, max_size=5).map(lambda calls: _sensible([("create", "a"), *calls])),
    st.integers(0, 2**32 - 1),
)
def test_a_drawn_outcome_is_one_of_them(rule: str, program: list[Call], seed: int) -> None:
    disk = _disk(rule, program)
    numbers = stream(seed, "disk")

    drawn = disk.drawn(lambda below: int(numbers.integers(below)))

    assert _held(disk, drawn) in possible(rule, program)


@pytest.mark.parametrize("rule", RULES)
def test_every_outcome_is_drawn_some_time(rule: str) -> None:
    program: list[Call] = [("create", "a"), ("write", "a", 0, b"yz"), ("fsync", "a"), ("write", "a", 1, b"yz")]
    program += [("create", "b"), ("rename", "a", "b")]
    disk = _disk(rule, program)
    numbers = stream(0, "disk")

    drawn = {_held(disk, disk.drawn(lambda below: int(numbers.integers(below)))) for _ in range(3000)}

    assert drawn == possible(rule, program)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30, deadline=None)
@given(st.lists(_CALLS, max_size=5).map(lambda calls: _sensible([("create", "a"), *calls])))
def test_after_a_crash_all_that_is_left_is_durable(rule: str, program: list[Call]) -> None:
    for index in range(3):
        disk = _disk(rule, program)
        image = next(itertools.islice(disk.outcomes(), index, None), disk.now())
        before = _held(disk, image)

        disk.settle(image)

        assert [_held(disk, each) for each in disk.outcomes()] == [before]


def test_outcomes_come_once_and_names_without_bytes_first() -> None:
    disk = Disk(PROFILES["ext4"])
    for name in ("latest", "shard0", "shard1"):
        file = disk.create(name)
        disk.write(file, 0, name.encode() * 3000)

    first, nothing = itertools.islice(disk.outcomes(), 2)

    assert disk.contents(first) == {"latest": b"", "shard0": b"", "shard1": b""}
    assert disk.contents(nothing) == {}


def test_a_large_file_has_outcomes_at_once() -> None:
    disk = Disk(PROFILES["ext4"])
    file = disk.create("weights")
    disk.write(file, 0, bytes(1 << 24))

    sizes = {len(disk.contents(image).get("weights") or b"") for image in itertools.islice(disk.outcomes(), 12)}

    assert sizes == {0, 1 << 14, 1 << 23, (1 << 24) - (1 << 14), 1 << 24}
