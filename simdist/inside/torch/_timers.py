"""DDP's timers in `c10d::TimerRegistry`, where a CUDA build has one that records events in the driver."""

from __future__ import annotations

import ctypes
import functools

import torch

from simdist.errors import UnsupportedError
from simdist.inside._facts import fact
from simdist.inside.torch._cuda import is_built_for_cuda
from simdist.inside.torch._cxx import library

__all__ = ["hide_timer"]

_REGISTRY = "_ZN4c10d13TimerRegistryEv"
_CPU, _CUDA, _NO_DEVICE = 0, 1, 127  # c10::DeviceType, and a number that is none
_MOST = 16  # entries


@functools.cache
def _keys() -> dict[int, ctypes.c_int8]:
    """The keys of the entries, shared, by their values.

    A registry (c10/util/Registry.h) begins with a hash table of GCC's library: buckets, their number, the first node
    and the number of nodes. A node has the next one, and the key: a byte.

    Raises:
        UnsupportedError: this torch has another layout.
    """
    get = library("libtorch_cpu.so")[_REGISTRY]
    get.restype = ctypes.c_void_p
    words = (ctypes.c_uint64 * 4).from_address(get())
    node, count = words[2], words[3]
    entries: list[ctypes.c_int8] = []
    if 1 <= count <= _MOST and words[1] >= 1:
        while node and len(entries) <= count:
            entries.append(ctypes.c_int8.from_address(node + 8))
            node = ctypes.c_uint64.from_address(node).value
    keys = [entry.value for entry in entries]
    if len(keys) != count or len(set(keys)) != count or _CPU not in keys or min(keys) < 0:
        raise UnsupportedError(
            f"virtual devices need a torch that keeps DDP's timers as 2.14 does; this one ({torch.__version__}) keeps "
            "them otherwise"
        )
    return dict(zip(keys, entries, strict=True))


def hide_timer(*, hidden: bool) -> None:
    """Hide DDP's timer for CUDA, as if in a CPU build; if not `hidden`, show it again."""
    entry = _keys().get(_CUDA)
    if entry is not None:
        entry.value = _NO_DEVICE if hidden else _CUDA


@fact(
    "torch.devices.timers",
    what="DDP's timers lie in a hash table of GCC's library, by the kind of device",
    source="torch/csrc/distributed/c10d/reducer_timer.hpp; c10/util/Registry.h",
    seen="2.11 to 2.15",
    feature="virtual devices with a torch that is built for CUDA",
)
def _timers_are_known() -> str:
    keys = {kind: entry.value for kind, entry in _keys().items()}
    if _CPU not in keys:
        return f"there are timers for {sorted(keys)}"
    return "" if not is_built_for_cuda() or _CUDA in keys else "there is none for CUDA"
