"""Methods of `UntypedStorage` whose C++ knows only devices that are compiled in.

A storage that a process shares (`_share_cuda_`, for `torch.multiprocessing`) is another process's by its handle. As
with CUDA, the receiver's stream waits for what the sender's has been given by then, and a storage that was received
can't be sent on. It is kept until it was received as often as it was sent; then as long as a process has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Never

import torch

from simdist.device._aliases import block_of, block_of_storage, exchange, host, part_of
from simdist.device._marks import Mark, after
from simdist.device._state import account_of, cuda_error, present_or_none, shared_storages
from simdist.process import SimProcess

__all__ = ["CAPSULES", "METHODS"]

Place = torch.device | str | int
_RECEIVED = (
    "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider cloning "
    "before sending."
)
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
        """Change the account and the size; the bytes stay, as long as they are enough."""
        block = block_of_storage(self)
        if block is None:
            return original(self, size)
        if getattr(self, "is_part", False):
            raise RuntimeError("Trying to resize storage that is not resizable")
        if size <= _nbytes(self):
            block.resize(size)
            return self
        made, kept = _new(size, self.device.index), self.nbytes()
        bytes_of = torch.empty(0, dtype=torch.uint8, device=self.device).set_
        if kept:
            bytes_of(made)[:kept].copy_(bytes_of(self)[:kept])
        exchange(self, made)
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


class _Shared:
    """A storage that other processes of its host can receive."""

    def __init__(self, storage: torch.UntypedStorage, process: SimProcess) -> None:
        self.storage = weakref.ref(storage)
        self.unreceived: list[torch.UntypedStorage] = []  # the storage, once for each time that it was sent
        self.host = process.host
        self.sent = Mark(0)  # the end of the work that the sender's stream had, the last time


_Handle = tuple[int, bytes, int, int, bytes, int, bytes, bool]


def _sharing(original: Callable[[torch.UntypedStorage], _Handle]) -> Callable[[torch.UntypedStorage], _Handle]:
    def share(self: torch.UntypedStorage) -> _Handle:
        state = present_or_none()
        if state is None or block_of_storage(self) is None:
            return original(self)
        if getattr(self, "is_received", False):
            raise RuntimeError(_RECEIVED)
        index, streams, storages = self.device.index, state.streams, shared_storages()
        host(torch.empty(0, dtype=torch.uint8, device=self.device).set_(self))  # nothing waits for values elsewhere
        handle: bytes = getattr(self, "handle", len(storages).to_bytes(64, "big"))
        self.handle = handle  # type: ignore[attr-defined]  # ours
        shared = storages.setdefault(handle, _Shared(self, streams.process))
        shared.unreceived.append(self)
        shared.sent = after(streams.mark(index, streams.current(index)), 0)
        return index, handle, _nbytes(self), 0, handle, 0, handle, True

    return share


def _receiving(original: Callable[..., torch.UntypedStorage]) -> object:
    def receive(device: int, handle: bytes, size: int, *args: object) -> torch.UntypedStorage:
        state = present_or_none()
        if state is None:
            return original(device, handle, size, *args)
        index, streams, shared = account_of(device).index, state.streams, shared_storages().get(handle)
        whole = None if shared is None else shared.storage()
        if shared is None or whole is None or shared.host is not streams.process.host:
            raise cuda_error("handle")
        del shared.unreceived[:1]
        streams.wait(index, streams.current(index), shared.sent)
        part = part_of(whole, whole[:])
        part.is_received = True  # type: ignore[attr-defined]  # ours
        return part

    return staticmethod(receive)


def _releasing(original: Callable[..., object]) -> object:
    def release(handle: bytes, *args: object) -> object:
        """Count what was sent again as received: the receiver has the storage."""
        if present_or_none() is None:
            return original(handle, *args)
        shared = shared_storages().get(handle)
        if shared is not None:
            del shared.unreceived[:1]
        return None

    return staticmethod(release)


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
        if not 0 <= begin <= whole.nbytes() - made.untyped_storage().nbytes():  # it got other memory meanwhile
            return made
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
    "_share_cuda_": _sharing,
    "_new_shared_cuda": _receiving,
    "_release_ipc_counter_cuda": _releasing,
    "to": _to,
    "cuda": _cuda,
    "clone": _clone,
    "resize_": _resize,
    "size": _size,
    "nbytes": _size,
    "__len__": _size,
    "__getitem__": _get,
}
