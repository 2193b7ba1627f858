"""What a disk holds, as a digest: two that are equal look the same to whoever is started on them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from simdist.files import Disks
from simdist.storage import Disk, Image

__all__ = ["Found", "digests_of_outcomes"]


class Found:
    """What is in the real folders now."""

    def __init__(self, disks: Disks) -> None:
        self._disks = [
            [(disk.shown(path), path, kind, _hashed(content)) for path, kind, content in disk.contents()]
            for disk in disks
        ]

    def digest(self, unread: Collection[str] = ()) -> str:
        """Of all of it, whatever stands in the files `unread`, if it is anything."""
        return _joined(
            _digest(
                (path, kind, _ANYTHING if name in unread and held != _NOTHING else held)
                for name, path, kind, held in each
            )
            for each in self._disks
        )


def digests_of_outcomes(disks: Disks, most: int) -> Iterator[str]:
    """Of what may be there after a loss of power, the most suspicious first; of a disk with fewer, the last."""
    found = [[*_outcomes(each.disk, most)] for each in disks]
    for number in range(max(map(len, found))):
        yield _joined(each[min(number, len(each) - 1)] for each in found)


def _joined(digests: Iterable[str]) -> str:
    return " ".join(digests)


def _outcomes(disk: Disk, most: int) -> Iterator[str]:
    known: dict[Any, str] = {}
    for image in itertools.islice(disk.outcomes(), most):
        yield _digest(_parts(disk, image, known))


def _parts(disk: Disk, image: Image, known: dict[Any, str]) -> Iterator[tuple[str, str, str]]:
    for path, state in image.nodes:
        if state not in known:
            known[state] = _hashed(disk.content(state))
        yield path, disk.inode_of(state).kind, known[state]


def _digest(parts: Iterable[tuple[str, str, str]]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for path, kind, content in sorted(parts):
        whole.update(f"{path}\0{kind}\0{content}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


_ANYTHING = "anything"


def _hashed(content: bytes | None) -> str:
    return "" if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


_NOTHING = _hashed(b"")
