"""Weak references to tensors that do not keep torch from swapping what two tensors hold.

`torch.utils.swap_tensors`, by which `Module.to` converts the parameters of FSDP2, refuses a tensor that has a weak
reference. Ours follow the Python object and may stay, as after a swap it still is the module's parameter.
"""

from __future__ import annotations

import weakref
from types import ModuleType

import torch

__all__ = ["SwapReferences", "TensorRef"]


class TensorRef(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor. `SwapReferences` leaves it out."""

    __slots__ = ()


class SwapReferences:
    """Stands in for the module `weakref` in `torch.utils`."""

    def __init__(self, real: ModuleType) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def getweakrefs(self, thing: object) -> list[weakref.ref[object]]:
        """Return the weak references to an object, without ours."""
        return [each for each in weakref.getweakrefs(thing) if not isinstance(each, TensorRef)]
