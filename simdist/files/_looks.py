"""Which files were overwritten before anything looked at them, since the noting began.

The content of these files cannot have made a difference. A file is looked at by everything that opens it, including C
code and other programs (the system reports them, by inotify), and by `os.stat`, `os.scandir`, a rename or a link on a
rank. It is overwritten when it is emptied, replaced or removed by a call that can be noticed. Everything else that
happens to a file counts as a look. C code that reads the size of a file without opening it is not noticed.
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

_inotify = -1  # one for all worlds until `Looks.end`: closing one takes the system longer than a world lives


class Looks:
    """Notes looks from now on. `files` are the existing real files, each with its name in reports.

    Raises:
        OSError: the system does not report which files are opened.
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        self._left = {real: name for real, name in files if os.lstat(real).st_nlink == 1}  # not looked at yet
        self._folders = {_watched(folder): folder for folder in dict.fromkeys(map(os.path.dirname, self._left))}
        self.unread: list[str] = []  # overwritten before anything looked at them

    @staticmethod
    def end() -> None:
        """Let the system report nothing more: nothing is noted any more."""
        global _inotify
        if _inotify >= 0:
            original(os.close)(_inotify)
            _inotify = -1

    def at(self, real: str) -> None:
        """Note a look at a file."""
        self._left.pop(real, None)

    def below(self, real: str) -> None:
        """Note a look at a file, or at everything in a folder."""
        for each in [each for each in self._left if each == real or each.startswith(f"{real}/")]:
            del self._left[each]

    def overwrites(self, real: str) -> None:
        """Note that a file is about to lose its content."""
        if real in self._left:
            self._hear()
            name = self._left.pop(real, None)
            if name is not None:
                self.unread.append(name)

    def _hear(self) -> None:
        """Read the system's reports of opened files."""
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
