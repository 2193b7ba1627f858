"""The bytes of a file, as its old content and the changes since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

__all__ = ["NOTHING", "Change", "Content", "after"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a file's bytes: `data` written at `offset`, or, with data None, the size set to `size`.

    `before` and `size` are the file's sizes before and after. `entry` is the number of a change of size in the disk's
    log, where sizes are ordered with names; -1 otherwise.
    """

    offset: int
    data: bytes | memoryview | None
    before: int
    size: int
    entry: int = -1

    def alters(self, start: int, end: int) -> bool:
        """True if it changes existing bytes between `start` and `end`, or adds new ones there."""
        if self.data is not None:
            return self.offset < end and start < self.offset + len(self.data)
        return self.size < min(end, self.before) and start < self.before

    def flipped(self, offset: int, bit: int) -> Change:
        """The same change with a bit of one of the file's bytes flipped, if it writes there."""
        if self.data is None or not self.offset <= offset < self.offset + len(self.data):
            return self
        return replace(self, data=_flipped(self.data, offset - self.offset, bit))

    def frees(self, start: int) -> bool:
        """True if a change of size removes everything from `start` on."""
        return self.data is None and self.size <= start < self.before


class Content:
    """Bytes that do not change. Read by `load` when first needed, if that is given.

    Example:
        >>> Content(b"abc").with_changes([Change(4, b"e", 3, 5)]).read(0, 6)
        b'abc\\x00e\\x00'
    """

    __slots__ = ("_data", "_load", "size")

    def __init__(
        self, data: bytes | memoryview = b"", *, size: int = -1, load: Callable[[], bytes | memoryview] | None = None
    ) -> None:
        self._data = data
        self._load = load
        self.size = len(data) if size < 0 else size

    @property
    def held_bytes(self) -> int:
        """How many of them are in memory."""
        return len(self._data) if isinstance(self._data, bytes) else 0

    @property
    def is_held(self) -> bool:
        """True if it is kept here; False if it would have to be read first."""
        return self._load is None

    @property
    def data(self) -> bytes | memoryview:
        """All of it."""
        if self._load is not None:
            self._data, self._load = self._load()[: self.size], None
        return self._data

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, zeros beyond the size."""
        found = bytes(self.data[start:end])
        return found + bytes(end - start - len(found))

    def flipped(self, offset: int, bit: int) -> Content:
        """The same content with a bit of a byte flipped, if it has that byte."""
        return Content(_flipped(self.data, offset, bit)) if offset < self.size else self

    def with_changes(self, changes: Sequence[Change]) -> Content:
        """The content after all these changes."""
        if not changes:
            return self
        first = changes[0]
        if len(changes) == 1 and first.data is not None and first.offset == 0 and first.size == len(first.data):
            return Content(first.data)
        made = bytearray(b"" if _forgets(changes) else self.data)
        for change in changes:
            if change.data is None:
                del made[change.size :]
                made.extend(bytes(change.size - len(made)))
            else:
                made.extend(bytes(max(change.offset - len(made), 0)))
                made[change.offset : change.offset + len(change.data)] = change.data
        return Content(bytes(made))


def _flipped(data: bytes | memoryview, offset: int, bit: int) -> bytes:
    made = bytearray(data)
    made[offset] ^= 1 << bit
    return bytes(made)


def _forgets(changes: Sequence[Change]) -> bool:
    """True if nothing is left of the old content."""
    return changes[0].data is None and changes[0].size == 0


NOTHING = Content()


def after(base: Content, changes: Sequence[Change], start: int, end: int) -> bytes:
    """The bytes between `start` and `end` after the changes; zeros beyond the file's end."""
    made = bytearray(base.read(start, end))
    for change in changes:
        if change.data is None:
            if change.alters(start, end):
                at = max(change.size, start) - start
                made[at:] = bytes(len(made) - at)
        elif change.alters(start, end):
            low, high = max(change.offset, start), min(change.offset + len(change.data), end)
            made[low - start : high - start] = memoryview(change.data)[low - change.offset : high - change.offset]
    return bytes(made)
