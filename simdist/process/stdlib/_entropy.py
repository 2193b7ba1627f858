"""The operating system's random bytes, as a function of the run's seed, the rank and its life.

Nearly all of them come from `os.urandom`: for `uuid.uuid4`, `secrets`, `random.SystemRandom`, and through `secrets` for
numpy's generators without a seed. Python's own generators without a seed ask the system in C; here they get their seed
from the same streams.

Each use draws from a stream of its own, and so does each module that draws while it is imported: only the first world
of a process imports it, and the second must draw the same.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import random
import sys
from collections.abc import Callable

from simdist.process._imports import module_under_import
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime

__all__ = ["drawn_from", "install"]

_SEED_BYTES = 32


def drawn_from(process: SimProcess, stream: str, size: int) -> bytes:
    """The next `size` bytes of one of the process's streams. Called on the process's own thread."""
    runtime = current_runtime()
    assert runtime is not None
    module = module_under_import(sys._getframe(1))
    if module:
        stream += f" of {module}"
    index = process.entropy[stream] = process.entropy.get(stream, -1) + 1
    words = f"{runtime.seed} rank {process.rank} life {process.life}{process.lineage} {stream} {index}"
    return hashlib.shake_128(words.encode()).digest(size)


def _urandom(original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    @functools.wraps(original)
    def urandom(size: int, /) -> bytes:
        process = current_process()
        if process is None:
            return original(size)
        length = operator.index(size)
        return original(length) if length < 0 else drawn_from(process, "urandom", length)  # the original refuses

    return urandom


def _getrandom(original: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(original)
    def getrandom(size: int, flags: int = 0) -> bytes:
        found = original(size, flags)  # it may refuse, or give less
        process = current_process()
        return found if process is None else drawn_from(process, "getrandom", len(found))

    return getrandom


def _seed(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def seed(self: random.Random, a: object = None, version: int = 2) -> None:
        if a is None:
            process = current_process()
            if process is not None:
                a = int.from_bytes(drawn_from(process, "random", _SEED_BYTES))
        original(self, a, version)

    return seed


_REPLACEMENTS = tuple(
    Replacement(owner, name, make)
    for owner, name, make in (
        (os, "urandom", _urandom),
        (os, "getrandom", _getrandom),
        (random.Random, "seed", _seed),
    )
    if hasattr(owner, name)
)


def install(patches: Patches) -> None:
    """Replace the sources of chance."""
    patches.redirect(_REPLACEMENTS)
