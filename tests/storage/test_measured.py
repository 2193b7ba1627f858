"""Outcomes of real file systems whose power was cut, on Linux 6.18: the simulated ones may have them, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simdist.storage import PROFILES, Disk, Inode

OLD, NEW = b"o" * 5_000, b"n" * 9_000


def _new(disk: Disk, path: str, data: bytes = NEW) -> Inode:
    file = disk.create(path)
    disk.write(file, 0, data)
    disk.close(file)
    return file


def _with_old(rule: str) -> Disk:
    disk = Disk(PROFILES[rule])
    _new(disk, "x", OLD)
    disk.sync()
    return disk


def _sync_root(disk: Disk) -> None:
    root = disk.find("")
    assert root is not None
    disk.sync_folder(root)


def _create(disk: Disk) -> None:
    _new(disk, "y")


def _two_files_second_synced(disk: Disk) -> None:
    _new(disk, "y")
    disk.sync_file(_new(disk, "z"))


def _replace(disk: Disk) -> None:
    _new(disk, "t")
    disk.rename("t", "x")
    _sync_root(disk)


def _replace_synced(disk: Disk) -> None:
    disk.sync_file(_new(disk, "t"))
    disk.rename("t", "x")


def _replace_synced_again(disk: Disk) -> None:
    file = _new(disk, "t")
    disk.sync_file(file)
    disk.rename("t", "x")
    disk.sync_file(file)


def _folder_renamed(disk: Disk) -> None:
    disk.create("tmp", "folder")
    _new(disk, "tmp/shard")
    disk.rename("tmp", "final")
    _sync_root(disk)


def _in_a_new_folder(disk: Disk) -> None:
    disk.create("d", "folder")
    disk.sync_file(_new(disk, "d/f"))


def _emptied_and_written(disk: Disk, *, close: bool = True) -> None:
    file = disk.find("x")
    assert file is not None
    disk.resize(file, 0)
    disk.write(file, 0, NEW)
    if close:
        disk.close(file)
    _new(disk, "z", b"")
    _sync_root(disk)


def _cut_off(disk: Disk) -> None:
    file = disk.find("x")
    assert file is not None
    disk.resize(file, 4500)
    disk.sync_file(_new(disk, "z"))


Contents = dict[str, bytes | None]
ZEROS = bytes(len(NEW))
OLD_X: Contents = {"x": OLD}
# The calls, and the outcomes of each file system that were seen.
SEEN: dict[str, tuple[Callable[[Disk], None], dict[str, list[Contents]]]] = {
    "create": (
        _create,
        {"ext4": [OLD_X, OLD_X | {"y": b""}, OLD_X | {"y": NEW}], "xfs": [OLD_X], "btrfs": [OLD_X | {"y": b""}]},
    ),
    "two files, the second synced": (
        _two_files_second_synced,
        {
            "ext4": [OLD_X | {"y": b"", "z": NEW}],
            "xfs": [OLD_X | {"y": b"", "z": NEW}],
            "btrfs": [OLD_X | {"z": NEW}],
        },
    ),
    "replaced without a sync": (
        _replace,
        {"ext4": [{"x": ZEROS}, {"x": NEW}], "xfs": [{"x": b""}], "btrfs": [{"x": b""}]},
    ),
    "replaced, the folder not synced": (
        _replace_synced,
        {rule: [OLD_X | {"t": NEW}, {"x": NEW}] for rule in ("ext4", "xfs", "btrfs")},
    ),
    "a folder renamed": (
        _folder_renamed,
        {rule: [OLD_X | {"final": None, "final/shard": b""}] for rule in ("ext4", "xfs", "btrfs")},
    ),
    "emptied, written and closed": (_emptied_and_written, {"ext4": [{"x": ZEROS, "z": b""}, {"x": NEW, "z": b""}]}),
    "cut off": (
        _cut_off,
        {"ext4": [{"x": OLD[:4500], "z": NEW}], "xfs": [{"x": OLD[:4500], "z": NEW}], "btrfs": [OLD_X | {"z": NEW}]},
    ),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_was_seen_may_be_left(name: str) -> None:
    act, seen = SEEN[name]
    for rule, expected in seen.items():
        disk = _with_old(rule)
        act(disk)

        left = [disk.contents(image) for image in disk.outcomes()]

        assert [each for each in expected if each not in left] == [], rule


@pytest.mark.parametrize("rule", ["ext4", "xfs", "btrfs"])
def test_what_a_call_has_promised_is_kept(rule: str) -> None:
    promises: list[tuple[Callable[[Disk], None], Contents]] = [
        (_in_a_new_folder, OLD_X | {"d": None, "d/f": NEW}),
        (_replace_synced_again, {"x": NEW}),
    ]
    for act, expected in promises:
        disk = _with_old(rule)
        act(disk)

        assert [disk.contents(image) for image in disk.outcomes()] == [expected]


def test_posix_loses_a_name_whose_folder_was_not_synced() -> None:
    disk = Disk(PROFILES["posix"])
    disk.sync_file(_new(disk, "y"))

    assert {} in [disk.contents(image) for image in disk.outcomes()]
    _sync_root(disk)
    assert [disk.contents(image) for image in disk.outcomes()] == [{"y": NEW}]


def test_posix_may_leave_a_file_in_two_folders_or_in_none() -> None:
    disk = Disk(PROFILES["posix"])
    for name in ("d", "e"):
        disk.create(name, "folder")
    disk.sync_file(_new(disk, "d/f", b"new"))
    disk.sync()

    disk.rename("d/f", "e/f")

    left = [disk.contents(image) for image in disk.outcomes()]
    assert {"d": None, "e": None, "d/f": b"new", "e/f": b"new"} in left
    assert {"d": None, "e": None} in left


def test_nfs_keeps_names_and_what_was_closed() -> None:
    disk = Disk(PROFILES["nfs"])
    _new(disk, "closed", b"new")
    disk.write(disk.create("open"), 0, b"new")

    left = [disk.contents(image) for image in disk.outcomes()]

    assert left == [{"closed": b"new", "open": b""}, {"closed": b"new", "open": b"new"}]


def test_fdatasync_keeps_bytes_and_size_but_not_a_new_name() -> None:
    disk = _with_old("ext4")
    file = _new(disk, "t")
    disk.sync_file(file)
    disk.rename("t", "x")

    disk.sync_file(file, data_only=True)

    assert OLD_X | {"t": NEW} in [disk.contents(image) for image in disk.outcomes()]


def test_durable_bytes_are_asked_for_only_before_they_change() -> None:
    asked = []

    def read(inode: Inode) -> bytes:
        asked.append(inode.number)
        return b"first"

    disk = Disk(PROFILES["ext4"], read=read)
    file = disk.create("a")
    disk.write(file, 0, b"first")
    disk.sync_file(file)
    assert asked == []

    disk.write(file, 0, b"other")

    assert asked == [file.number]
    assert [disk.contents(image)["a"] for image in disk.outcomes()] == [b"first", b"other"]
