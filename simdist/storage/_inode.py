"""A file, folder or symbolic link of a disk, and the possible states of a file after a crash."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Literal

from simdist.storage._content import NOTHING, Change, Content, after
from simdist.storage._profile import Profile

__all__ = ["Draw", "FileState", "Inode", "Range"]

_EXPLICIT = 64  # up to this many blocks states are distinguished block by block
_MOST_BLOCKS = 1024  # several blocks of a larger file go together

Draw = Callable[[int], int]
"""A function that, called with n, returns a number below n."""


class Inode:
    """What a name stands for. `base` are the durable bytes of a file, `changes` the later changes, in order."""

    __slots__ = ("base", "changes", "emptied", "failed", "kind", "mode", "number", "room", "target", "without_room")

    def __init__(self, number: int, kind: Literal["file", "folder", "link"], base: Content = NOTHING) -> None:
        self.number = number
        self.kind = kind
        self.base = base
        self.changes: list[Change] = []
        self.target = ""  # of a link
        self.mode = 0o777 if kind == "folder" else 0o666
        self.failed = 0  # this many of the changes had their chance: a sync of them failed
        self.emptied = False  # it was emptied, and not closed since
        self.room = 0  # this many blocks have their space on the disk
        self.without_room: list[tuple[int, int]] = []  # written blocks beyond them: the first, and the end

    @property
    def size(self) -> int:
        """The size that a process sees."""
        return self.changes[-1].size if self.changes else self.base.size

    @property
    def grows(self) -> bool:
        """True if bytes beyond the durable size wait, so that space has to be allocated for them."""
        return any(change.data is not None and change.size > self.base.size for change in self.changes)

    @property
    def held_bytes(self) -> int:
        """How many bytes of it are in memory."""
        changed = sum(len(change.data) for change in self.changes if isinstance(change.data, bytes))
        return self.base.held_bytes + changed

    def find_room(self, blocks: int) -> None:
        """Note that the first `blocks` blocks have their space on the disk from now on."""
        self.room = max(self.room, blocks)
        self.without_room = [(max(start, self.room), end) for start, end in self.without_room if end > self.room]

    def lose_room(self, blocks: int) -> None:
        """Note that only the first `blocks` blocks are left."""
        self.room = min(self.room, blocks)
        self.without_room = [(start, min(end, blocks)) for start, end in self.without_room if start < blocks]

    def want_room(self, start: int, end: int) -> None:
        """Note that the blocks from `start` to before `end` were written."""
        start = max(start, self.room)
        if start < end:
            if self.without_room and self.without_room[-1][1] >= start >= self.without_room[-1][0]:
                start, end = self.without_room[-1][0], max(end, self.without_room.pop()[1])
            self.without_room.append((start, end))

    @property
    def content(self) -> Content | None:
        """The content that a process sees; None if its bytes would have to be read first."""
        return self.base.with_changes(self.changes) if self.base.is_held else None

    def __repr__(self) -> str:
        return f"<Inode {self.number} {self.kind} {self.size} bytes, {len(self.changes)} changes>"


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a file after a crash: its size, and the version of each block.

    Blocks have the newest version that the crash could leave, or the oldest; those in `others` have the version after
    that many changes. `applied` and `limit` are those of its `Range`. With `cut` it has its durable bytes, cut off at
    the size.
    """

    inode: int
    size: int
    newest: bool
    others: tuple[tuple[int, int], ...] = ()
    applied: int = 0
    limit: int = 0
    cut: bool = False


class Range:
    """The possible states of one file, if of the changes of size in the log only those in `chosen` are durable.

    A version of a block is the number of changes after which it was written; 0 is the durable one.
    """

    def __init__(self, inode: Inode, profile: Profile, chosen: Set[int]) -> None:
        self.inode = inode
        self._block = profile.block_bytes
        top = max([inode.base.size, *(change.size for change in inode.changes)])
        while self._block * _MOST_BLOCKS < top:
            self._block *= 2
        self._zeros = profile.shows_zeros
        self._changes = changes = inode.changes
        ordered = [(place, change) for place, change in enumerate(changes, 1) if change.entry >= 0]
        self.applied = max((place for place, change in ordered if change.entry in chosen), default=0)
        lost = [place for place, change in ordered if change.entry not in chosen]
        self.limit = min(lost, default=len(changes) + 1)
        least = changes[self.applied - 1].size if self.applied else inode.base.size
        between = [change.size for change in changes[self.applied : self.limit - 1]]
        self.sizes = self._sizes([least, *between])
        self.least, self.most = self.sizes[0], self.sizes[-1]
        self._end = between[-1] if between else least  # when every possible change is done
        old = inode.base.size if profile.cuts_alone and not self.applied else 0
        self._cuts = sorted({change.size for change in changes if change.size < old})
        self._found: dict[int, list[int]] = {}
        self._touched = self._all_touched(top)
        self._altered = [block for block in self._touched if len(self._versions(block)) > 1]

    def _sizes(self, seen: list[int]) -> list[int]:
        low, high = min(seen), max(seen)
        first = low // self._block + 1
        steps = range(first * self._block, high, self._block)
        between = set(steps) if len(steps) <= _EXPLICIT else {steps[0], steps[len(steps) // 2], steps[-1]}
        return sorted({*seen, *between})

    def _all_touched(self, top: int) -> list[int]:
        """The blocks that any change alters."""
        found: set[int] = set()
        for change in self._changes:
            if change.data is not None:
                start, end = change.offset, change.offset + len(change.data)
            else:
                start, end = change.size, change.before
            found.update(range(start // self._block, -(-min(end, top) // self._block)))
        return sorted(found)

    def _versions(self, block: int) -> list[int]:
        """The versions that a block may have, if the size allows them; the oldest first."""
        known = self._found.get(block)
        if known is not None:
            return known
        start, end = block * self._block, (block + 1) * self._block
        found = [0]
        for place, change in enumerate(self._changes, 1):
            if not change.alters(start, end):
                continue
            if change.entry < 0 or not change.frees(start):
                found.append(place)
            elif place <= self.applied:
                found = [place]
            elif place >= self.limit:
                break  # later changes go elsewhere
        self._found[block] = found
        return found

    def _allowed(self, block: int, size: int) -> list[int]:
        """The versions that go with a size: a file does not grow before its bytes are there, unless zeros may show."""
        versions = self._versions(block)
        if self._zeros:
            return versions
        end = min(size, (block + 1) * self._block)
        start = max(self.least, block * self._block)
        if start >= end:
            return versions
        needed = 0
        for place in versions:
            if self.applied < place < self.limit:
                change = self._changes[place - 1]
                if change.before < end and change.alters(start, end):
                    needed = place
        return [place for place in versions if place >= needed]

    def blocks(self, size: int) -> list[int]:
        """The blocks of a file of this size that have more than one version."""
        return [block for block in self._altered if block * self._block < size]

    def _state(self, size: int, *, newest: bool, others: dict[int, int] | None = None) -> FileState:
        blocks, pick = self.blocks(size), -1 if newest else 0
        if len(blocks) <= _EXPLICIT:  # distinguished by the version of each block, however it was reached
            others = {block: self._allowed(block, size)[pick] for block in blocks} | (others or {})
            others = {block: place for block, place in others.items() if place != self._allowed(block, size)[-1]}
            newest = True
        return FileState(
            self.inode.number, size, newest, tuple(sorted((others or {}).items())), self.applied, self.limit
        )

    def _cut(self, size: int) -> FileState:
        return FileState(self.inode.number, size, False, (), self.applied, self.limit, cut=True)

    def newest(self) -> FileState:
        """The state with every possible change."""
        return self._state(self._end, newest=True)

    def oldest(self) -> FileState:
        """The state with only the changes that must be there."""
        first = self._changes[self.applied - 1].size if self.applied else self.inode.base.size
        return self._state(first, newest=False)

    def unwritten(self) -> FileState:
        """The full size, with as few of the bytes as that allows."""
        return self._state(self._end, newest=False)

    def states(self) -> Iterator[FileState]:
        """All states, the most suspicious first, some of them several times; of a large file only a selection."""
        yield self.oldest()
        yield self.unwritten()
        yield self.newest()
        if not self._changes:
            return
        for size in (self.sizes[len(self.sizes) // 2], *self.sizes):
            yield self._state(size, newest=True)
        yield from map(self._cut, self._cuts)
        blocks = self.blocks(self._end)
        if len(blocks) > _EXPLICIT:
            blocks = [blocks[0], blocks[-1], blocks[len(blocks) // 2]]
        for newest, pick in ((True, 0), (False, -1)):
            for block in blocks:
                yield self._state(self._end, newest=newest, others={block: self._allowed(block, self._end)[pick]})
        if len(self._altered) > _EXPLICIT:
            return
        for size in self.sizes:
            blocks = self.blocks(size)
            for versions in itertools.product(*(self._allowed(block, size) for block in blocks)):
                yield self._state(size, newest=True, others=dict(zip(blocks, versions, strict=True)))

    def drawn(self, draw: Draw) -> FileState:
        """One of the states, drawn with `draw`: `draw(n)` is a number below n."""
        way = draw(5 if self._cuts else 4)
        if way == 0:
            return self.oldest()
        if way == 4:
            return self._cut(self._cuts[draw(len(self._cuts))])
        if way == 1:
            return self._state(self._end, newest=draw(2) == 0)
        size = self.sizes[draw(len(self.sizes))]
        blocks = self.blocks(size)
        if way == 2 or not blocks:
            return self._state(size, newest=True)
        if len(blocks) > _EXPLICIT:
            blocks = sorted({blocks[draw(len(blocks))] for _ in range(_EXPLICIT)})
        allowed = {block: self._allowed(block, size) for block in blocks}
        return self._state(size, newest=True, others={b: found[draw(len(found))] for b, found in allowed.items()})

    def content(self, state: FileState) -> bytes:
        """The bytes of a file in this state."""
        changes, size = self._changes, state.size
        if state.cut:
            return self.inode.base.read(0, size)
        if state.newest and not state.others and size == self._end and self.limit > len(changes):
            return self.inode.base.with_changes(changes).read(0, size)
        made = bytearray(self.inode.base.read(0, size))
        others = dict(state.others)
        for block in self._touched:
            start, end = block * self._block, min((block + 1) * self._block, size)
            if start >= size:
                break
            version = others.get(block, self._allowed(block, size)[-1 if state.newest else 0])
            made[start:end] = after(self.inode.base, changes[:version], start, end)
            for change in changes[version : self.applied]:  # bytes that were cut off do not come back
                if change.entry >= 0 and change.size < end:
                    at = max(change.size, start)
                    made[at:end] = bytes(end - at)
        return bytes(made)
