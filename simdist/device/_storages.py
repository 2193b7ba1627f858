"""Methods of `UntypedStorage` whose C++ knows only devices that are compiled in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Never

import torch

from simdist.device._aliases import block_of, block_of_storage, part_of
from simdist.device._state import account_of, present_or_none

__all__ = ["CAPSULES", "METHODS"]

Place = torch.device | str | int
_nbytes: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.nbytes


def _to(original: Callable[..., object]) -> Callable[..., object]:
    def to(self: torch.UntypedStorage, *, device: Place, non_blocking: bool = False) -> object:
        device = torch.device(device)
        if device.type != "cuda":
            return original(self, device=device, non_blocking=non_blocking)
        account = account_of(device.index)
        if self.device == torch.device("cuda", account.index):
            return self
        return _new(self.nbytes(), account.index).copy_(self, non_blocking)

    return to


def _cuda(original: Callable[..., object]) -> Callable[..., object]:
    def cuda(self: torch.UntypedStorage, device: Place | None = None, non_blocking: bool = False) -> object:
        index = device if isinstance(device, int) else None if device is None else torch.device(device).index
        return self.to(device=torch.device("cuda", account_of(index).index), non_blocking=non_blocking)

    return cuda


def _clone(original: Callable[..., object]) -> Callable[..., object]:
    def clone(self: torch.UntypedStorage) -> object:
        if not self.is_cuda:
            return original(self)
        return _new(self.nbytes(), self.device.index).copy_(self)

    return clone


def _resize(original: Callable[..., object]) -> Callable[..., object]:
    def resize_(self: torch.UntypedStorage, size: int) -> object:
        """Change the account and the size; the bytes stay, since memory in a capsule can't be resized."""
        block = block_of_storage(self)
        if block is None:
            return original(self, size)
        if size > _nbytes(self) or getattr(self, "is_part", False):
            raise RuntimeError("Trying to resize storage that is not resizable")
        block.resize(size)
        return self

    return resize_


def _size(original: Callable[[torch.UntypedStorage], int]) -> Callable[[torch.UntypedStorage], int]:
    def size(self: torch.UntypedStorage) -> int:
        block = getattr(self, "block", None)
        if block is not None and block.size_said is not None and not getattr(self, "is_part", False):
            said: int = block.size_said
            return said
        return original(self)

    return size


def _get(original: Callable[..., object]) -> Callable[..., object]:
    def get(self: torch.UntypedStorage, place: int | slice) -> object:
        """Let a slice, which is a storage of its own over a part of the memory, know whose memory it is."""
        found = original(self, place)
        if isinstance(found, torch.UntypedStorage) and self.is_cuda:
            return part_of(self, found)
        return found

    return get


def _making(original: Callable[..., Any]) -> object:
    """Make `__new__`, whose C++ knows only devices that are compiled in."""

    def new(cls: type, *args: object, **kwargs: Any) -> object:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda" or present_or_none() is None:
            return original(cls, *args, **kwargs)
        on_cpu = original(cls, *args, **{**kwargs, "device": None})
        return on_cpu.cuda(torch.device(device).index)

    return staticmethod(new)


def _new(size: int, index: int) -> torch.UntypedStorage:
    tensor = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", index))
    assert block_of(tensor) is not None
    return tensor.untyped_storage()


# The replacement of each method, made from the original.
def _exporting(original: Callable[..., object]) -> Callable[..., object]:
    def export(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        """Remember whose memory a capsule gives away: the tensor that is made of it later has the same."""
        state = present_or_none()
        if state is not None and tensor.is_cuda and block_of(tensor) is not None:
            state.exported[tensor.data_ptr()] = weakref.ref(tensor.untyped_storage())
        return original(tensor, *args, **kwargs)

    return export


def _importing(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(capsule: object) -> torch.Tensor:
        made, state = original(capsule), present_or_none()
        known = None if state is None or not made.is_cuda else state.exported.get(made.data_ptr())
        whole = None if known is None else known()
        if whole is None:
            return made
        begin = made.data_ptr() - whole.data_ptr()
        part = whole[begin : begin + made.untyped_storage().nbytes()]
        shape, strides = made.shape, made.stride()
        return torch.empty(0, dtype=made.dtype, device=made.device).set_(part, 0, shape, strides)

    return make


CAPSULES: dict[str, Callable[[Callable[..., Never]], object]] = {
    "_to_dlpack": _exporting,
    "_to_dlpack_versioned": _exporting,
    "_from_dlpack": _importing,
}
METHODS: dict[str, Callable[[Callable[..., Never]], object]] = {
    "__new__": _making,
    "to": _to,
    "cuda": _cuda,
    "clone": _clone,
    "resize_": _resize,
    "size": _size,
    "nbytes": _size,
    "__len__": _size,
    "__getitem__": _get,
}
