"""What a crash has left: in words, and in the real folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from simdist.storage import Disk, FileState, Image

__all__ = ["put_back", "words_of"]


def words_of(disk: Disk, before: Image, after: Image) -> Iterator[tuple[str, str]]:
    """Each path that differs from what the host saw, and how it differs."""
    had, has = before.paths, after.paths
    for path in sorted({*had, *has}):
        old, new = had.get(path), has.get(path)
        if old == new:
            continue
        if new is None:
            yield path, "is not there"
        elif old is None:
            yield path, "is still there, under its old name" if _moved(old, new, before) else "is still there"
        elif isinstance(old, FileState) and isinstance(new, FileState):
            yield path, _difference(disk, old, new)
        else:
            yield path, "is what it was before"


def _moved(old: object, new: object, before: Image) -> bool:
    return (
        old is None
        and isinstance(new, FileState)
        and any(isinstance(each, FileState) and each.inode == new.inode for _, each in before.nodes)
    )


def _difference(disk: Disk, old: FileState, new: FileState) -> str:
    if old.inode != new.inode:
        return "is the old file"
    if new.size == 0:
        return f"is empty, of {old.size} bytes"
    if new.size != old.size:
        return f"has {new.size} of {old.size} bytes"
    left = disk.content(new) or b""
    was = disk.content(old) or b""
    if left == was:
        return "has its bytes"
    return f"has zeros for its {len(was)} bytes" if not any(left) else f"has not all of its {len(was)} bytes"


def put_back(disk: Disk, before: Image, after: Image, folder: str) -> None:
    """Make the real folder equal to the disk after the crash; unchanged files stay untouched."""
    had, has = before.paths, after.paths
    changed = {path: disk.content(state) for path, state in after.nodes if had.get(path) != state}
    for path, _ in reversed(before.nodes):
        if path in has and has[path] == had[path]:
            continue
        real = os.path.join(folder, path)
        if os.path.isdir(real) and not os.path.islink(real):
            if path not in has:
                shutil.rmtree(real)
        elif os.path.lexists(real):
            os.unlink(real)
    made: dict[int, str] = {}
    for path, state in after.nodes:
        real = os.path.join(folder, path)
        inode = disk.inode_of(state)
        if path in changed:
            if inode.kind == "folder":
                os.makedirs(real, exist_ok=True)
            elif inode.kind == "link":
                os.symlink(inode.target, real)
            elif inode.number in made:
                os.link(made[inode.number], real)
            else:
                with open(real, "wb") as file:
                    file.write(changed[path] or b"")
                os.chmod(real, inode.mode)
        if inode.kind == "file":
            made.setdefault(inode.number, real)
