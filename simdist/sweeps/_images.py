"""Digests of disks: if two are equal, a program that is started on them finds the same."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from simdist.files import Disks, MountedDisk
from simdist.storage import Image

__all__ = ["Found", "found_now", "outcomes_of"]

_ANYTHING = "anything"

_Part = tuple[str, str, str, str]  # a path with its disk's owner, and without; its kind; a digest of its content


class Found:
    """The disks that a program finds at its start."""

    __slots__ = ("_disks",)

    def __init__(self, disks: Iterable[list[_Part]]) -> None:
        self._disks = tuple(disks)

    def digest(self, unread: Collection[str] = ()) -> str:
        """Return a digest of everything; the contents of the files `unread` do not count, unless they are empty."""
        return " ".join(_digest(parts, unread) for parts in self._disks)


def found_now(disks: Disks) -> Found:
    """Return the present contents of the real folders."""
    return Found(
        [(each.shown(path), path, kind, _hashed(held)) for path, kind, held in each.contents()] for each in disks
    )


def outcomes_of(disks: Disks, most: int) -> Iterator[Found]:
    """Yield what may be left after a loss of power, the most suspicious first; shorter lists repeat their last."""
    found = [[*_outcomes(each, most)] for each in disks]
    for number in range(max(map(len, found))):
        yield Found(each[min(number, len(each) - 1)] for each in found)


def _outcomes(mounted: MountedDisk, most: int) -> Iterator[list[_Part]]:
    known: dict[Any, str] = {}
    for image in itertools.islice(mounted.disk.outcomes(), most):
        yield list(_parts(mounted, image, known))


def _parts(mounted: MountedDisk, image: Image, known: dict[Any, str]) -> Iterator[_Part]:
    for path, state in image.nodes:
        if state not in known:
            known[state] = _hashed(mounted.disk.content(state))
        yield mounted.shown(path), path, mounted.disk.inode_of(state).kind, known[state]


def _digest(parts: list[_Part], unread: Collection[str]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for shown, path, kind, held in sorted(parts, key=lambda part: part[1]):
        said = _ANYTHING if shown in unread and held != _NOTHING else held
        whole.update(f"{path}\0{kind}\0{said}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


def _hashed(content: bytes | None) -> str:
    return "" if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


_NOTHING = _hashed(b"")
