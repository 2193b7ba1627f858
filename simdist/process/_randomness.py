"""The global random generators, one state per process.

Python's `random`, numpy's legacy generator and a third one (torch's, which the layer above brings) are process-wide
objects, some of them drawn from in C++; each process must find its own state in them when it runs. A real process seeds
them from the operating system. Here they start with numbers that are a function of the run's seed, the rank and its
life. They differ from rank to rank, so that a forgotten seed shows.

Copying all states by the generators' own methods at every switch would cost more than the switch (numpy alone 90 µs).
So a state is saved only if a generator was drawn from, which a few of its words show, and set by copying memory.
The layer above does both (`Memory`), at each hand-over.
States are compared by content: between ranks that have seeded alike and draw alike nothing is copied.

In doubt: the words of a generator are looked for in memory, and compared with what its methods return. If they are not
found, the state is copied by these methods. So is a state that keeps the second of a pair of Gaussians: that number
lies elsewhere, and drawing it changes no word.
"""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from simdist.inside.python import address_of_buffer, own_random_words, words_at
from simdist.values import GENERATOR_WORDS, generator_words

__all__ = ["GlobalGenerator", "Memory", "RandomStates", "States", "global_generators"]


_NEAR = 8  # words this near are compared at once, with those between them
_POSITION = array("I", [GENERATOR_WORDS]).tobytes()  # of a generator that has given all its words


class GlobalGenerator(Protocol):
    """A global generator.

    `memory` are the bytes of its state; None if they were not found. `at` are the indices of two 32-bit words in it
    that change with every draw and seed: the position and the second word of the state. The first word is the same for
    all seeds that are arrays, as Python's are.
    """

    memory: memoryview[int] | None
    at: tuple[int, int]

    def __hash__(self) -> int: ...

    def save(self) -> Hashable:
        """Its state, as something hashable."""
        ...

    def load(self, state: Hashable) -> None:
        """Set its state."""
        ...

    def fresh(self, chance: bytes) -> Hashable:
        """The state of a new process that drew these bytes (see `generator_words`); made without touching it."""
        ...

    def fresh_memory(self, chance: bytes) -> bytes:
        """Likewise its bytes in `memory`."""
        ...

    def holds_gaussian(self, state: Hashable) -> bool:
        """True if a state keeps the second of a pair of Gaussians."""
        ...


class Memory(Protocol):
    """Reads memory and writes to it; a place is an address and a size in bytes."""

    def exchanging(
        self, watched: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]], /
    ) -> Callable[[bytes, bytes], bool]:
        """Return a function of the bytes that `watched` should hold, and those to write to `places` if they do.

        Empty bytes skip the comparison, or the write. It returns False if `watched` hold something else.
        """
        ...


class States:
    """The states of the three generators, as one process left them.

    `save` makes what `GlobalGenerator.save` returns; `raw` are the same as bytes in memory, None if a state has parts
    elsewhere; `seen` are the bytes at the places that a draw would change.
    """

    __slots__ = ("raw", "save", "seen")

    def __init__(
        self,
        save: Callable[[], Sequence[Hashable]],
        raw: bytes | None = None,
        seen: bytes = b"",
    ) -> None:
        self.save = save
        self.raw = raw
        self.seen = seen


class _Python:
    """The generator behind the functions of `random`."""

    at = (0, 2)

    def __init__(self) -> None:
        self._instance: Any = random._inst
        words = own_random_words()
        self.memory: memoryview[int] | None = None if words is None else words.cast("B")

    def save(self) -> Hashable:
        if self.memory is None:
            state: Hashable = self._instance.getstate()
            return state
        return self.memory.tobytes(), None, self._instance.gauss_next

    def load(self, state: Any) -> None:
        if self.memory is None:
            self._instance.setstate(state)
            return
        self.memory[:] = state[0]
        self._instance.gauss_next = state[2]

    def fresh(self, chance: bytes) -> Hashable:
        if self.memory is None:
            return random.Random.VERSION, (*array("I", chance), GENERATOR_WORDS), None
        return self.fresh_memory(chance), None, None

    def fresh_memory(self, chance: bytes) -> bytes:
        return _POSITION + chance

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


class _Numpy:
    """`numpy.random`'s legacy generator: 624 words and a position at the documented address of the bit generator."""

    at = (GENERATOR_WORDS, 1)

    def __init__(self) -> None:
        self._state = np.random.mtrand._rand
        bits = self._state._bit_generator
        self.memory: memoryview[int] | None = None
        if type(bits).__name__ == "MT19937":
            self.memory = words_at(bits.ctypes.state_address, GENERATOR_WORDS + 1).cast("B")

    def save(self) -> Hashable:
        state = self._state.get_state(legacy=False)
        inner = state["state"]
        gaussian = (state["bit_generator"], state["gauss"]) if state["has_gauss"] else None
        return inner["key"].tobytes(), int(inner["pos"]), gaussian

    def load(self, state: Any) -> None:
        key, position, gaussian = state
        self._state.set_state(
            {
                "bit_generator": "MT19937",
                "state": {"key": np.frombuffer(key, dtype=np.uint32), "pos": position},
                "has_gauss": int(gaussian is not None),
                "gauss": gaussian[1] if gaussian is not None else 0.0,
            }
        )

    def fresh(self, chance: bytes) -> Hashable:
        return chance, GENERATOR_WORDS, None

    def fresh_memory(self, chance: bytes) -> bytes:
        return chance + _POSITION

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


@functools.cache
def global_generators(third: GlobalGenerator) -> tuple[GlobalGenerator, GlobalGenerator, GlobalGenerator]:
    """Python's, numpy's, and the one that the layer above brings."""
    return _Python(), _Numpy(), third


@functools.lru_cache(maxsize=256)
def _fresh(seed: int, rank: int, life: int, lineage: str, third: GlobalGenerator) -> States:
    """The states that a process begins with."""
    python, legacy, other = global_generators(third)
    a, b, c = generator_words(seed, rank, life, lineage)
    states = States(lambda: (python.fresh(a), legacy.fresh(b), other.fresh(c)))
    if len(_places(third)) == 3:
        raw = [python.fresh_memory(a), legacy.fresh_memory(b), other.fresh_memory(c)]
        states.raw, states.seen = b"".join(raw), _seen(raw, other)
    return states


def _seen(raw: Sequence[bytes], third: GlobalGenerator) -> bytes:
    return b"".join([raw[index][first:end] for index, first, end in _watched(third)])


@functools.cache
def _places(third: GlobalGenerator) -> list[tuple[int, int]]:
    """The address and the number of bytes of each generator whose memory was found."""
    memory = [each.memory for each in global_generators(third)]
    places = [(address_of_buffer(each), each.nbytes) for each in memory if each is not None]
    return [(address, size) for address, size in places if address is not None]


@functools.cache
def _watched(third: GlobalGenerator) -> list[tuple[int, int, int]]:
    """The bytes that change with every draw: index of the generator, first byte and end."""
    found = []
    for index, generator in enumerate(global_generators(third)):
        first, last = sorted(generator.at)
        words = [(first, last)] if last - first < _NEAR else [(first, first), (last, last)]
        found += [(index, 4 * begin, 4 * end + 4) for begin, end in words]
    return found


class RandomStates:
    """The three generators, and whose states are loaded in them.

    Example:
        >>> states = RandomStates(0, third, memory)    # remembers the host's states
        >>> states.load(states.fresh(1, 0))            # what rank 1 starts with
        >>> states.restore()                           # the host's again
    """

    def __init__(self, seed: int, third: GlobalGenerator, memory: Memory) -> None:
        self._generators = global_generators(third)
        self._seed = seed
        self._known: dict[Hashable, Any] = {}
        found = [each.memory for each in self._generators]
        self._memory = [each for each in found if each is not None]
        places = _places(third)
        self._quick = len(places) == 3  # all three can be looked at, and set, in memory
        watched = _watched(third) if self._quick else []
        self._exchange = memory.exchanging(
            [(places[index][0] + first, end - first) for index, first, end in watched], places
        )
        self.loaded: States  # what the generators hold, unless the running process has drawn since
        if self._quick and _left is not None and self._exchange(_left.seen, b""):
            self.loaded = _left
        else:
            self.loaded = self._read()
        self._host = self.loaded

    def fresh(self, rank: int, life: int, lineage: str = "") -> States:
        """The states that a process starts with: a rank's in one life, or its child's."""
        return _fresh(self._seed, rank, life, lineage, self._generators[2])

    def save(self) -> States:
        """The states as the running process leaves them; cheap if it drew nothing."""
        loaded = self.loaded
        if loaded.raw is not None and self._exchange(loaded.seen, b""):
            return loaded
        self.loaded = self._read()
        return self.loaded

    def load(self, states: States) -> None:
        """Put a process's states into the generators."""
        loaded = self.loaded
        if states is loaded:
            return
        raw = states.raw
        if raw is not None and loaded.raw is not None:
            self._exchange(b"", raw)
        else:
            for generator, state in zip(self._generators, states.save(), strict=True):
                generator.load(state)
        self.loaded = states

    def exchange(self, states: States) -> States:
        """Save what the running process leaves, and load another's. Hot: one call if the former drew nothing."""
        loaded, raw = self.loaded, states.raw
        if raw is not None and loaded.raw is not None:
            exchange = self._exchange
            if exchange(loaded.seen, b"" if states is loaded else raw):
                self.loaded = states
                return loaded
        left = self.save()
        self.load(states)
        return left

    def restore(self) -> None:
        """Put the host's states back."""
        global _left
        self.save()
        self.load(self._host)
        _left = self.loaded if self.loaded.raw is not None else None

    def adopt(self) -> None:
        """Take what the generators hold now as the host's states: `restore` goes back to these."""
        self._host = self.save()

    def _read(self) -> States:
        """What the generators hold; processes that draw alike share it."""
        if len(self._known) > 4096:
            self._known.clear()  # only an aid to recognise equal states
        found = [(generator, generator.save()) for generator in self._generators]
        saved = tuple(self._known.setdefault(state, state) for _, state in found)
        known: States | None = self._known.get(saved)
        if known is None:
            known = self._known[saved] = States(lambda: saved)
            if self._quick and not any(generator.holds_gaussian(state) for generator, state in found):
                raw = [bytes(each) for each in self._memory]
                known.raw, known.seen = b"".join(raw), _seen(raw, self._generators[2])
        return known


# The host's states as a world left them: if the generators still hold them, there was no draw, and the next world need
# not read them.
_left: States | None = None
