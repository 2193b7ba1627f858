"""The functional all-gather into a given tensor, which inductor and programs call.

Torch's kernel for `_c10d_functional.all_gather_into_tensor_out` calls a method of C++ that no Python class of groups
can override, and which looks for a backend of C++ (torch 2.13). While a world lives, a kernel asks the group itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d as _c

from simdist.c10d.surface._identity import GroupBackend
from simdist.process import Patches

__all__ = ["install"]

_registry: Any = _c  # has what the stubs leave out
_library: Any = torch._C._dispatch_library
_SPACE, _NAME = "_c10d_functional", "all_gather_into_tensor_out"
_ELSEWHERE = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)  # a key that still has torch's kernel


def install(patches: Patches, *, has_devices: bool) -> None:
    """Let it reach groups of ranks."""
    if not torch._C._dispatch_has_kernel(f"{_SPACE}::{_NAME}"):
        return
    # Not `torch.library.Library`, which takes ten times as long: worlds start by the thousand.
    library = _library("IMPL", _SPACE, "")
    for device in ("CPU", "CUDA") if has_devices else ("CPU",):
        library.impl(_NAME, device, _gather)
    patches.on_undo(library.reset)


def _gather(input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor) -> torch.Tensor:
    group = group_name if isinstance(group_name, GroupBackend) else None
    if isinstance(group_name, str):
        group = _registry._resolve_process_group(group_name)
    if not isinstance(group, GroupBackend):
        elsewhere: Any = getattr(torch.ops._c10d_functional, _NAME).default
        made: torch.Tensor = elsewhere.redispatch(_ELSEWHERE, input, group_size, group_name, out=out)
        return made
    work = group._allgather_base(out, input)
    if work is not None:
        _registry._register_work(out, work)
    return out
