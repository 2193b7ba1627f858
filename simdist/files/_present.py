"""The disks of the running world: where a path or a descriptor leads, for the calling rank."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

from simdist.files._disks import Disks
from simdist.files._mounted import MountedDisk, OpenFile
from simdist.process import SimProcess, current_process, original

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath

__all__ = ["Spot", "asks", "flags_of", "forget", "is_there", "opened", "present_disks", "put", "reached", "spot"]

_disks: Disks | None = None
_asking: set[SimProcess] = set()  # processes for which a path is looked up; the look-up itself looks at folders


Make = Callable[[Callable[..., Never]], Callable[..., object]]  # makes a function's replacement from the original


@dataclass(frozen=True, slots=True)
class Spot:
    """A place on a disk that a rank has named."""

    disk: MountedDisk
    process: SimProcess
    place: str

    @property
    def real(self) -> str:
        """The real path."""
        return self.disk.real(self.place)


def put(disks: Disks) -> None:
    """Set the disks of the running world."""
    global _disks
    _disks = disks


def forget() -> None:
    """Forget the disks: there are none any more."""
    global _disks
    _disks = None
    _asking.clear()


def present_disks() -> Disks | None:
    """The disks of the running world, for any caller."""
    return _disks


def spot(path: StrOrBytesPath, folder: int | None = None, *, follow: bool = False) -> Spot | None:
    """The place to which a path leads, relative to the open `folder`; None if elsewhere, or if no rank calls.

    With `follow` a link at its end is followed.
    """
    disks = _disks
    if disks is None or disks.busy:
        return None
    process = current_process()
    if process is None:
        return None
    outermost = process not in _asking
    _asking.add(process)
    try:
        for disk in disks.of(process.host):
            place = disk.place_of(path, folder, follow=follow)
            if place is not None:
                return Spot(disk, process, place)
    finally:
        if outermost:
            _asking.discard(process)
    return None


def asks(process: SimProcess) -> bool:
    """True while a path is looked up for the process."""
    return process in _asking


def is_there(real: str) -> bool:
    """True if something exists at a real path, whether or not a host sees it."""
    try:
        original(os.lstat)(real)
    except OSError:
        return False
    return True


def opened(descriptor: object) -> tuple[MountedDisk, OpenFile] | None:
    """The file that a rank has open there, and its disk; None if it is elsewhere."""
    disks = _disks
    if disks is None or disks.busy or current_process() is None:
        return None
    number = descriptor if isinstance(descriptor, int) else None
    if number is None and hasattr(descriptor, "fileno"):
        number = descriptor.fileno()
    if number is None:
        return None
    for disk in disks:
        found = disk.open.get(number)
        if found is not None:
            return disk, found
    return None


def reached(descriptor: object) -> tuple[MountedDisk, OpenFile] | None:
    """The file on a disk to which a descriptor leads, however it was opened: to read, by C code, as a copy of another.

    A sync is of the file, for any descriptor.
    """
    found = opened(descriptor)
    if found is not None:
        return found
    disks, process = _disks, current_process()
    if disks is None or disks.busy or process is None:
        return None
    number = descriptor if isinstance(descriptor, int) else getattr(descriptor, "fileno", lambda: -1)()
    if not isinstance(number, int) or number < 0:
        return None
    for disk in disks.of(process.host):
        place = disk.place_of_descriptor(number)
        inode = None if place is None else disk.find(place)
        if place is not None and inode is not None:
            return disk, OpenFile.with_flags(inode, process, place, flags_of(number))
    return None


def flags_of(number: int) -> int:
    """The flags of open(2) of a descriptor."""
    flags: int = fcntl.fcntl(number, fcntl.F_GETFL)
    return flags
