"""The numbers that a fault draws, the same in a simulation and on real processes.

A trigger, or the operations of a rank, draw from a stream: their moments come once and in order. A rule on the network
is asked any number of times, about any moment: its numbers are a hash of the question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from simdist.faults._fault import Fault

__all__ = ["draws_for", "numbers_for", "uniform_ns"]


def draws_for(
    fault: Fault, earlier: Sequence[Fault], *, seed: int, life: int, rank: int | None = None, use: str = ""
) -> Callable[[], float]:
    """Return numbers from 0 to 1, the same for the same fault in a life of a run with `seed`.

    With `rank` they are for the operations of this rank: each rank has a stream of its own.

    The stream's name is the fault's own words, so adding or removing other faults does not change it. Equal faults have
    different streams, by how many are `earlier` in the run. The stream is made when the first number is asked for. A
    fault that draws for several uses has a stream for each.
    """
    made: list[Any] = []

    def draw() -> float:
        if not made:
            from simdist.kernel import stream

            whose = "" if rank is None else f", rank {rank}"
            made.append(stream(seed, f"{_words(fault, earlier)}, life {life}{whose}{use and f', {use}'}"))
        return float(made[0].random())

    return draw


def uniform_ns(most_ns: int, draw: Callable[[], float]) -> int:
    """Return a time from 0 to `most_ns`, evenly distributed, by the next number that is drawn."""
    return int(draw() * (most_ns + 1))


def numbers_for(fault: Fault, earlier: Sequence[Fault], *, seed: int) -> Callable[..., float]:
    """Return a function that gives a number from 0 to 1 for words and numbers, always the same in a run with `seed`.

    As with streams, other faults do not change these numbers, and equal faults have different ones.
    """
    key = hashlib.blake2b(f"{seed} {_words(fault, earlier)}".encode(), digest_size=32).digest()

    def number(*words: str | int) -> float:
        found = hashlib.blake2b(repr(words).encode(), digest_size=8, key=key).digest()
        return (int.from_bytes(found, "big") >> 11) / (1 << 53)

    return number


def _words(fault: Fault, earlier: Sequence[Fault]) -> str:
    words = repr(fault)
    return f"{words}, {sum(repr(each) == words for each in earlier)} like it before"
