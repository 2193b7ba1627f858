"""Memory pools of programs, and snapshots of the memory.

A pool is only a name here: its memory is accounted as all other memory, and there is no fragmentation that it would
avoid. A snapshot has one segment for each device, as large as the reserved memory, with one block for the memory of
tensors and one for the rest: its sums are those of the statistics, its addresses are made up. While the history of the
memory is recorded (`_history`), each allocation since then is a block of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from simdist.device._cuda_build import early
from simdist.device._history import Frames, History, base_of
from simdist.device._memory import Account
from simdist.device._state import present
from simdist.inside.torch import compiled_base, is_built_for_cuda
from simdist.process import Patches, current_process

__all__ = ["install", "snapshot"]

Id = tuple[int, int]


def _uses() -> dict[Id, int]:
    return present().pools


class _Pool:
    """The parts of `torch.cuda.MemPool` that a CUDA build has: its identity, and the number of its users."""

    def __init__(self, allocator: object = None, is_user_created: bool = True, *_: bool) -> None:
        uses = _uses()
        number = len(uses) + 1
        self.__dict__["_simulated"] = allocator, (0, number) if is_user_created else (number, 0)
        uses[self.id] = 1

    @property
    def allocator(self) -> object:
        """The allocator that the program gave, if any."""
        return self.__dict__["_simulated"][0]

    @property
    def id(self) -> Id:
        """Two numbers."""
        found: Id = self.__dict__["_simulated"][1]
        return found

    @property
    def device(self) -> int:
        """The current device."""
        return int(torch.cuda.current_device())

    def use_count(self) -> int:
        """Return the number of users, itself included."""
        return _uses()[self.id]


class _PoolOfPrograms(_Pool):
    """Replaces `torch.cuda.MemPool` itself, where that is a class over a C type."""

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        super().__init__(allocator, True, use_on_oom, no_split)

    def snapshot(self, include_traces: bool = True) -> object:
        """Return a snapshot of its memory."""
        show: Any = torch.cuda.memory_snapshot
        return show(self.id) if include_traces else show(self.id, include_traces=False)


def _begin(_: int, pool: Id) -> None:
    _uses()[pool] += 1


def _release(_: int, pool: Id) -> None:
    _uses()[pool] -= 1


def install(patches: Patches) -> None:
    """Let ranks make pools."""
    if is_built_for_cuda():
        real = torch.cuda.MemPool
        for module in (torch.cuda, torch.cuda.memory):
            patches.replace(module, "MemPool", _PoolOfPrograms)
        patches.replace(real, "__new__", early(_PoolOfPrograms, real, lambda: current_process() is not None))
    else:
        base = compiled_base(torch.cuda.MemPool)  # a dummy, which refuses to be made
        make = base.__new__

        def new(cls: type, *args: object, **kwargs: object) -> object:
            return make(cls, *args, **kwargs) if current_process() is None else object.__new__(cls)

        patches.replace(base, "__new__", staticmethod(new))
        for name in ("__init__", "allocator", "id", "device", "use_count"):
            patches.replace(base, name, vars(_Pool)[name])
    memory: Any = torch.cuda.memory
    patches.replace(memory, "_cuda_beginAllocateCurrentThreadToPool", _begin)
    patches.replace(memory, "_cuda_beginAllocateToPool", _begin)
    patches.replace(memory, "_cuda_endAllocateToPool", lambda *_: None)
    patches.replace(memory, "_cuda_releasePool", _release)


def snapshot(which: bool | Id | None = None) -> dict[str, object]:
    """Return the result of `torch._C._cuda_memorySnapshot`, for all memory or for a pool."""
    accounts, history = present().accounts, present().history
    if history is not None:
        for account in accounts:
            history.snapshot_taken(account.index)
    everything = which is None or isinstance(which, bool) or tuple(which)[:2] == (0, 0)  # traces or not, in 2.14
    return {
        "segments": [_segment(account, history) for account in accounts if account.reserved] if everything else [],
        "device_traces": [[] if history is None else list(history.traces[each.index]) for each in accounts],
        "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.0},
        "external_annotations": [],
    }


def _segment(account: Account, history: History | None) -> dict[str, object]:
    address = base_of(account.index)
    if history is None:
        parts: list[tuple[int, int, bool, Frames]] = [
            (address, account.used, True, []),
            (address + account.used, account.reserved - account.used, False, []),
        ]
    else:
        parts = history.blocks(account)
    blocks = [
        {
            "address": begin,
            "size": size,
            "requested_size": size,
            "state": "active_allocated" if has_tensor else "inactive",
            "frames": frames,
        }
        for begin, size, has_tensor, frames in parts
        if size
    ]
    return {
        "device": account.index,
        "segment_pool_id": (0, 0),
        "address": address,
        "total_size": account.reserved,
        "allocated_size": account.used,
        "active_size": account.used,
        "requested_size": account.used,
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
