"""First states of the global random generators of a rank's process, in place of the operating system's entropy."""

from __future__ import annotations

import hashlib

__all__ = ["GENERATOR_WORDS", "generator_words"]

GENERATOR_WORDS = 624  # of a Mersenne Twister's state


def generator_words(seed: int, rank: int, life: int, lineage: str = "") -> tuple[bytes, bytes, bytes]:
    """The state of Python's generator and that of numpy's, 624 words each, and torch's seed, of 8 bytes.

    A function of the run's seed, the rank, its life and, in a child process, whose child it is (`lineage`).
    """
    size = 4 * GENERATOR_WORDS
    words = hashlib.shake_128(f"{seed} rank {rank} life {life}{lineage} generators".encode()).digest(2 * size + 8)
    return words[:size], words[size : 2 * size], words[2 * size :]
