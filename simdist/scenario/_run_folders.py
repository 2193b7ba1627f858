"""The folder of a run, `{tmp}` of a scenario: fresh, removed afterwards, and at the same path in every run.

Programs send paths to each other (DCP broadcasts where it saves) and write them into files, so a random name would make
every run a different one. The name is the scenario's, with its seed. If another run of it is going on, in a second
terminal or on another worker of pytest-xdist, the next free of `name`, `name-2`, ... is used: two simultaneous runs of
one seed differ if their programs print paths.

A run that was killed leaves its folder behind, and a lock file next to it. The lock on the file marks folders in use,
and ends with its process; the next run removes folders without a lock. Programs may do anything with the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["run_folder"]


@contextmanager
def run_folder(name: str, seed: int, inside: str | None = None) -> Iterator[str]:
    """A fresh folder for a run called `name`, in `inside` or where temporary files go."""
    called = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60]
    with tempfile.TemporaryDirectory(prefix="simdist-", dir=inside, ignore_cleanup_errors=True) as waste:
        wanted = Path(waste).with_name(f"simdist-{called}-{seed}")
        number = 1
        while (lock := _taken(wanted, waste)) is None:
            number += 1
            wanted = wanted.with_name(f"simdist-{called}-{seed}-{number}")
        try:
            yield str(wanted)
        finally:
            # The ranks' files are removed with `waste`, whatever their permissions are.
            with suppress(OSError):
                wanted.rename(Path(waste) / "run")
            _give_back(wanted, lock)


def _taken(path: Path, waste: str) -> int | None:
    """Make the folder afresh for this process; return the lock's descriptor, or None if another process has it."""
    lock = _locked(_beside(path))
    if lock is None:
        return None
    try:
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.geteuid():
                path.rename(tempfile.mkdtemp(dir=waste))  # a file or a link can't take its place
        path.mkdir(mode=0o700)
    except OSError:
        _give_back(path, lock)
        return None
    return lock


def _give_back(path: Path, lock: int) -> None:
    with suppress(OSError):
        _beside(path).unlink()
    os.close(lock)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _locked(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, there = os.fstat(descriptor), path.lstat()  # its last holder may just have removed it
        if (held.st_ino, held.st_dev) == (there.st_ino, there.st_dev):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
