"""Virtual devices: tensors that say `cuda:N`, in C++ too, over the memory of the host.

Programs use CUDA through torch's own code. A tensor of a device is a plain `torch.Tensor` whose C++ object has the
device and the dispatch keys of CUDA, and a pointer to host memory (`_aliases`). A CPU build of torch has no kernels for
those keys: ours (`kernels`) call the CPU's kernels with CPU tensors over the same memory. Three places inside torch
answer C++'s questions about devices (`_torch_core` switches them), and `torch.cuda`, which stays as it is, finds the
functions that a CUDA build has (`_bindings`). Sparse tensors are C++ objects over two of those. So everything that
torch decides by device comes out right: autograd, autocast, DDP's reducer, views, printing, pickling.

Each host of the cluster has `devices_per_host` devices with `device_memory_bytes` each; a process sees those of its
host, or the ones that CUDA_VISIBLE_DEVICES leaves (`_state`). Memory is accounted by process and device (`_memory`),
generators have CUDA's state but other numbers (`_generators`), streams and events are virtual time (`_streams`, of
`_marks`). An operation on a stream claims the memory that it will read or write, until it has done so (`_claims`);
kernels that need this memory are deferred until then (`kernels/_deferred`). Computing takes no time unless the cluster
has a `device_model` (`_compute`); `_races` finds memory that streams use without order, in strict worlds; `_history`
keeps the allocations, while a program records them. `_failure` breaks devices, and `kernels/_wrong` lets them compute
wrongly. `_absent` refuses features that only a GPU has, and runs the code of `torch.compile` without Triton. `_legacy`
has the names that older programs use. Kernels in C++ (`kernels/native/kernels.cpp`) can replace those in Python, with
the same results: `build_kernels` builds them, `kernels/_compiled` finds them.

A world that has no devices pays nothing and changes nothing. A world with devices leaves nothing behind: only the
kernels stay registered, for a key that no tensor has then. Tensors that outlive it can still be read.

In doubt: values are the CPU's, not a GPU's (no TF32, no Philox); quantized and compressed sparse tensors, CUDA graphs
and extensions in CUDA C++ are out of reach.

Open `_install.py` first, then `kernels/_kernels.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily
from simdist.device._aliases import block_of
from simdist.device._claims import Claimant, Follower, claim, follow_writes, memory_of, release, values_now
from simdist.device._events import KernelRun, KernelTimes, StreamRaced
from simdist.device._failure import break_devices
from simdist.device._host_copies import HostCopies
from simdist.device._install import DeviceState
from simdist.device._marks import Mark, latest
from simdist.device._state import account_of, cuda_error
from simdist.device._state import present as devices_of_this_process
from simdist.device._streams import Streams
from simdist.device._torch_core import current_device, select_stream, why_no_devices
from simdist.device.kernels._wrong import change_kernels

__all__ = [
    "Claimant",
    "DeviceState",
    "Follower",
    "HostCopies",
    "KernelRun",
    "KernelTimes",
    "Mark",
    "StreamRaced",
    "Streams",
    "account_of",
    "block_of",
    "break_devices",
    "build_kernels",
    "built_kernels",
    "change_kernels",
    "claim",
    "compiler",
    "cuda_error",
    "current_device",
    "devices_of_this_process",
    "follow_writes",
    "latest",
    "memory_of",
    "release",
    "remove_old_builds",
    "select_stream",
    "values_now",
    "why_no_devices",
]

if TYPE_CHECKING:
    from simdist.device.kernels._compiled import build_kernels, built_kernels, compiler, remove_old_builds

# Worlds without devices do not need these.
_HOMES = dict.fromkeys(("build_kernels", "built_kernels", "compiler", "remove_old_builds"), "kernels._compiled")
__getattr__ = lazily(__name__, _HOMES)
