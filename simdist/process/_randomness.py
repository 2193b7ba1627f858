"""The global random generators, one state per rank.

Python's `random`, numpy's legacy generator and a third one (torch's, which the layer above brings) are process-wide
objects, some of them drawn from in C++; each rank must find its own state in them when it runs. Copying all of it at
every switch would cost more than the switch (numpy alone 90 µs), so a state is saved only if the generator was drawn
from, which a look at its position tells, and loaded only if the next rank's state differs from what is there. Ranks
start with equal states, as processes do that all call `manual_seed` with one seed; states are compared by content, so
ranks that draw alike cost nothing.

Python's and numpy's generators, which a fresh process seeds from the operating system, start from the seed of the run.
"""

from __future__ import annotations

import ctypes
import functools
import random
from array import array
from typing import Any, Protocol

import numpy as np

__all__ = ["GlobalGenerator", "RandomStates", "States", "global_generators", "words_at"]

States = tuple[Any, Any, Any]


class GlobalGenerator(Protocol):
    """A global generator. `words` are 32-bit words of its memory; the two at `watched` change with every draw and seed.

    They are the position and the second word of the state; the first is the same for all seeds that are arrays, as
    Python's are.
    """

    words: memoryview[int] | None
    watched: tuple[int, int]

    def __hash__(self) -> int: ...

    def save(self) -> Any:
        """Its state, as something hashable."""
        ...

    def load(self, state: Any) -> None:
        """Set its state."""
        ...

    def fresh(self, seed: int) -> Any:
        """The state that it has in a new process, in a run with this seed; made without touching the generator."""
        ...

    def holds_gaussian(self, state: Any) -> bool:
        """True if a state keeps the second of a pair of Gaussians; handing that out moves no word."""
        ...


def words_at(address: int, count: int) -> memoryview[int]:
    """The 32-bit words in memory from an address on."""
    return memoryview((ctypes.c_uint32 * count).from_address(address)).cast("B").cast("I")


class _Python:
    """`random._inst`. Its C struct is an index and 624 words right behind the object header (CPython 3.11 to 3.13)."""

    watched = (0, 2)

    def __init__(self) -> None:
        self._instance: Any = random._inst
        self.words: memoryview[int] | None = None
        # The object must be large enough before anything behind its header is read.
        if type(self._instance).__mro__[-2].__basicsize__ >= object.__basicsize__ + 4 * 625:
            words = words_at(id(self._instance) + object.__basicsize__, 625)
            state = self._instance.getstate()[1]
            if words[0] == state[624] and words[1:] == memoryview(array("I", state[:624])):
                self.words = words

    def save(self) -> Any:
        if self.words is None:
            return self._instance.getstate()
        return self.words.tobytes(), None, self._instance.gauss_next

    def load(self, state: Any) -> None:
        if self.words is None:
            self._instance.setstate(state)
            return
        self.words[:] = memoryview(state[0]).cast("I")
        self._instance.gauss_next = state[2]

    def fresh(self, seed: int) -> Any:
        state = random.Random(seed).getstate()
        if self.words is None:
            return state
        *words, index = state[1]
        return array("I", [index, *words]).tobytes(), None, None

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


class _Numpy:
    """`numpy.random`'s legacy generator: 624 words and a position at the documented address of the bit generator."""

    watched = (624, 1)

    def __init__(self) -> None:
        self._state: Any = np.random.mtrand._rand
        bits = self._state._bit_generator
        self.words: memoryview[int] | None = None
        if type(bits).__name__ == "MT19937":
            self.words = words_at(bits.ctypes.state_address, 625)
        self._gaussian = True  # unknown: whether the generator itself keeps one

    def save(self) -> Any:
        state = self._state.get_state(legacy=False)
        kept = bool(state["has_gauss"])
        self._gaussian = kept
        inner = state["state"]
        return inner["key"].tobytes(), int(inner["pos"]), (state["bit_generator"], state["gauss"]) if kept else None

    def load(self, state: Any) -> None:
        key, position, gaussian = state
        if self.words is not None and gaussian is None and not self._gaussian:
            # `set_state` takes 60 µs.
            self.words[:624] = memoryview(key).cast("I")
            self.words[624] = position
            return
        self._state.set_state(
            {
                "bit_generator": "MT19937",
                "state": {"key": np.frombuffer(key, dtype=np.uint32), "pos": position},
                "has_gauss": int(gaussian is not None),
                "gauss": gaussian[1] if gaussian is not None else 0.0,
            }
        )
        self._gaussian = gaussian is not None

    def fresh(self, seed: int) -> Any:
        legacy: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
        return legacy["state"]["key"].tobytes(), int(legacy["state"]["pos"]), None

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


@functools.cache
def global_generators(third: GlobalGenerator) -> tuple[GlobalGenerator, GlobalGenerator, GlobalGenerator]:
    """Python's, numpy's, and the one that the layer above brings."""
    return _Python(), _Numpy(), third


@functools.lru_cache(maxsize=64)
def _fresh_states(seed: int, third: GlobalGenerator) -> States:
    python, numpy, last = (generator.fresh(seed) for generator in global_generators(third))  # equal for all ranks
    return python, numpy, last


class RandomStates:
    """The three generators, and whose states are loaded in them.

    Example:
        >>> states = RandomStates(0, third)    # remembers the host's states
        >>> states.load(states.fresh())        # what each rank starts with
        >>> states.restore()                   # the host's again
    """

    def __init__(self, seed: int, third: GlobalGenerator) -> None:
        self._generators = global_generators(third)
        self._known: dict[Any, Any] = {}
        self._fresh = _fresh_states(seed, third)
        words = [generator.words for generator in self._generators]
        self._words: list[memoryview[int]] = [each for each in words if each is not None]
        self._at_third = self._generators[2].watched
        self._quick = len(self._words) == 3  # all three can be looked at cheaply
        self.loaded: States  # what the generators hold, unless the running rank has drawn since
        if self._quick and _left is not None and _left[1] == self._stands():
            self.loaded, self._seen = _left
            self._quick_now = True
        else:
            python, numpy, third = (generator.save() for generator in self._generators)
            self.loaded = python, numpy, third
            self._look()
        self._host = self.loaded

    def fresh(self) -> States:
        """The states that every rank starts with."""
        return self._fresh

    def save(self) -> States:
        """The states as the running rank leaves them; cheap if it drew nothing."""
        if self._quick_now:
            # Hot, at every switch, hence not `_stands`.
            python, numpy, third = self._words
            a, b = self._at_third
            if (python[0], python[2], numpy[624], numpy[1], third[a], third[b]) == self._seen:
                return self.loaded
        if len(self._known) > 4096:
            self._known.clear()  # only an aid to recognise equal states
        states = [self._known.setdefault(state, state) for state in (g.save() for g in self._generators)]
        loaded = (states[0], states[1], states[2])
        self.loaded = self._known.setdefault(loaded, loaded)  # ranks that draw alike share even the tuple
        self._look()
        return self.loaded

    def load(self, states: States) -> None:
        """Put a rank's states into the generators."""
        loaded = self.loaded
        if states is loaded:
            return
        for index, generator in enumerate(self._generators):
            if states[index] is not loaded[index]:
                generator.load(states[index])
        self.loaded = states
        self._look()

    def restore(self) -> None:
        """Put the host's states back."""
        global _left
        self.save()
        self.load(self._host)
        _left = (self.loaded, self._seen) if self._quick_now else None

    def adopt(self) -> None:
        """The generators hold the host's states, perhaps other ones than before: `restore` goes back to these."""
        self._host = self.save()

    def _look(self) -> None:
        """Remember where the generators stand now."""
        one, two, three = self._generators
        loaded = self.loaded
        gaussian = one.holds_gaussian(loaded[0]) or two.holds_gaussian(loaded[1]) or three.holds_gaussian(loaded[2])
        self._quick_now = self._quick and not gaussian
        if self._quick:
            self._seen = self._stands()

    def _stands(self) -> tuple[int, ...]:
        """The words that change with every draw."""
        python, numpy, third = self._words
        a, b = self._at_third
        return python[0], python[2], numpy[624], numpy[1], third[a], third[b]


# The host's states as a world left them, and where the generators stood: if they still do, nobody has drawn, and the
# next world need not read them.
_left: tuple[States, tuple[int, ...]] | None = None
