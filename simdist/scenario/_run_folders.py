"""The folder of a run, `{tmp}` of a scenario: fresh, gone afterwards, and at the same path in every run.

Programs send paths to each other (DCP broadcasts where it saves) and write them into files, so a random name would make
every run another one. The name is the scenario's, with its seed. Where another run of it is under way, in a second
terminal or on another worker of pytest-xdist, the next free of `name`, `name-2`, ... is taken: two runs of one seed at
one time differ if their programs tell paths.

A run that was killed leaves its folder behind. What tells it from one in use is a lock that ends with its process; the
next run clears it away.
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
    """A fresh folder for a run of what is called `name`, in `inside` or where temporary files go."""
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
            # What ranks have left is cleared away with `waste`, whatever its permissions are.
            with suppress(OSError):
                wanted.rename(Path(waste) / "run")
            os.close(lock)


def _taken(path: Path, waste: str) -> int | None:
    """A descriptor that keeps the folder, made afresh, for this process; None if it is another's."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        left = _locked(path)
        if left is None:
            return None
        try:
            path.rename(tempfile.mkdtemp(dir=waste))
            path.mkdir(mode=0o700)
        except OSError:
            return None
        finally:
            os.close(left)
    return _locked(path)


def _locked(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, there = os.fstat(descriptor), path.lstat()  # another may have moved it away meanwhile
        if (held.st_ino, held.st_dev) == (there.st_ino, there.st_dev) and held.st_uid == os.geteuid():
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
