"""What a rank's optimizer holds after a step, copied once for all ranks that hold the same.

Ranks that are replicas hold the same bytes at every step, so a sum over them need not be computed: the first rank's are
copied, those of the others compared with the copy, and a rank that finds them equal shares its content. A sum is
computed only where ranks differ, or one runs ahead of the others: of the copy, which is given up then.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from simdist.judges._bits import bits_of, bits_of_each
from simdist.native import copied, holds

if TYPE_CHECKING:
    from torch import Tensor

    States = Mapping[Tensor, Mapping[str, Any]]  # what an optimizer keeps for each parameter

__all__ = ["Bits", "Content", "Newest", "copied_content", "summed_content"]

Bits: TypeAlias = tuple[int | None, int | None, int | None]
"""Of a parameter, its gradient and its optimizer state; None where there is none, or none to be seen."""

_MOST_BYTES = 64 << 20  # that a content may copy
_State: TypeAlias = tuple[int | None, ...]  # of what an optimizer keeps: None for a tensor, or what stands for the rest


class Content:
    """Parameters with their gradients and their optimizer's state, in an optimizer's order."""

    __slots__ = ("_bits", "_copies", "_states", "finite")

    def __init__(
        self,
        bits: list[Bits] | None,
        copies: list[bytes | None] | None = None,
        states: Sequence[_State] = (),
    ) -> None:
        self._bits = bits
        # Until there are bits: of each parameter and its gradient, in turn, and then of the tensors in the states.
        self._copies = copies
        self._states = states
        self.finite = False  # somebody has looked, and all parameters are

    def settle(self) -> None:
        """Give up the copy."""
        _ = self.bits

    @property
    def bits(self) -> list[Bits]:
        """The sums over each parameter, its gradient and its state."""
        if self._bits is None:
            sums = [None if copy is None else zlib.crc32(copy) for copy in self._copies or ()]
            self._copies = None
            ends = 2 * len(self._states)
            kept = iter(sums[ends:])
            states = [_sum_of_state(next(kept) if each is None else each for each in state) for state in self._states]
            self._bits = list(zip(sums[:ends:2], sums[1:ends:2], states, strict=True))
        return self._bits

    def is_there(self, wanted: Collection[int]) -> bool:
        """True if these of the parameters were to be seen."""
        if self._bits is None:
            copies = self._copies
            return copies is not None and (None not in copies or None not in [copies[2 * place] for place in wanted])
        return None not in [self._bits[place][0] for place in wanted]

    def is_of(self, parameters: Sequence[Tensor | None], kept: States) -> bool:
        """True if these parameters have this content now; False also if there is no copy any more."""
        copies = self._copies
        if copies is None:
            return False
        tensors, states = _looked_at(parameters, kept)
        return states == self._states and len(tensors) == len(copies) and holds(tensors, copies)


def copied_content(parameters: Sequence[Tensor | None], kept: States) -> Content | None:
    """The content with a copy; None if that is too much, or one of the tensors is not plain, dense and of the CPU."""
    tensors, states = _looked_at(parameters, kept)
    copies = copied(tensors, _MOST_BYTES)
    return None if copies is None else Content(None, copies, states)


def _looked_at(parameters: Sequence[Tensor | None], kept: States) -> tuple[list[Tensor | None], tuple[_State, ...]]:
    """The tensors that a content is made of; and the states, in which None stands for the tensors at the end."""
    tensors: list[Tensor | None] = []
    for each in parameters:
        tensors += (None, None) if each is None else (each, each.grad)
    if not kept:
        return tensors, _NO_STATE * len(parameters)
    return tensors, tuple(
        _state_of(() if each is None else (kept.get(each) or {}).values(), tensors) for each in parameters
    )


def _state_of(values: Iterable[Any], tensors: list[Tensor | None]) -> _State:
    """What an optimizer keeps for one parameter; its tensors are added to `tensors`."""
    found: list[int | None] = []
    for value in values:
        if hasattr(value, "untyped_storage"):
            tensors.append(value)
            found.append(None)
        else:
            found.append(_standing_for(value))
    return tuple(found)


def summed_content(parameters: Sequence[Tensor | None], kept: States) -> Content:
    """The content of parameters as sums."""
    gradients = [None if each is None else each.grad for each in parameters]
    states: list[int | None] = [None] * len(parameters)
    if kept:
        states = [None if each is None else _bits_of_state(kept.get(each)) for each in parameters]
    bits = zip(bits_of_each(parameters), bits_of_each(gradients), states, strict=True)
    return Content(list(bits))


@dataclass(slots=True)
class Newest:
    """The content that a judge has seen last, for the others. It keeps no tensor."""

    step: object = None  # what says of which rank's step it is
    parameters: Sequence[int] = ()  # their ids
    content: Content | None = None

    def note(self, step: object, parameters: Iterable[object], content: Content) -> None:
        """Some parameters had this content after a step."""
        self.step, self.parameters, self.content = step, [*map(id, parameters)], content

    def of(self, step: object, parameters: Iterable[object]) -> Content | None:
        """The content of just these parameters after a step; None if nobody has looked at it."""
        return self.content if self.step == step and self.parameters == [*map(id, parameters)] else None


_NO_STATE: tuple[_State, ...] = ((),)


def _standing_for(value: object) -> int:
    """Of what is no tensor."""
    return hash(value) if type(value) in (int, float) else 0


def _bits_of_state(state: Mapping[str, Any] | None) -> int | None:
    values = (state or {}).values()
    return _sum_of_state(
        bits_of(value) if hasattr(value, "untyped_storage") else _standing_for(value) for value in values
    )


def _sum_of_state(parts: Iterable[int | None]) -> int | None:
    """One sum of several; None if one is not to be seen, or there are none."""
    total, empty = 0, True
    for each in parts:
        if each is None:
            return None
        total, empty = (total * 1_000_003 + each) & 0xFFFF_FFFF_FFFF, False
    return None if empty else total
