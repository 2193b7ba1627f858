"""The global random generators, one state per rank.

Python's `random`, numpy's legacy generator and torch's CPU generator are process-wide objects, some of them drawn from
in C++; each rank must find its own state in them when it runs. Copying all of it at every switch would cost more than
the switch (numpy alone 90 µs), so a state is saved only if the generator was drawn from, which a look at its position
tells, and loaded only if the next rank's state differs from what is there. Ranks start with equal states, as processes
do that all call `manual_seed` with one seed; states are compared by content, so ranks that draw alike cost nothing.

Torch starts as in a fresh process, at its default seed. Python's and numpy's generators, which a fresh process seeds
from the operating system, start from the seed of the run.
"""

from __future__ import annotations

import ctypes
import functools
import random
from array import array
from typing import Any, Protocol

import numpy as np
import torch

__all__ = ["RandomStates", "States"]

_TORCH_DEFAULT_SEED = 67280421310721  # c10::detail::default_rng_seed_val, the state of every fresh process

# Where CPUGeneratorImpl's serialised state says that it keeps a Gaussian: a double's and a float's flag.
_NORMAL, _NORMAL_FLOAT = 5040, 5052

States = tuple[Any, Any, Any]


class _Generator(Protocol):
    """A global generator. `words` are 32-bit words of its memory; the two at `watched` change with every draw."""

    words: memoryview[int] | None
    watched: tuple[int, int]

    def save(self) -> Any:
        """Its state, as something hashable."""
        ...

    def load(self, state: Any) -> None:
        """Set its state."""
        ...

    def holds_gaussian(self, state: Any) -> bool:
        """True if a state keeps the second of a pair of Gaussians; handing that out moves no word."""
        ...


def _words_at(address: int, count: int) -> memoryview[int]:
    return memoryview((ctypes.c_uint32 * count).from_address(address)).cast("B").cast("I")


class _Python:
    """`random._inst`. Its C struct is an index and 624 words right behind the object header (CPython 3.11 to 3.13)."""

    watched = (0, 1)

    def __init__(self) -> None:
        self._instance: Any = random._inst
        self.words: memoryview[int] | None = None
        # The object must be large enough before anything behind its header is read.
        if type(self._instance).__mro__[-2].__basicsize__ >= object.__basicsize__ + 4 * 625:
            words = _words_at(id(self._instance) + object.__basicsize__, 625)
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

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


class _Numpy:
    """`numpy.random`'s legacy generator: 624 words and a position at the documented address of the bit generator."""

    watched = (624, 0)

    def __init__(self) -> None:
        self._state: Any = np.random.mtrand._rand
        bits = self._state._bit_generator
        self.words: memoryview[int] | None = None
        if type(bits).__name__ == "MT19937":
            self.words = _words_at(bits.ctypes.state_address, 625)
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

    def holds_gaussian(self, state: Any) -> bool:
        return state[2] is not None


class _Torch:
    """Torch's CPU generator: seed, left, seeded, next and 624 words (`at::mt19937_data_pod`) inside the C++ object."""

    watched = (0, 0)

    def __init__(self) -> None:
        generator: Any = torch.default_generator
        self._generator = generator
        self.words: memoryview[int] | None = None
        legacy = self._generator.get_state().numpy().view(np.uint64)
        left, following = int(legacy[1]) & 0xFFFF_FFFF, int(legacy[2])
        words = [int(word) for word in legacy[3 : 3 + 624]]
        address: int = self._generator._cdata
        near = _words_at(address, 640)  # the object holds more than 624 words
        for index in range(64):
            if near[index] == left and near[index + 2] == following and near[index + 3] == words[0]:
                found = _words_at(address + 4 * index, 627)
                if list(found[3:]) == words:
                    self.words = found
                    self.watched = (2, 3)

    def save(self) -> Any:
        return self._generator.get_state().numpy().tobytes()

    def load(self, state: Any) -> None:
        self._generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def holds_gaussian(self, state: Any) -> bool:
        return bool(state[_NORMAL] or state[_NORMAL_FLOAT])


@functools.cache
def _global_generators() -> tuple[_Generator, _Generator, _Generator]:
    return _Python(), _Numpy(), _Torch()


@functools.lru_cache(maxsize=64)
def _fresh_states(seed: int) -> States:
    # Made without touching the global generators; equal for all ranks.
    python_words = random.Random(seed).getstate()
    python: Any = python_words
    if _global_generators()[0].words is not None:
        *words, index = python_words[1]
        python = (array("I", [index, *words]).tobytes(), None, None)
    legacy: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)
    numpy = (legacy["state"]["key"].tobytes(), int(legacy["state"]["pos"]), None)
    return python, numpy, torch.Generator().manual_seed(_TORCH_DEFAULT_SEED).get_state().numpy().tobytes()


class RandomStates:
    """The three generators, and whose states are loaded in them.

    Example:
        >>> states = RandomStates(seed=0)      # remembers the host's states
        >>> states.load(states.fresh())        # what each rank starts with
        >>> states.restore()                   # the host's again
    """

    def __init__(self, seed: int) -> None:
        self._generators = _global_generators()
        self._host = tuple(generator.save() for generator in self._generators)
        self._loaded: States = (self._host[0], self._host[1], self._host[2])
        self._known: dict[Any, Any] = {}
        self._fresh = _fresh_states(seed)
        words = [generator.words for generator in self._generators]
        self._words: list[memoryview[int]] = [each for each in words if each is not None]
        self._at_torch = self._generators[2].watched
        self._quick = len(self._words) == 3  # all three can be looked at cheaply
        self._look()

    def fresh(self) -> States:
        """The states that every rank starts with."""
        return self._fresh

    def save(self) -> States:
        """The states as the running rank leaves them; cheap if it drew nothing."""
        if self._quick_now:
            # Hot: at every switch.
            python, numpy, torch_ = self._words
            a, b = self._at_torch
            if (python[0], python[1], numpy[624], numpy[0], torch_[a], torch_[b]) == self._seen:
                return self._loaded
        if len(self._known) > 4096:
            self._known.clear()  # only an aid to recognise equal states
        states = [self._known.setdefault(state, state) for state in (g.save() for g in self._generators)]
        loaded = (states[0], states[1], states[2])
        self._loaded = self._known.setdefault(loaded, loaded)  # ranks that draw alike share even the tuple
        self._look()
        return self._loaded

    def load(self, states: States) -> None:
        """Put a rank's states into the generators."""
        loaded = self._loaded
        if states is loaded:
            return
        for index, generator in enumerate(self._generators):
            if states[index] is not loaded[index]:
                generator.load(states[index])
        self._loaded = states
        self._look()

    def restore(self) -> None:
        """Put the host's states back."""
        self.save()
        self.load((self._host[0], self._host[1], self._host[2]))

    def adopt(self) -> None:
        """The generators hold the host's states, perhaps other ones than before: `restore` goes back to these."""
        self._host = self.save()

    def _look(self) -> None:
        """Remember where the generators stand now."""
        gaussian = any(g.holds_gaussian(state) for g, state in zip(self._generators, self._loaded, strict=True))
        self._quick_now = self._quick and not gaussian
        if self._quick:
            python, numpy, torch_ = self._words
            a, b = self._at_torch
            self._seen = (python[0], python[1], numpy[624], numpy[0], torch_[a], torch_[b])
