"""Bits of tensors, counted through a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["flip", "size_of"]


def size_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return how many bytes tensors have."""
    return sum(each.numel() * each.element_size() for each in tensors)


def flip(tensors: Sequence[torch.Tensor], place: int, bit: int) -> None:
    """Flip a bit of the byte at a place, counted through all tensors one after the other."""
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if place < size:
            _flip(tensor, place, bit)
            break
        place -= size


def _flip(tensor: torch.Tensor, place: int, bit: int) -> None:
    """Flip a bit of the element that has that byte; autograd does not see it."""
    import torch

    with torch.no_grad():
        index, byte = divmod(place, tensor.element_size())
        where: list[int] = []
        for size in reversed(tensor.shape):
            index, at = divmod(index, size)
            where.insert(0, at)
        element = tensor.detach()[tuple(where)].reshape(1).clone()
        element.view(torch.uint8)[byte] ^= 1 << bit
        tensor.detach()[tuple(where)] = element[0]
