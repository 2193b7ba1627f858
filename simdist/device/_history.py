"""The history of a process's memory, while it is recorded: `torch.cuda.memory._record_memory_history`.

A wrapper looks for new memory in a kernel's results; a recorded block reports when it is freed. Addresses are made up,
the same in each run: places in the one segment of a device, behind the memory that was there before. Memory that a
kernel needs only while it runs is not seen.
"""

from __future__ import annotations

import itertools
import sys
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import FrameType
from typing import TypedDict

import torch

from simdist.device._aliases import block_of
from simdist.device._idle import is_view
from simdist.device._memory import Account, Block
from simdist.device._state import present, present_or_none
from simdist.device._torch_core import current_stream
from simdist.frames import is_ours
from simdist.inside.torch import Operator

__all__ = ["Frame", "History", "Place", "allocation_traceback", "base_of", "record", "recorded"]

Tensor = torch.Tensor


class Frame(TypedDict):
    """A line that allocated, as torch shows it."""

    filename: str
    line: int
    name: str


Frames = list[Frame]
_ADDRESS = 0x7F00_0000_0000  # of the first device's segment; the next ones follow a terabyte apart
_ENABLED = (("state", "all"), "expected state to be 'state', 'all', or None")
_CONTEXT = (("state", "alloc", "all"), "expected context to be 'state', 'alloc', 'all', or None")
_STACKS = (("python", "all"), "expected stacks to be 'python', or 'all'")
_CONTEXTS = (None, "state", "alloc", "all")  # each with the frames of those before it


def base_of(index: int) -> int:
    """Return the start address of a device's segment."""
    return _ADDRESS + (index << 40)


class Place:
    """Memory that was allocated while the history was recorded."""

    __slots__ = ("account", "address", "frames", "history", "pointer", "size", "stream")

    def __init__(self, history: History, account: Account, size: int, pointer: int) -> None:
        self.history, self.account, self.size, self.pointer = history, account, size, pointer
        self.stream = current_stream(account.index)
        self.frames: Frames | None = None
        self.address = 0


class _RecordedBlock(Block):
    """A block that reports to the history when it is freed."""

    __slots__ = ()

    def resize(self, size: int) -> None:
        place = self.place
        place.history.freed(place)
        super().resize(size)
        if self.size:
            self.place = place.history.taken(self.account, self.size, place.pointer)

    def __del__(self) -> None:
        self.place.history.freed(self.place)
        super().__del__()


class History:
    """The recorded history of one process."""

    def __init__(self, accounts: Sequence[Account], context: str | None, most: int, skipped: Sequence[str]) -> None:
        self._context = _CONTEXTS.index(context)
        self._skipped = frozenset(skipped)
        self._floors = [base_of(account.index) + account.used for account in accounts]
        self._reserved = [account.reserved for account in accounts]
        self._places: list[list[Place]] = [[] for _ in accounts]  # by address
        self.traces: list[deque[dict[str, object]]] = [deque(maxlen=most) for _ in accounts]

    # -- what happens ----------------------------------------------------------------------------------------------

    def taken(self, account: Account, size: int, pointer: int) -> Place:
        """Record an allocation."""
        index = account.index
        if account.reserved > self._reserved[index]:
            grown = account.reserved - self._reserved[index]
            self._note("segment_alloc", index, base_of(index) + self._reserved[index], grown, 0, _frames())
        self._reserved[index] = account.reserved
        place = Place(self, account, size, pointer)
        place.address = self._free_address(index, size)
        if self._context:
            place.frames = _frames()
        insort(self._places[index], place, key=attrgetter("address"))
        self._note("alloc", index, place.address, size, place.stream, place.frames)
        return place

    def freed(self, place: Place) -> None:
        """Record that memory was given back."""
        places = self._places[place.account.index]
        if place not in places:
            return
        places.remove(place)
        frames = _frames() if self._context == 3 else place.frames
        for action in ("free_requested", "free_completed"):
            self._note(action, place.account.index, place.address, place.size, place.stream, frames)

    def failed(self, account: Account, size: int) -> None:
        """Record an allocation that failed."""
        self._note("oom", account.index, account.device.free, size, current_stream(account.index), _frames())

    def released(self, account: Account) -> None:
        """Record the unused memory that the device may have got back."""
        index = account.index
        if account.reserved < self._reserved[index]:
            size = self._reserved[index] - account.reserved
            self._note("segment_free", index, base_of(index) + account.reserved, size, 0, _frames())
        self._reserved[index] = account.reserved

    def _note(self, action: str, index: int, where: int, size: int, stream: int, frames: Frames | None) -> None:
        if action in self._skipped:
            return
        entry: dict[str, object] = {
            "action": action,
            "device_free" if action == "oom" else "addr": where,
            "size": size,
            "stream": stream,
            "time_us": time.time_ns() // 1000,
            "compile_context": "",
            "user_metadata": "",
            "pool_id": (0, 0),
        }
        if frames is not None and self._context >= 2:
            entry["frames"] = frames
        self.traces[index].append(entry)

    def _free_address(self, index: int, size: int) -> int:
        begin = self._floors[index]
        for place in self._places[index]:
            if place.address - begin >= size:
                break
            begin = place.address + place.size
        return begin

    # -- the snapshot ----------------------------------------------------------------------------------------------

    def snapshot_taken(self, index: int) -> None:
        """Record that a snapshot is taken."""
        self._note("snapshot", index, 0, 0, 0, _frames())

    def blocks(self, account: Account) -> list[tuple[int, int, bool, Frames]]:
        """Return address, size, whether a tensor has it, and frames, of all blocks in the segment of a device."""
        places = self._places[account.index]
        base = base_of(account.index)
        before = account.used - sum(place.size for place in places)  # bytes from before
        found: list[tuple[int, int, bool, Frames]] = [(base, before, True, [])] if before > 0 else []
        end = base + max(before, 0)
        for place in places:
            if place.address > end:
                found.append((end, place.address - end, False, []))
            found.append((place.address, place.size, True, place.frames or []))
            end = place.address + place.size
        rest = base + account.reserved - end
        return [*found, (end, rest, False, [])] if rest > 0 else found

    def frames_of(self, pointer: int) -> Frames | None:
        """Return the frames of the recorded memory that has that address for a program; None if there is none."""
        places = itertools.chain.from_iterable(self._places)
        return next((place.frames for place in places if place.pointer == pointer), None)


def _frames() -> Frames:
    found: Frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_ours(frame):
            code = frame.f_code
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    while found and found[-1]["filename"].endswith("threading.py"):
        found.pop()
    return found


def record(
    enabled: str | None, context: str | None, stacks: str, most: int, clear: bool, *more: Sequence[str]
) -> History | None:
    """Begin or end recording, as `_cuda_record_memory_history` does.

    Raises:
        RuntimeError: a word is none of torch's.
    """
    for word, (known, text) in ((enabled, _ENABLED), (context, _CONTEXT), (stacks, _STACKS)):
        if word is not None and word not in known:
            raise RuntimeError(text)
    devices = present()
    before = devices.history
    # After `compile_context` and `global_record_annotations`: the actions to skip. Since torch 2.14 also whether pinned
    # memory of the host is recorded, and whether the devices' is.
    skipped: Sequence[str] = more[2] if len(more) > 2 else ()
    if enabled is None or (len(more) > 4 and not more[4]):
        devices.history = None
        return None
    history = History(devices.accounts, context, most if enabled == "all" else 1, skipped)
    if before is not None:
        history._floors, history._reserved, history._places = before._floors, before._reserved, before._places
        for place in itertools.chain.from_iterable(history._places):
            place.history = history
        if not clear:
            for old, new in zip(before.traces, history.traces, strict=True):
                new.extend(old)
    devices.history = history
    return history


def allocation_traceback(pointer: int) -> Frames | None:
    """Return the result of `_cuda_allocationTraceback`."""
    history = present().history
    return None if history is None else history.frames_of(pointer)


def recorded(op: Operator, kernel: Callable[..., object]) -> Callable[..., object]:
    """Wrap a kernel to record its results; a wrapper for `_kernels.wrap_kernels`."""
    if is_view(op):
        return kernel

    def call(*args: object, **kwargs: object) -> object:
        devices = present_or_none()
        history = None if devices is None else devices.history
        if devices is None or history is None:
            return kernel(*args, **kwargs)
        given = {each.untyped_storage()._cdata for each in _tensors((args, list(kwargs.values())))}
        failures = [account.ooms for account in devices.accounts]
        try:
            result = kernel(*args, **kwargs)
        except torch.OutOfMemoryError:
            for account, count in zip(devices.accounts, failures, strict=True):
                if account.ooms > count:
                    history.failed(account, account.asked)
            raise
        for tensor in _tensors((result,)):
            block = None if tensor.untyped_storage()._cdata in given else block_of(tensor)
            if type(block) is Block and block.size:
                block.place = history.taken(block.account, block.size, tensor.untyped_storage().data_ptr())
                block.__class__ = _RecordedBlock
        return result

    return call


def _tensors(values: Sequence[object]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cuda and value.layout is torch.strided:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found
