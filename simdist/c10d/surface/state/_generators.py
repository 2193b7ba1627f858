"""Torch's random generator: its state, one per rank, and its random seeds.

A new process seeds it from the operating system (`at::detail::getDefaultCPUGenerator`), and so do `torch.seed()` and
`Generator.seed()`, in C++, where Python can't interfere. A rank gets these seeds from its own entropy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import torch

from simdist.c10d.calls._unseen import dispatch_modes, function_modes
from simdist.inside.torch import engine_words, keeps_gaussian, place_of_engine, without_functions, without_modes
from simdist.process import GlobalGenerator, Patches, current_process, drawn_from

__all__ = ["install", "torch_generator"]

_Ts = TypeVarTuple("_Ts")
_R = TypeVar("_R")
_SEED_BITS = 53  # as torch's seeds (c10::detail::getNonDeterministicRandom): a double holds them exactly


def _without_modes(method: Callable[[*_Ts], _R]) -> Callable[[*_Ts], _R]:
    """Decorate a method that handles states as tensors: a rank may park while a compiler traces with fake tensors."""

    @functools.wraps(method)
    def do(*args: *_Ts) -> _R:
        if not (dispatch_modes() or function_modes()):
            return method(*args)
        with without_modes(), without_functions():
            return method(*args)

    return do


class _TorchGenerator:
    """Torch's CPU generator: seed, left, seeded, next and 624 words (`at::mt19937_data_pod`) inside the C++ object."""

    at = (4, 6)

    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._place = place_of_engine()
        found = None if self._place is None else engine_words(self._generator, self._place)
        self.memory: memoryview[int] | None = None if found is None else found.cast("B")

    @_without_modes
    def save(self) -> bytes:
        return self._generator.get_state().numpy().tobytes()

    @_without_modes
    def load(self, state: Any) -> None:
        self._generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    @_without_modes
    def fresh(self, chance: bytes) -> bytes:
        return _seeded(chance).get_state().numpy().tobytes()

    def fresh_memory(self, chance: bytes) -> bytes:
        assert self._place is not None
        generator = _seeded(chance)  # keeps its words alive
        return engine_words(generator, self._place).tobytes()

    holds_gaussian: Callable[[Any], bool] = staticmethod(keeps_gaussian)


def _seeded(chance: bytes) -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(chance, "little"))


@functools.cache
def torch_generator() -> GlobalGenerator:
    """Return torch's CPU generator, as one of the generators whose states are swapped."""
    return _TorchGenerator()


def _seed(original: Callable[[torch.Generator], int]) -> Callable[[torch.Generator], int]:
    @functools.wraps(original)
    def seed(self: torch.Generator) -> int:
        process = current_process()
        if process is None:
            return original(self)
        value = int.from_bytes(drawn_from(process, "torch", 8)) >> (64 - _SEED_BITS)
        self.manual_seed(value)
        return value

    return seed


def install(patches: Patches) -> None:
    """Replace the random seeding of generators."""
    patches.wrap_in_type(torch.Generator, "seed", _seed)
