"""The possible contents of a disk after a crash, found independently: a small machine tries all that it may do.

Its cache writes any block back at any time, it raises the sizes on the disk as a file system would, and its journal is
cut anywhere. It shares no code with `simdist.storage`. Blocks have two bytes, files a few, programs some calls.

A program is a list of calls: ("create", name), ("write", name, offset, data), ("resize", name, size), ("allocate",
name, size), ("close", name), ("rename", name, to), ("exchange", name, other), ("link", name, to), ("unnamed", name)
for a file whose name only the program knows, ("unlink", name), ("fsync", name), ("fdatasync", name), ("fsync dir",).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["BLOCK", "Call", "Held", "possible"]

BLOCK = 2
Call = tuple[Any, ...]
Held = frozenset[tuple[str, bytes]]
"""The content of a disk: the bytes under each name."""


@dataclass(frozen=True)
class Platter:
    """The content of one file on the disk, and in the cache.

    `resizes` are the sizes that were set since the last sync, with their places in the journal. Writes after a block
    was freed went to another block, so blocks are kept by the number of times that they were freed.
    """

    cache: bytes
    durable: bytes
    resizes: tuple[tuple[int, int, int], ...] = ()  # place in the journal, size before, size after
    blocks: frozenset[tuple[int, int, int, bytes]] = frozenset()  # times freed, number, resizes when written, bytes
    sizes: tuple[int, ...] = ()  # on the disk, by the number of resizes
    submitted: frozenset[tuple[int, int]] = frozenset()  # block, and the size after its write
    unwritten: frozenset[int] = frozenset()  # blocks through which the file has grown
    seen: tuple[int, ...] = ()  # sizes since the last sync
    dirty: bool = False
    beyond: bool = False  # waiting bytes lie beyond the durable size

    def freed(self, block: int, applied: int) -> int:
        return sum(after <= block * BLOCK < before for _, before, after in self.resizes[:applied])


@dataclass
class Machine:
    """A file system: `rule` is ext4, xfs, btrfs or posix."""

    rule: str
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    journal: list[tuple[dict[str, int | None], set[int], bool]] = field(default_factory=list)
    sure: set[int] = field(default_factory=set)
    files: dict[int, set[Platter]] = field(default_factory=dict)
    emptied: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)  # btrfs: entries whose folder was synced
    logging: bool = False  # btrfs: something was synced
    room: dict[int, int] = field(default_factory=dict)  # allocated blocks, by file
    homeless: dict[int, set[int]] = field(default_factory=dict)  # blocks that were written but not allocated

    def _note(self, sets: dict[str, int | None], about: set[int], *, size: bool = False) -> int:
        self.journal.append((sets, about, size))
        return len(self.journal) - 1

    def run(self, call: Call) -> None:
        what, *rest = call
        if what == "create":
            number = len(self.files)
            self.files[number] = {Platter(b"", b"", sizes=(0,), seen=(0,))}
            self.names[rest[0]] = number
            self._note({rest[0]: number}, {number}, size=True)
        elif what == "unnamed":
            number = len(self.files)
            self.files[number] = {Platter(b"", b"", sizes=(0,), seen=(0,))}
            self.names[rest[0]] = number
            self._note({}, {number}, size=True)
        elif what == "link":
            number = self.names[rest[1]] = self.names[rest[0]]
            self._note({rest[1]: number}, {number})
        elif what == "exchange":
            one, two = self.names[rest[0]], self.names[rest[1]]
            self.names[rest[0]], self.names[rest[1]] = two, one
            if self.rule == "btrfs":  # each file gets its new name separately
                self._note({rest[1]: one, rest[0]: None}, {one})
                self._note({rest[0]: two}, {two})
            else:
                self._note({rest[0]: two, rest[1]: one}, {one, two})
        elif what == "write":
            number = self.names[rest[0]]
            blocks = set(range(rest[1] // BLOCK, -(-(rest[1] + len(rest[2])) // BLOCK)))
            self.homeless[number] = self._homeless(number) | {b for b in blocks if b >= self.room.get(number, 0)}
            self._each(number, lambda p: _written(p, rest[1], rest[2]))
        elif what == "allocate":
            number = self.names[rest[0]]
            if rest[1] > len(next(iter(self.files[number])).cache):
                self._resize(number, rest[1])
            self._house(number, -(-rest[1] // BLOCK))
        elif what == "resize":
            number = self.names[rest[0]]
            size = len(next(iter(self.files[number])).cache)
            if rest[1] == 0 and size:
                self.emptied.add(number)
            if size != rest[1]:
                self._resize(number, rest[1])
        elif what == "close":
            number = self.names[rest[0]]
            if number in self.emptied:
                self._allocate(number)
            self.emptied.discard(number)
        elif what == "rename":
            number = self.names.pop(rest[0])
            other = self.names.get(rest[1])
            if other is not None:
                self._allocate(number)
            self.names[rest[1]] = number
            self._note({rest[0]: None, rest[1]: number}, {number} if other is None else {number, other})
        elif what == "unlink":
            number = self.names.pop(rest[0])
            self._note({rest[0]: None}, {number})
        elif what in ("fsync", "fdatasync"):
            self._sync(self.names[rest[0]], data_only=what == "fdatasync")
        elif what == "fsync dir":
            if self.rule in ("ext4", "xfs"):
                last = max((n for n, entry in enumerate(self.journal) if entry[0]), default=-1)
                self.sure.update(range(last + 1))
            else:
                self.sure.update(n for n, entry in enumerate(self.journal) if entry[0])
                self.cleared = set(self.sure)
                self.logging = True

    def _each(self, number: int, change: Any) -> None:
        found = {change(platter) for platter in self.files[number]}
        waiting = list(found)
        while waiting:
            for follower in self._by_itself(waiting.pop()):
                if follower not in found:
                    found.add(follower)
                    waiting.append(follower)
        self.files[number] = found

    def _homeless(self, number: int) -> set[int]:
        return self.homeless.get(number, set())

    def _house(self, number: int, blocks: int) -> None:
        self.room[number] = max(self.room.get(number, 0), blocks)
        self.homeless[number] = {block for block in self._homeless(number) if block >= self.room[number]}

    def _resize(self, number: int, size: int) -> None:
        blocks = -(-size // BLOCK)
        if size < len(next(iter(self.files[number])).cache):
            self.room[number] = min(self.room.get(number, 0), blocks)
            self.homeless[number] = {block for block in self._homeless(number) if block < blocks}
        place = self._note({}, {number}, size=True) if self.rule != "posix" else -1
        self._each(number, lambda p: _resized(p, size, place, ordered=self.rule != "posix"))

    def _allocate(self, number: int) -> None:
        if self.rule == "ext4" and self._homeless(number):
            size = len(next(iter(self.files[number])).cache)
            self._resize(number, size)
            self._house(number, -(-size // BLOCK))

    def _sync(self, number: int, *, data_only: bool) -> None:
        about = [n for n, entry in enumerate(self.journal) if number in entry[1] and (entry[2] or not data_only)]
        if self.rule in ("ext4", "xfs"):
            if any(p.beyond for p in self.files[number]):
                self.sure.update(range(len(self.journal)))
            elif about:
                self.sure.update(range(about[-1] + 1))
        elif self.rule == "btrfs":
            self.logging = True
            self.sure.update(n for n, entry in enumerate(self.journal) if number in entry[1] and any(entry))
            # The path is in the root folder, which always exists; entries that gave the file its names are kept.
            self.sure.update(n for n, entry in enumerate(self.journal) if number in entry[0].values())
        self.files[number] = {
            Platter(p.cache, p.cache, sizes=(len(p.cache),), seen=(len(p.cache),)) for p in self.files[number]
        }
        self._house(number, -(-len(next(iter(self.files[number])).cache) // BLOCK))

    def _by_itself(self, p: Platter) -> Iterator[Platter]:
        """Yield what the cache may do next with a file: write a block back, raise the size."""
        count = len(p.resizes)
        # Without a journal, bytes that were cut off may be gone before the size changes.
        top = len(p.cache) if self.rule != "posix" else max(p.seen)
        for block in range(-(-top // BLOCK)):
            data = p.cache[block * BLOCK : (block + 1) * BLOCK].ljust(BLOCK, b"\0")
            key = p.freed(block, count) if self.rule != "posix" else 0
            kept = frozenset(each for each in p.blocks if each[:2] != (key, block))
            brings = min(len(p.cache), (block + 1) * BLOCK)
            yield replace(
                p,
                blocks=kept | {(key, block, count, data)},
                submitted=p.submitted | {(block, brings)},
                unwritten=p.unwritten - {block},
            )
        if self.rule in ("xfs", "btrfs"):
            for block, size in p.submitted:
                if size > p.sizes[-1] and not any(each < block for each in p.unwritten):
                    yield replace(p, sizes=(*p.sizes[:-1], size))
            return
        if self.rule == "ext4":
            steps = [*range(0, len(p.cache), BLOCK), len(p.cache)]
            for size in steps:
                if size > p.sizes[-1]:
                    yield replace(p, sizes=(*p.sizes[:-1], size))
        else:
            for size in {*p.seen, *range((min(p.seen) // BLOCK + 1) * BLOCK, max(p.seen), BLOCK)}:
                yield replace(p, sizes=(size,))

    def crashes(self) -> Iterator[Held]:
        """Yield the possible contents of the disk after a crash now."""
        for there, names in self._named():
            found = {file: self._contents(file, there) for file in set(names.values())}
            for chosen in itertools.product(*found.values()):
                contents = dict(zip(found, chosen, strict=True))
                yield frozenset((name, contents[file]) for name, file in names.items())

    def _named(self) -> Iterator[tuple[set[int], dict[str, int]]]:
        if self.rule == "btrfs":
            yield from self._named_apart()
            return
        for there in self._journals():
            names = dict(self.durable)
            for number, (sets, _, _) in enumerate(self.journal):
                if number in there:
                    for name, file in sets.items():
                        if file is None:
                            names.pop(name, None)
                        else:
                            names[name] = file
            yield there, names

    def _named_apart(self) -> Iterator[tuple[set[int], dict[str, int]]]:
        """Yield the committed changes with any of the others: a file gets its new name, the replaced one loses it."""
        named = [number for number, entry in enumerate(self.journal) if entry[0]]
        replacing = [n for n in named if len(self.journal[n][1]) > 1]
        parts = [*((n, "mine") for n in named), *((n, "its") for n in replacing)]
        for cut in range(len(self.journal) + 1):
            for bits in itertools.product((False, True), repeat=len(parts) if self.logging else 0):
                chosen = {part for part, bit in zip(parts, bits, strict=False) if bit}
                chosen |= {part for part in parts if part[0] < cut}
                chosen |= {(n, "mine") for n in self.sure} | {(n, "its") for n in self.cleared}
                yield set(range(cut)) | self.sure, self._owners(chosen)
            if cut and (cut - 1, "its") in parts:  # cut in the middle of the entry
                chosen = {part for part in parts if part[0] < cut and part != (cut - 1, "its")}
                chosen |= {(n, "mine") for n in self.sure} | {(n, "its") for n in self.cleared}
                yield set(range(cut)) | self.sure, self._owners(chosen)

    def _owners(self, chosen: set[tuple[int, str]]) -> dict[str, int]:
        when: dict[str, dict[int, int]] = {name: {file: -1} for name, file in self.durable.items()}
        for number, (sets, about, _) in enumerate(self.journal):
            new = [file for file in sets.values() if file is not None]
            mine = new[0] if new else min(about, default=-1)
            for name, file in sets.items():
                owners = when.setdefault(name, {})
                if (number, "mine") in chosen:
                    owners.pop(mine, None)
                    if file is not None:
                        owners[file] = number
                made = next((n for n, (new, _, size) in enumerate(self.journal) if size and mine in new.values()), -1)
                lost = made >= 0 and (made, "mine") not in chosen
                if file is not None and (number, "its") in chosen and (lost or (number, "mine") in chosen):
                    for other in about - {mine}:
                        owners.pop(other, None)
        return {name: max(owners, key=lambda each: owners[each]) for name, owners in when.items() if owners}

    def _journals(self) -> Iterator[set[int]]:
        every = range(len(self.journal))
        if self.rule != "posix":
            for cut in range(len(self.journal) + 1):
                if self.sure <= set(range(cut)):
                    yield set(range(cut))
            return
        for count in range(len(self.journal) + 1):
            for chosen in itertools.combinations(every, count):
                if self.sure <= set(chosen):
                    yield set(chosen)

    def _contents(self, file: int, there: set[int]) -> set[bytes]:
        found = {self._read(p, there) for p in self.files[file]}
        if self.rule == "btrfs":  # its log may have a smaller size without the later bytes
            for p in self.files[file]:
                if not any(place in there for place, _, _ in p.resizes):
                    found |= {p.durable[:size] for size in p.seen if size < len(p.durable)}
        return found

    def _read(self, p: Platter, there: set[int]) -> bytes:
        applied = sum(place in there for place, _, _ in p.resizes) if self.rule != "posix" else 0
        size = p.sizes[applied] if self.rule != "posix" else p.sizes[-1]
        made = bytearray(p.durable[:size].ljust(size, b"\0"))
        for block in range(-(-size // BLOCK)):
            key = p.freed(block, applied) if self.rule != "posix" else 0
            found = [each for each in p.blocks if each[:2] == (key, block)]
            when, data = 0, p.durable[block * BLOCK : (block + 1) * BLOCK].ljust(BLOCK, b"\0") if key == 0 else b"\0\0"
            if found:
                _, _, when, data = found[0]
            cut = bytearray(data)
            for _, _, after in p.resizes[when:applied]:
                keep = min(max(after - block * BLOCK, 0), BLOCK)
                cut[keep:] = bytes(BLOCK - keep)
            made[block * BLOCK : (block + 1) * BLOCK] = cut[: min(BLOCK, size - block * BLOCK)]
        return bytes(made)


def _written(p: Platter, offset: int, data: bytes) -> Platter:
    made = bytearray(p.cache.ljust(offset, b"\0"))
    made[offset : offset + len(data)] = data
    unwritten = set(p.unwritten)
    for block in range(offset // BLOCK, -(-(offset + len(data)) // BLOCK)):
        if (block + 1) * BLOCK > len(p.cache) and offset + len(data) > len(p.cache):
            unwritten.add(block)
    return replace(
        p,
        cache=bytes(made),
        unwritten=frozenset(unwritten),
        seen=(*p.seen, len(made)),
        dirty=True,
        beyond=p.beyond or len(made) > len(p.durable),
    )


def _resized(p: Platter, size: int, place: int, *, ordered: bool) -> Platter:
    made = p.cache[:size].ljust(size, b"\0")
    if not ordered:
        return replace(p, cache=made, seen=(*p.seen, size), dirty=True)
    return replace(
        p,
        cache=made,
        resizes=(*p.resizes, (place, len(p.cache), size)),
        sizes=(*p.sizes, size),
        seen=(*p.seen, size),
        dirty=True,
        submitted=frozenset(),
        unwritten=frozenset(),
    )


def possible(rule: str, program: list[Call]) -> set[Held]:
    """Return everything that a crash after the program may leave."""
    machine = Machine(rule)
    for call in program:
        machine.run(call)
    return set(machine.crashes())
