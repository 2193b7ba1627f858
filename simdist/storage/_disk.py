"""A disk: what its host sees, and what of it is durable."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from simdist.storage._content import NOTHING, Change, Content
from simdist.storage._inode import Draw, FileState, Inode, Range
from simdist.storage._names import Log, Names
from simdist.storage._profile import Profile

__all__ = ["Disk", "Image"]

_ROOT = 0
_SMALL = 1 << 16  # up to this many bytes contents are compared
_FEW, _MANY = 32, 4096  # states of one file that are tried: alone, together with other files

State = FileState | int
"""What may be left of a file after a crash. Of a folder or a link it is always its number."""


@dataclass(frozen=True, slots=True)
class Image:
    """The content of a disk: the state of what is at each path, folders before their content."""

    nodes: tuple[tuple[str, State], ...]

    @property
    def paths(self) -> Mapping[str, State]:
        """By path, without a slash at the beginning."""
        return dict(self.nodes)


class Disk:
    """A disk of one host, by the rules of a profile. Paths are relative to it; the caller makes the real calls.

    A call is reported when it has been done. With `read`, bytes that are durable and still in the file are
    not kept here but read, before they change.

    Example:
        >>> from simdist.storage import PROFILES
        >>> disk = Disk(PROFILES["ext4"])
        >>> file = disk.create("a")
        >>> disk.write(file, 0, b"new")
        >>> [disk.contents(image) for image in disk.outcomes()]
        [{'a': b''}, {}, {'a': b'\\x00\\x00\\x00'}, {'a': b'new'}]
        >>> disk.sync_file(file)
        >>> [disk.contents(image) for image in disk.outcomes()]
        [{'a': b'new'}]
    """

    def __init__(
        self,
        profile: Profile,
        *,
        read: Callable[[Inode], bytes | memoryview] | None = None,
        hold: Callable[[bytes], bytes | memoryview] | None = None,
    ) -> None:
        self.profile = profile
        self._read = read
        self._hold = hold
        self._inodes: dict[int, Inode] = {_ROOT: Inode(_ROOT, "folder")}
        self._live: Names = {}
        self._unnamed: set[int] = set()  # files that are open and have no name yet (O_TMPFILE)
        self._log = Log(profile, {})
        self._count = 0

    # -- looking -----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Inode | None:
        """What is at a path; None if there is nothing."""
        number = _ROOT
        for name in _parts(path):
            found = self._live.get((number, name))
            if found is None:
                return None
            number = found
        return self._inodes[number]

    def numbered(self, number: int) -> Inode | None:
        """The inode with this number; None if it is gone for good."""
        return self._inodes.get(number)

    def paths_of(self, inode: Inode) -> list[str]:
        """All present names of a file; the one name of a folder."""
        return [path for path, number in _walk(self._live, self._inodes) if number == inode.number]

    @property
    def pending(self) -> bool:
        """True if a crash could lose anything."""
        return bool(self._log.open) or any(inode.changes for inode in self._inodes.values())

    @property
    def held_bytes(self) -> int:
        """How many bytes are in memory: those that were written and not synced, and the old content."""
        return sum(inode.held_bytes for inode in self._inodes.values())

    # -- names -------------------------------------------------------------------------------------------------------

    def create(self, path: str, kind: Literal["file", "folder", "link"] = "file", *, target: str = "") -> Inode:
        """Add a new file, folder or symbolic link."""
        inode = self._new(kind)
        inode.target = target
        self._set(path, inode, resizes=True)
        return inode

    def create_unnamed(self) -> Inode:
        """Add a new file without a name (O_TMPFILE); `link` may give it one, until it is released."""
        inode = self._new("file")
        self._unnamed.add(inode.number)
        if self.profile.orders_sizes:
            self._log.add([], about=[inode.number], resizes=True)
        return inode

    def release(self, inode: Inode) -> None:
        """Note that no process has the file open any more: without a name it is gone."""
        if inode.number in self._unnamed:
            self._unnamed.discard(inode.number)
            self._forget()

    def link(self, inode: Inode, path: str) -> None:
        """Add a name to a file."""
        self._set(path, inode)

    def remove(self, path: str) -> None:
        """Remove a name of a file, or an empty folder."""
        place = self._place(path)
        gone = self._inodes[self._live[place]]
        self.pin(gone)
        del self._live[place]
        self._log.add([(place, None)], about=[gone.number])
        self._forget()

    def rename(self, path: str, to: str) -> None:
        """Give something another name; what had that name before loses it."""
        place, new_place = self._place(path), self._place(to)
        inode, replaced = self._inodes[self._live[place]], self._live.get(new_place)
        if replaced == inode.number:
            return  # two names of one file: nothing changes
        about = [inode.number]
        if replaced is not None:
            self.pin(self._inodes[replaced])
            about.append(replaced)
            self._allocate(inode)
        del self._live[place]
        self._live[new_place] = inode.number
        self._log.add([(new_place, inode.number), (place, None)], about=about)
        self._forget()

    def exchange(self, path: str, to: str) -> None:
        """Let two things exchange their names (RENAME_EXCHANGE)."""
        place, other_place = self._place(path), self._place(to)
        one, other = self._live[place], self._live[other_place]
        self._live[place], self._live[other_place] = other, one
        if self.profile.names == "apart":  # its log has each name separately
            self._log.add([(other_place, one), (place, None)], about=[one])
            self._log.add([(place, other)], about=[other])
        else:
            self._log.add([(place, other), (other_place, one)], about=[one, other])

    # -- bytes -------------------------------------------------------------------------------------------------------

    def write(self, inode: Inode, offset: int, data: bytes) -> None:
        """Note that bytes were written."""
        if data:
            self.pin(inode)
            before = inode.size
            held = data if self._hold is None else self._hold(data)
            inode.changes.append(Change(offset, held, before, max(before, offset + len(data))))
            inode.want_room(offset // self.profile.block_bytes, self._blocks(offset + len(data)))

    def resize(self, inode: Inode, size: int) -> None:
        """Cut a file off, or let it grow by zeros."""
        before = inode.size
        if size == 0:
            inode.emptied = before > 0 or inode.emptied
        if size != before:
            self.pin(inode)
            self._mark_size(inode, size)
        if size < before:
            inode.lose_room(self._blocks(size))

    def allocate(self, inode: Inode, size: int) -> None:
        """Allocate a file's space on the disk up to a size (`posix_fallocate`), which it has at least from now on."""
        if size > inode.size:
            self.resize(inode, size)
        inode.find_room(self._blocks(size))

    def close(self, inode: Inode) -> None:
        """Note that a file that was open for writing was closed."""
        if self.profile.close_syncs:
            self.sync_file(inode)
        elif inode.emptied:
            self._allocate(inode)
        inode.emptied = False

    def _allocate(self, inode: Inode) -> None:
        """Allocate space for the blocks of a file that have none; its full size is ordered with names from now on."""
        if self.profile.allocates_early and inode.without_room and inode.kind == "file":
            self._mark_size(inode, inode.size)
            inode.find_room(self._blocks(inode.size))

    def _blocks(self, size: int) -> int:
        return -(-size // self.profile.block_bytes)

    def _mark_size(self, inode: Inode, size: int) -> None:
        entry = self._log.add([], about=[inode.number], resizes=True) if self.profile.orders_sizes else -1
        inode.changes.append(Change(0, None, inode.size, size, entry))

    # -- syncing -----------------------------------------------------------------------------------------------------

    def sync_file(self, inode: Inode, *, data_only: bool = False) -> None:
        """Note that fsync, or fdatasync, of a file has returned."""
        if self.profile.names == "in order" and inode.grows:
            self._log.keep_all()  # the new size goes through the journal, after everything that is in it
        else:
            self._log.keep_about(inode.number, data_only=data_only)
        if len(inode.changes) > inode.failed:
            self._settle(inode)
        self._forget()

    def fail_sync(self, inode: Inode) -> None:
        """Note a failed fsync of a file: its bytes count as written back, so the next one writes nothing to the disk.

        Unless there is more to write by then; then all of it is written.
        """
        inode.failed = len(inode.changes)

    def rot(self, inode: Inode, offset: int, bit: int) -> None:
        """Flip a bit of a file's durable bytes, and of everything written to that byte since."""
        self.pin(inode)
        inode.base = inode.base.flipped(offset, bit)
        inode.changes = [change.flipped(offset, bit) for change in inode.changes]

    def sync_folder(self, inode: Inode) -> None:
        """Note that fsync of a folder has returned."""
        self._log.keep_about(inode.number)
        self._forget()

    def sync(self) -> None:
        """Make everything durable: `sync` has returned."""
        self._log.keep_all()
        for inode in self._inodes.values():
            if inode.changes:
                self._settle(inode)
        self._forget()

    def _settle(self, inode: Inode) -> None:
        """Make a file's bytes durable."""
        inode.base = self._settled(inode, inode.size)
        inode.changes.clear()
        inode.failed = 0
        inode.find_room(self._blocks(inode.size))

    def _settled(self, inode: Inode, size: int, data: bytes | None = None) -> Content:
        if self._read is not None:
            return Content(size=size, load=functools.partial(self._read, inode))
        return inode.base.with_changes(inode.changes) if data is None else Content(data)

    def pin(self, inode: Inode) -> None:
        """Keep the durable bytes of a file. With `read`, call it before the real file changes or loses its name."""
        if inode.kind == "file" and not inode.changes:
            _ = inode.base.data

    # -- crashes -----------------------------------------------------------------------------------------------------

    def now(self) -> Image:
        """What the host sees, and what every crash of another host leaves."""
        return self._image(self._log.open, Range.newest)

    def outcomes(self) -> Iterator[Image]:
        """What the disk may hold after a crash of its host: each once, the most suspicious first, perhaps very many.

        First the names without the bytes, then neither of them, then one file at a time that differs from what the host
        saw, then one name at a time, then everything else.
        """
        seen: set[object] = set()
        known: dict[State, object] = {}
        for image in self._suspicious():
            key = tuple((path, self._distinguished(state, known)) for path, state in image.nodes)
            if key not in seen:
                seen.add(key)
                yield image

    def _distinguished(self, state: State, known: dict[State, object]) -> object:
        """The value by which states count as equal: the bytes, if there are few."""
        if isinstance(state, int) or state.size > _SMALL:
            return state
        if state not in known:
            known[state] = state.inode, self.content(state)
        return known[state]

    def _suspicious(self) -> Iterator[Image]:
        every = tuple(self._log.open)
        yield self._image(every, Range.oldest)
        yield self._image((), Range.oldest)
        ranges = self._ranges(every)
        yield self._image(every, Range.unwritten)
        for number, each in ranges.items():
            yield self._image(every, functools.partial(_fixed, {number: each.oldest()}))
        yield self.now()
        for chosen in itertools.islice(self._log.choices(), 1, None):
            yield self._image(chosen, Range.newest)
            yield self._image(chosen, Range.oldest)
        for chosen in self._log.choices():
            for number, each in self._ranges(chosen).items():
                for state in _first_states(each, _FEW):
                    yield self._image(chosen, functools.partial(_fixed, {number: state}))
        for chosen in self._log.choices():
            ranges = self._ranges(chosen)
            for states in itertools.product(*(_first_states(each, _MANY) for each in ranges.values())):
                yield self._image(chosen, functools.partial(_fixed, dict(zip(ranges, states, strict=True))))

    def drawn(self, draw: Draw) -> Image:
        """One of the outcomes."""
        chosen = self._log.drawn(draw)
        return self._image(chosen, lambda file: file.drawn(draw))

    def contents(self, image: Image) -> dict[str, bytes | None]:
        """The bytes of each file; None for a folder."""
        return {path: self.content(state) for path, state in image.nodes}

    def content(self, state: State) -> bytes | None:
        """The bytes of a file, or the target of a link; None for a folder."""
        if isinstance(state, int):
            inode = self._inodes[state]
            return inode.target.encode() if inode.kind == "link" else None
        inode = self._inodes[state.inode]
        # The number of changes determines which changes of size were chosen: they are in order.
        ordered = [change.entry for change in inode.changes if change.entry >= 0]
        chosen = {e for e in ordered if e in self._log.kept or e not in self._log.open}
        chosen |= {c.entry for c in inode.changes[: state.applied] if c.entry >= 0}
        return Range(inode, self.profile, chosen).content(state)

    def inode_of(self, state: State) -> Inode:
        """The inode that is in that state."""
        return self._inodes[state if isinstance(state, int) else state.inode]

    def settle(self, image: Image) -> None:
        """Make this image the durable content, after the host is up again; with `read`, the real files have it too."""
        contents = {} if self._read else {state: self.content(state) for _, state in image.nodes}
        inodes = {_ROOT: self._inodes[_ROOT]}
        names: Names = {}
        at: dict[str, int] = {"": _ROOT}
        for path, state in image.nodes:
            inode = self.inode_of(state)
            if inode.number not in inodes:
                inodes[inode.number] = inode
                inode.emptied = False
                if isinstance(state, FileState) and inode.changes:
                    inode.base = self._settled(inode, state.size, contents.get(state))
                    inode.changes = []
                    inode.failed = 0
                if inode.kind == "file":
                    inode.room, inode.without_room = self._blocks(inode.base.size), []
            folder, _, name = path.rpartition("/")
            names[at[folder], name] = at[path] = inode.number
        self._inodes, self._live = inodes, names
        self._unnamed.clear()
        self._log = Log(self.profile, dict(names))

    # -- the inside --------------------------------------------------------------------------------------------------

    def _new(self, kind: Literal["file", "folder", "link"]) -> Inode:
        self._count += 1
        inode = self._inodes[self._count] = Inode(self._count, kind, NOTHING)
        return inode

    def adopt(self, path: str, kind: Literal["file", "folder", "link"], content: Content, target: str = "") -> Inode:
        """Add something that is on the disk from the beginning, and durable."""
        inode = self._new(kind)
        inode.base, inode.target, inode.room = content, target, self._blocks(content.size)
        place = self._place(path)
        self._live[place] = self._log.durable[place] = inode.number
        return inode

    def _set(self, path: str, inode: Inode, *, resizes: bool = False) -> None:
        place = self._place(path)
        self._live[place] = inode.number
        self._log.add([(place, inode.number)], about=[inode.number], resizes=resizes)

    def _place(self, path: str) -> tuple[int, str]:
        *above, name = _parts(path)
        folder = self.find("/".join(above))
        if folder is None:
            raise KeyError(path)
        return folder.number, name

    def _image(self, chosen: tuple[int, ...] | list[int], state: Callable[[Range], FileState]) -> Image:
        names = self._log.with_entries(chosen)
        there = self._there(chosen)
        states: dict[int, State] = {}
        nodes = []
        for path, number in _walk(names, self._inodes):
            if number not in states:
                inode = self._inodes[number]
                is_file = inode.kind == "file"
                states[number] = state(Range(inode, self.profile, there)) if is_file else number
            nodes.append((path, states[number]))
        return Image(tuple(nodes))

    def _there(self, chosen: tuple[int, ...] | list[int]) -> set[int]:
        """The entries that are durable in that case."""
        lost = set(self._log.open).difference(chosen)
        return {change.entry for i in self._inodes.values() for change in i.changes} - lost

    def _ranges(self, chosen: tuple[int, ...] | list[int]) -> dict[int, Range]:
        """The files that would be there, and have more than one state."""
        there = self._there(chosen)
        found: dict[int, Range] = {}
        for _, number in _walk(self._log.with_entries(chosen), self._inodes):
            inode = self._inodes[number]
            if inode.kind == "file" and inode.changes and number not in found:
                found[number] = Range(inode, self.profile, there)
        return found

    def _forget(self) -> None:
        """Drop inodes to which no name leads any more, now or after any crash."""
        used = {_ROOT, *self._unnamed, *self._live.values(), *self._log.durable.values()}
        for entry in self._log.entries:
            used.update(entry.about)
        for number in [number for number in self._inodes if number not in used]:
            del self._inodes[number]


def _fixed(states: Mapping[int, FileState], file: Range) -> FileState:
    """The given state of a file; the newest of other files."""
    return states.get(file.inode.number) or file.newest()


def _first_states(file: Range, most: int) -> list[FileState]:
    return list(itertools.islice(dict.fromkeys(itertools.islice(file.states(), 4 * most)), most))


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _walk(names: Names, inodes: Mapping[int, Inode]) -> list[tuple[str, int]]:
    """Every path and its inode's number, folders first, by name."""
    children: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), number in names.items():
        children.setdefault(folder, []).append((name, number))
    found: list[tuple[str, int]] = []
    waiting = [("", _ROOT)]
    while waiting:
        above, folder = waiting.pop()
        for name, number in sorted(children.get(folder, ())):
            path = f"{above}{name}"
            found.append((path, number))
            if inodes[number].kind == "folder" and len(waiting) < len(names):
                waiting.append((f"{path}/", number))
    return found
