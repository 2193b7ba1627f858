"""The content of a rank's optimizer after a step, with one copy for all ranks with equal content.

Replicas have the same bytes after every step, so checksums are unnecessary. The first rank's bytes are copied, those of
the others are compared with the copy, and ranks with equal bytes share the content. A checksum is computed only if
ranks differ, or if one runs ahead of the others; it is the checksum of the copy, which is then released.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from simdist.judges._bits import bits_of, bits_of_each
from simdist.native import copied, holds

if TYPE_CHECKING:
    from torch import Tensor

    States = Mapping[Tensor, Mapping[str, Any]]  # an optimizer's state of each parameter

__all__ = ["Bits", "Content", "Newest", "copied_content", "summed_content"]

Bits: TypeAlias = tuple[int | None, int | None, int | None]
"""Of a parameter, its gradient and its optimizer state; None where there is none, or none to be seen."""

_MOST_BYTES = 64 << 20  # the most that a content copies
_State: TypeAlias = tuple[int | None, ...]  # the values of a parameter's state: None for a tensor, else a hash


class Content:
    """Parameters with their gradients and their optimizer's state, in an optimizer's order."""

    __slots__ = ("_bits", "_copies", "_states", "finite", "used_up")

    def __init__(
        self,
        bits: list[Bits] | None,
        copies: list[bytes | None] | None = None,
        states: Sequence[_State] = (),
    ) -> None:
        self._bits = bits
        # Until `bits` are computed: each parameter and its gradient in turn, and then the tensors in the states.
        self._copies = copies
        self._states = states
        self.finite = False  # all parameters were checked, and are finite
        self.used_up: Set[int] | None = None  # places whose gradients the step itself changed; None: not looked at

    def settle(self) -> None:
        """Compute the sums, and release the copy."""
        _ = self.bits

    @property
    def bits(self) -> list[Bits]:
        """The checksums of each parameter, its gradient and its state."""
        if self._bits is None:
            sums = [None if copy is None else zlib.crc32(copy) for copy in self._copies or ()]
            self._copies = None
            ends = 2 * len(self._states)
            kept = iter(sums[ends:])
            states = [_sum_of_state(next(kept) if each is None else each for each in state) for state in self._states]
            self._bits = list(zip(sums[:ends:2], sums[1:ends:2], states, strict=True))
        return self._bits

    def is_there(self, wanted: Collection[int]) -> bool:
        """True if the bytes of these parameters could be read."""
        if self._bits is None:
            copies = self._copies
            return copies is not None and (None not in copies or None not in [copies[2 * place] for place in wanted])
        return None not in [self._bits[place][0] for place in wanted]

    def is_of(self, parameters: Sequence[Tensor | None], kept: States) -> bool:
        """True if these parameters have this content now; False also if the copy is released."""
        copies = self._copies
        if copies is None:
            return False
        tensors, states = _looked_at(parameters, kept)
        return states == self._states and len(tensors) == len(copies) and holds(tensors, copies)


def copied_content(parameters: Sequence[Tensor | None], kept: States) -> Content | None:
    """Return the content with a copy; None if it is too large, or a tensor is not plain, dense and on the CPU."""
    tensors, states = _looked_at(parameters, kept)
    copies = copied(tensors, _MOST_BYTES)
    return None if copies is None else Content(None, copies, states)


def _looked_at(parameters: Sequence[Tensor | None], kept: States) -> tuple[list[Tensor | None], tuple[_State, ...]]:
    """Return the tensors of a content, and the states, in which None stands for the tensors at the end of the list."""
    tensors: list[Tensor | None] = []
    for each in parameters:
        tensors += (None, None) if each is None else (each, each.grad)
    if not kept:
        return tensors, _NO_STATE * len(parameters)
    return tensors, tuple(
        _state_of(() if each is None else (kept.get(each) or {}).values(), tensors) for each in parameters
    )


def _state_of(values: Iterable[Any], tensors: list[Tensor | None]) -> _State:
    """Return the state of one parameter, and add its tensors to `tensors`."""
    found: list[int | None] = []
    for value in values:
        if hasattr(value, "untyped_storage"):
            tensors.append(value)
            found.append(None)
        else:
            found.append(_standing_for(value))
    return tuple(found)


def summed_content(parameters: Sequence[Tensor | None], kept: States) -> Content:
    """Return the content of parameters as checksums."""
    gradients = [None if each is None else each.grad for each in parameters]
    states: list[int | None] = [None] * len(parameters)
    if kept:
        states = [None if each is None else _bits_of_state(kept.get(each)) for each in parameters]
    bits = zip(bits_of_each(parameters), bits_of_each(gradients), states, strict=True)
    return Content(list(bits))


@dataclass(slots=True)
class Newest:
    """The last content that a judge has read, for the other judges. It keeps no tensor."""

    step: object = None  # identifies the rank and its step
    parameters: Sequence[int] = ()  # ids of the parameters
    content: Content | None = None

    def note(self, step: object, parameters: Iterable[object], content: Content) -> None:
        """Note the content of some parameters after a step."""
        self.step, self.parameters, self.content = step, [*map(id, parameters)], content

    def of(self, step: object, parameters: Iterable[object]) -> Content | None:
        """Return the content of exactly these parameters after a step; None if no judge has read it."""
        return self.content if self.step == step and self.parameters == [*map(id, parameters)] else None


_NO_STATE: tuple[_State, ...] = ((),)


def _standing_for(value: object) -> int:
    """Return a hash of a number; 0 for any other value that is no tensor."""
    return hash(value) if type(value) in (int, float) else 0


def _bits_of_state(state: Mapping[str, Any] | None) -> int | None:
    values = (state or {}).values()
    return _sum_of_state(
        bits_of(value) if hasattr(value, "untyped_storage") else _standing_for(value) for value in values
    )


def _sum_of_state(parts: Iterable[int | None]) -> int | None:
    """Return one sum of several; None if one is missing, or there are none."""
    total, empty = 0, True
    for each in parts:
        if each is None:
            return None
        total, empty = (total * 1_000_003 + each) & 0xFFFF_FFFF_FFFF, False
    return None if empty else total
