"""Generators of devices: with a seed and an offset, as CUDA's have, but other numbers.

A CUDA generator counts blocks of Philox numbers: its state is a seed and an offset, 16 bytes, which DTensor reads and
advances. The same here: each operation that draws takes the next offset, and a CPU generator seeded from both. So the
numbers of an operation depend on seed and offset only, as on a GPU, and have the same distribution; the bits differ.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from simdist.inside.torch import address_of_generator, say_device, without_modes

__all__ = ["DeviceGenerator", "Numbers", "device_generator"]

_DEFAULT_SEED = 67280421310721  # c10::detail::default_rng_seed_val, of generators that a program makes
_Generator = torch.Generator  # itself: inside a world the name stands for a class that makes either kind
_STEP = 4  # numbers in a block of Philox; DTensor wants offsets that are multiples of it
_MIX = 0x9E3779B97F4A7C15  # an odd number that spreads seeds over 64 bits
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Numbers:
    """The random numbers of one operation, the same whenever it runs."""

    seed: int

    def generator(self) -> torch.Generator:
        """Return a CPU generator that begins with the first of them."""
        return _Generator().manual_seed(self.seed)


@dataclass(slots=True)
class _Count:
    """The seed and the offset of a generator; several generators may share them."""

    seed: int
    offset: int


class DeviceGenerator(torch.Generator):
    """A generator whose device is a virtual one.

    Example:
        >>> generator = DeviceGenerator(1)
        >>> generator.device
        device(type='cuda', index=1)
        >>> generator.manual_seed(3).draw().device, generator.get_offset()
        (device(type='cpu'), 4)
    """

    _count: _Count
    _engine: torch.Generator

    def __new__(cls, index: int | None) -> DeviceGenerator:
        """A generator of the device with that index; None means any, as where a program names "cuda" alone."""
        self = super().__new__(cls)
        self._count = _Count(_DEFAULT_SEED, 0)
        self._engine = _Generator()
        say_device(self, -1 if index is None else index)
        _by_address[address_of_generator(self)] = self
        return self

    def __init__(self, index: int | None) -> None: ...

    def draw(self) -> torch.Generator:
        """Return a CPU generator for one operation, valid until the next call."""
        return self._engine.manual_seed(self.draw_later().seed)

    def draw_later(self) -> Numbers:
        """Take the next offset, and return the numbers of one operation."""
        self._count.offset += _STEP
        return Numbers((self._count.seed * _MIX + self._count.offset) % _WORD)

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Set the seed, and the offset to 0."""
        self._count.seed, self._count.offset = seed % _WORD, 0
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._count.seed

    def get_offset(self) -> int:
        """The offset."""
        return self._count.offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        """Count on from there.

        Raises:
            RuntimeError: it is no multiple of 4.
        """
        if offset % _STEP:
            raise RuntimeError("offset must be a multiple of 4")
        self._count.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, as 16 bytes."""
        words = self._count.seed.to_bytes(8, "little") + self._count.offset.to_bytes(8, "little")
        with without_modes():  # the bytes are true, also where tensors are fake
            return torch.frombuffer(bytearray(words), dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        """Take over what `get_state` gave.

        Raises:
            TypeError, RuntimeError: it is something else.
        """
        if new_state.device.type != "cpu" or new_state.dtype is not torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        with without_modes():
            words = bytes(new_state.tolist())
        if len(words) not in (8, 16):
            raise RuntimeError("RNG state is wrong size")
        count = self._count
        count.seed, count.offset = int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")
        return self

    def clone_state(self) -> DeviceGenerator:
        """Another one with the same state."""
        return DeviceGenerator(self.device.index).set_state(self.get_state())

    def graphsafe_get_state(self) -> DeviceGenerator:
        """Return another generator that shares the state of this one, as CUDA's do."""
        return DeviceGenerator(self.device.index).graphsafe_set_state(self)

    def graphsafe_set_state(self, state: torch.Generator) -> DeviceGenerator:
        """Share the state of another generator from now on.

        Raises:
            RuntimeError: it is no generator of a device.
        """
        other = device_generator(state)
        if other is None:
            raise RuntimeError("Expected a CUDA Generator")
        self._count = other._count
        return self

    def __reduce__(self) -> tuple[type[torch.Generator], tuple[torch.device], tuple[int, int | None, torch.Tensor]]:
        return torch.Generator, (self.device,), (self._count.seed, self._count.offset, self.get_state())

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        self.set_state(state[2])


def device_generator(generator: torch.Generator) -> DeviceGenerator | None:
    """Return the generator that a kernel was given, where its Python object is another one; None if it is the CPU's."""
    return _by_address.get(address_of_generator(generator))


_by_address: weakref.WeakValueDictionary[int, DeviceGenerator] = weakref.WeakValueDictionary()
