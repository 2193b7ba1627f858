"""Which files have been overwritten before anybody looked at them, since somebody has begun to note it.

What such a file held can have made no difference to anybody. A file is looked at by what opens it, C code and other
programs included (the system reports them, by inotify), and by `os.stat`, `os.scandir`, a rename or a link on a rank;
it is overwritten when it is emptied, replaced or removed by a call that can be seen. Whatever else happens to a file
counts as a look. Not noticed is C code that asks for the size of a file which it does not open.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from simdist.inside.system import watch_opens
from simdist.process import original

__all__ = ["Looks"]

_OPENED = 0x20 | 0x40  # IN_OPEN, IN_MOVED_FROM
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")  # folder, what, cookie, bytes of the name

_inotify = -1  # one for all worlds until `Looks.end`: to close one takes the system longer than a world lives


class Looks:
    """Notes from now on. `files` are the real files that there are, each with the name that it goes by.

    Raises:
        OSError: the system does not report who opens files.
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        self._left = {real: name for real, name in files if os.lstat(real).st_nlink == 1}  # that nobody has looked at
        self._folders = {_watched(folder): folder for folder in dict.fromkeys(map(os.path.dirname, self._left))}
        self.unread: list[str] = []  # that have been overwritten before anybody looked at them

    @staticmethod
    def end() -> None:
        """Nobody notes anything any more: have the system report nothing."""
        global _inotify
        if _inotify >= 0:
            original(os.close)(_inotify)
            _inotify = -1

    def at(self, real: str) -> None:
        """Somebody looks at a file."""
        self._left.pop(real, None)

    def below(self, real: str) -> None:
        """Somebody looks at a file, or at all that is in a folder."""
        for each in [each for each in self._left if each == real or each.startswith(f"{real}/")]:
            del self._left[each]

    def overwrites(self, real: str) -> None:
        """A file is about to lose what it holds."""
        if real in self._left:
            self._hear()
            name = self._left.pop(real, None)
            if name is not None:
                self.unread.append(name)

    def _hear(self) -> None:
        """Take in who has opened what."""
        while True:
            try:
                data = original(os.read)(_inotify, 65_536)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                folder, what, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                if what & _OVERFLOW:
                    self._left.clear()
                elif what & _OPENED and folder in self._folders:
                    self._left.pop(f"{self._folders[folder]}/{name}", None)


def _watched(folder: str) -> int:
    global _inotify
    _inotify, watch = watch_opens(_inotify, folder, _OPENED)
    return watch
