"""The functional all-gather into a given tensor, which inductor and programs call.

Torch's kernel for `_c10d_functional.all_gather_into_tensor_out` calls a C++ method that a Python group cannot override,
and that needs a C++ backend (torch 2.13). While a world lives, our kernel calls the group's Python method.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from simdist.c10d.surface._identity import GroupBackend
from simdist.inside.torch import BELOW_TORCH, c10d_bindings, functional_operators, has_kernel, kernel_library, unwarned
from simdist.process import Patches

__all__ = ["install"]

_SPACE, _NAME = "_c10d_functional", "all_gather_into_tensor_out"


def install(patches: Patches, *, has_devices: bool) -> None:
    """Register the kernel, so that the operator reaches groups of ranks."""
    if not _is_there():
        return
    # Not `torch.library.Library`, which takes ten times as long: programs start thousands of worlds.
    library = kernel_library("IMPL", _SPACE, "")
    patches.on_undo(library.reset)
    with unwarned():
        for device in ("CPU", "CUDA") if has_devices else ("CPU",):
            library.impl(_NAME, device, _gather)


@functools.cache
def _is_there() -> bool:
    return has_kernel(f"{_SPACE}::{_NAME}")


def _gather(input: torch.Tensor, group_size: int, group_name: object, *, out: torch.Tensor) -> torch.Tensor:
    group = group_name if isinstance(group_name, GroupBackend) else None
    if isinstance(group_name, str):
        group = c10d_bindings._resolve_process_group(group_name)
    if not isinstance(group, GroupBackend):
        elsewhere: Any = getattr(functional_operators, _NAME).default
        made: torch.Tensor = elsewhere.redispatch(BELOW_TORCH, input, group_size, group_name, out=out)
        return made
    work = group._allgather_base(out, input)
    if work is not None:
        c10d_bindings._register_work(out, work)
    return out
