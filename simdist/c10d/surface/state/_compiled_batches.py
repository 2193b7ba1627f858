"""Batches of messages in compiled code.

`torch.compile` turns `batch_isend_irecv` into `_c10d_functional.batch_p2p_ops`. Torch's kernel for it asks a group's
C++ backend whether it supports coalescing, but our groups have none. While code is compiled on ranks, our kernel does
the same as torch's (2.13) and asks the Python group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.surface._identity import GroupBackend
from simdist.inside.torch import BELOW_TORCH, Replacements, c10d_bindings, functional_operators
from simdist.process import Patches

if TYPE_CHECKING:
    from simdist.c10d.surface._compat import Work

__all__ = ["install"]

_NAME = "batch_p2p_ops"
_DEVICES = ("CPU", "CUDA")


def install(patches: Patches) -> None:
    """Register the kernel, so that batches reach groups of ranks."""
    if not hasattr(functional_operators, _NAME):
        return  # torch before 2.11
    kernels = Replacements("_c10d_functional")
    patches.on_undo(kernels.destroy)
    for device in _DEVICES:
        kernels.impl(_NAME, device, _batch)


def _batch(
    operations: list[str], peers: list[int], tags: list[int], tensors: list[torch.Tensor], group_name: str
) -> list[torch.Tensor]:
    group = c10d_bindings._resolve_process_group(group_name) if tensors else None
    if not isinstance(group, GroupBackend) or not len(operations) == len(peers) == len(tags) == len(tensors):
        elsewhere: Any = functional_operators.batch_p2p_ops.default
        made: list[torch.Tensor] = elsewhere.redispatch(BELOW_TORCH, operations, peers, tags, tensors, group_name)
        return made
    device = tensors[0].device
    coalesces = group._get_backend(device).supports_coalescing
    if coalesces:
        group._start_coalescing(device)
    found = []
    for operation, peer, tag, tensor in zip(operations, peers, tags, tensors, strict=True):
        if operation == "isend":
            work, output = group.send([tensor], peer, tag), tensor.new_empty(0)
            _register(tensor, work)
        elif operation == "irecv":
            work, output = group.recv([tensor], peer, tag), tensor
        else:
            raise RuntimeError(f"Unsupported async op {operation}")
        _register(output, work)
        found.append(output)
    if coalesces:
        whole = group._end_coalescing(device)
        for output in found:
            _register(output, whole)
    return found


def _register(tensor: torch.Tensor, work: Work | None) -> None:
    if work is not None:
        c10d_bindings._register_work(tensor, work)
