"""Memory that is allocated on devices: by process, against the memory that a device has.

Sizes are those of torch's caching allocator: blocks of 512 bytes, memory asked of the device 2 MiB at a time and kept
until `empty_cache` or until there is no more. Three things are not modelled: fragmentation (freed memory fits any later
request), the memory of a CUDA context, and memory that a kernel needs only while it runs.

Tensors in cycles of objects are freed when Python's garbage collector runs: after a fixed number of hand-overs, and
before memory is refused. In doubt: in a world of one rank it runs at a moment that depends on all objects that the
process has made before, and so may a peak; `gc.collect()` in the program settles it.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from simdist.device._history import Place
    from simdist.device._races import Uses

__all__ = ["Account", "Block", "Device", "account_class"]

_BLOCK, _SEGMENT = 512, 2 << 20
_SMALL, _MEDIUM, _MEDIUM_SEGMENT = 1 << 20, 10 << 20, 20 << 20


class Device:
    """A device of a host: its memory, and the accounts of the processes that use it."""

    __slots__ = ("accounts", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.accounts: list[Account] = []  # of processes that live

    @property
    def free(self) -> int:
        """Bytes that no process has."""
        return self.capacity - sum(account.reserved for account in self.accounts)


class Account:
    """The memory of one process on a device, which the process calls number `index`.

    `reserved` is the process's share of the device; `used` is the part of it that tensors hold. `account_class` decides
    where the figures are, because kernels in C++ keep them themselves.
    """

    device: Device
    index: int
    pid: int
    used: int
    reserved: int
    peak: int
    peak_reserved: int
    total: int  # ever allocated
    allocations: int  # blocks that are there
    most_allocations: int
    allocated: int  # blocks ever allocated
    since: tuple[int, int, int, int]  # bytes and blocks, allocated and freed, at the last `reset_totals`
    retries: int
    syncs: int  # how often memory that no tensor holds was looked for to give it back
    ooms: int
    asked: int  # bytes of the last request that was refused
    fraction: float  # of the device, that the process allows itself
    limit: int
    observers: Sequence[Callable[[int, int, int, int], object]]  # called when there is no more memory

    def __init__(self, device: Device, index: int, pid: int) -> None:
        self.device, self.index, self.pid = device, index, pid
        self.used = self.reserved = 0
        self.peak = self.peak_reserved = 0
        self.total = 0
        self.allocations = self.most_allocations = 0
        self.allocated = 0
        self.since = 0, 0, 0, 0
        self.retries = self.syncs = self.ooms = self.asked = 0
        self.observers = ()
        self.fraction = 1.0
        self.limit = device.capacity
        device.accounts.append(self)

    def take(self, size: int) -> Block:
        """Allocate.

        Raises:
            OutOfMemoryError: the device has no more, in torch's words.
        """
        size = (size + _BLOCK - 1) & -_BLOCK
        used = self.used + size
        if used > self.reserved:
            self._reserve(used, size)
            used = self.used + size  # garbage may have been collected meanwhile
        self.used = used
        if used > self.peak:
            self.peak = used
        self.total += size
        self.allocated += 1
        self.allocations += 1
        if self.allocations > self.most_allocations:
            self.most_allocations = self.allocations
        return Block(self, size)

    def require(self, size: int) -> None:
        """Check that this size could be allocated, before host memory is requested.

        Raises:
            OutOfMemoryError: as `take`.
        """
        size = (size + _BLOCK - 1) & -_BLOCK
        if self.used + size > self.reserved:
            self._reserve(self.used + size, size)

    def release_unused(self) -> None:
        """Give the memory that no tensor holds back to the device."""
        self.syncs += 1
        self.reserved = -(-self.used // _SEGMENT) * _SEGMENT

    def close(self) -> None:
        """Remove a dead process, with its memory; no process is charged for its tensors from now on."""
        if self in self.device.accounts:
            self.device.accounts.remove(self)

    def limit_to(self, fraction: float) -> None:
        """Allow the process only a part of the device."""
        self.fraction = fraction
        self.limit = int(self.device.capacity * fraction)

    def out_of_memory(self, size: int) -> torch.OutOfMemoryError:
        """Return the error of an allocation that failed, and call the observers."""
        self.ooms += 1
        self.asked = size
        asked = _SEGMENT if size <= _SMALL else _MEDIUM_SEGMENT if size < _MEDIUM else -(-size // _SEGMENT) * _SEGMENT
        for observer in self.observers:
            observer(self.index, asked, self.limit, self.device.free)
        unused = self.reserved - self.used
        holders = "".join(
            f"Including non-PyTorch memory, this process has {_said(account.reserved)} memory in use. "
            if account is self
            else f"Process {account.pid} has {_said(account.reserved)} memory in use. "
            for account in sorted(self.device.accounts, key=lambda account: account.pid)
        )
        allowed = f"{_said(self.limit)} allowed; " if self.limit < self.device.capacity else ""
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_said(asked)}. GPU {self.index} has a total capacity of "
            f"{_said(self.device.capacity)} of which {_said(self.device.free)} is free. {holders}{allowed}"
            f"Of the allocated memory {_said(self.used)} is allocated by PyTorch, and {_said(unused)} is reserved by "
            "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )

    def _reserve(self, used: int, size: int) -> None:
        wanted = -(-used // _SEGMENT) * _SEGMENT
        if wanted - self.reserved > self.device.free or wanted > self.limit:
            # A last block need not fill its segment, for there is no fragmentation here that would need the rest.
            wanted = used
            self.retries += 1
            if wanted - self.reserved > self.device.free or wanted > self.limit:
                wanted = self._without_garbage(size)
        self.reserved = wanted
        self.peak_reserved = max(self.peak_reserved, wanted)

    def _without_garbage(self, size: int) -> int:
        # Garbage lies longer in a world than in a process of its own: see `simdist.process`'s collector.
        gc.collect()
        wanted = self.used + size
        if wanted - self.reserved > self.device.free or wanted > self.limit:
            raise self.out_of_memory(size)
        return max(wanted, self.reserved)

    # -- statistics ----------------------------------------------------------------------------------------------

    def reset_peaks(self) -> None:
        """Set the peaks to the present figures."""
        self.peak, self.peak_reserved = self.used, self.reserved
        self.most_allocations = self.allocations

    def reset_totals(self) -> None:
        """Count allocations from here on."""
        self.since = self.total, self.total - self.used, self.allocated, self.allocated - self.allocations
        self.retries = self.ooms = 0

    def statistics(self) -> dict[str, object]:
        """Return the statistics in the format of `torch._C._cuda_memoryStats`."""
        total, freed, blocks, blocks_freed = self.since
        used = _figures(self.used, self.peak, self.total - total, self.total - self.used - freed)
        gone = self.allocated - self.allocations
        allocations = _figures(self.allocations, self.most_allocations, self.allocated - blocks, gone - blocks_freed)
        reserved = _figures(self.reserved, self.peak_reserved, self.reserved, 0)
        most = _segments(self.peak_reserved)
        segments = _figures(_segments(self.reserved), most, _segments(self.reserved), 0)
        unused = _figures(self.reserved - self.used, self.peak_reserved, self.reserved, self.used)
        nothing = _figures(0, 0, 0, 0)
        pools = {
            "allocation": allocations,
            "segment": segments,
            "active": allocations,
            "inactive_split": nothing,
            "allocated_bytes": used,
            "reserved_bytes": reserved,
            "active_bytes": used,
            "inactive_split_bytes": unused,
            "requested_bytes": used,
        }
        return {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.syncs,
            "num_device_alloc": segments["allocated"],
            "num_device_free": segments["freed"],
            "max_split_size": -1,
            "oversize_allocations": nothing,
            "oversize_segments": nothing,
            **{name: {"all": figures, "small_pool": nothing, "large_pool": figures} for name, figures in pools.items()},
        }


class _PlainAccount(Account):
    __slots__ = tuple(Account.__annotations__)


@functools.cache
def account_class(figures: Any = None) -> type[Account]:
    """Return the class of accounts: with figures of its own, or on a base class where kernels in C++ keep them."""
    if figures is None:
        return _PlainAccount

    def begin(self: Account, device: Device, index: int, pid: int) -> None:
        figures.__init__(self)
        Account.__init__(self, device, index, pid)

    return type("_CompiledAccount", (Account, figures), {"__init__": begin})


class Block:
    """The memory of one storage; it is given back when the storage is gone.

    `host` is the CPU tensor that a kernel made there; `size_said` is the size that the storage reports, if that is not
    the real one.
    """

    __slots__ = ("__weakref__", "account", "host", "place", "size", "size_said", "uses")

    place: Place  # in the history of the memory, for a block that is recorded

    def __init__(self, account: Account, size: int) -> None:
        self.account, self.size = account, size
        self.host: Any = None
        self.size_said: int | None = None
        self.uses: Uses | None = None  # by which kernels, in a world that looks for races

    def resize(self, size: int) -> None:
        """Count the block as one of another size: a storage was resized, and its bytes are still there."""
        account = self.account
        other = account.take(size)
        self.size, other.size = other.size, self.size
        self.size_said = size

    def __del__(self) -> None:
        account = self.account
        account.used -= self.size
        account.allocations -= 1


def _figures(current: int, peak: int, allocated: int, freed: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def _segments(size: int) -> int:
    return -(-size // _SEGMENT)


def _said(size: int) -> str:
    """Return a size as the allocator writes it."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, bound in (("KiB", 1 << 20), ("MiB", 1 << 30)):
        if size <= bound:
            return f"{size / (bound >> 10):.2f} {unit}"
    return f"{size / (1 << 30):.2f} GiB"
