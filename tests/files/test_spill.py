"""Bytes that are not synced are kept in memory up to a limit, and in a file beyond it."""

from __future__ import annotations

import errno
import itertools
import os
import random
from typing import Any

import pytest

from simdist.files._spill import Spill
from simdist.storage import PROFILES, Disk


def test_bytes_beyond_the_bound_are_not_held_in_memory() -> None:
    held: list[bytes | memoryview] = []
    spill = Spill(lambda: sum(len(each) for each in held if isinstance(each, bytes)), most_bytes=10_000)
    written = [bytes([number]) * 1_000 for number in range(100)]

    held.extend(spill.hold(each) for each in written)

    assert [bytes(each) for each in held] == written
    assert sum(len(each) for each in held if isinstance(each, bytes)) <= 10_000
    spill.close()
    assert [bytes(each) for each in held] == written


def test_what_is_let_go_makes_room() -> None:
    held: list[bytes | memoryview] = []
    spill = Spill(lambda: sum(len(each) for each in held if isinstance(each, bytes)), most_bytes=10_000)
    held.extend(spill.hold(bytes(1_000)) for _ in range(10))
    assert isinstance(spill.hold(bytes(1_000)), memoryview)

    held.clear()

    assert isinstance(spill.hold(bytes(1_000)), bytes)
    spill.close()


def test_a_full_disk_of_the_machine_s_is_no_error_of_the_program_s(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill(lambda: 20_000, most_bytes=10_000)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)

    assert spill.hold(bytes(20_000)) == bytes(20_000)
    spill.close()


@pytest.mark.parametrize("profile", PROFILES)
def test_a_disk_leaves_the_same_wherever_its_bytes_lie(profile: str) -> None:
    numbers = random.Random(profile)
    spill = Spill(lambda: 1_000, most_bytes=0)
    views: list[bytes | memoryview] = []

    def hold(data: bytes) -> bytes | memoryview:
        views.append(spill.hold(data))
        assert isinstance(views[-1], memoryview)
        return views[-1]

    disks = Disk(PROFILES[profile]), Disk(PROFILES[profile], hold=hold)
    for disk in disks:
        disk.create("a")
    for _ in range(8):
        offset, size, way = numbers.randrange(9_000), numbers.randrange(600, 6_000), numbers.randrange(6)
        byte = bytes([numbers.randrange(1, 256)])
        for disk in disks:
            inode = disk.find("a")
            assert inode is not None
            if way == 0:
                disk.sync_file(inode)
            elif way == 1:
                disk.resize(inode, offset)
            else:
                disk.write(inode, offset, byte * size)

    plain, spilled = ([disk.contents(each) for each in itertools.islice(disk.outcomes(), 60)] for disk in disks)

    assert spilled == plain
    assert views
    spill.close()
