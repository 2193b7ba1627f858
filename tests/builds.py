"""The version and build of the torch that runs the tests, read before any world: its texts differ by both."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["BUILT_FOR_CUDA", "NCCL", "NOT_A_MEMBER", "NO_NCCL", "NO_NCCL_BESIDE_GLOO", "VERSION"]

VERSION: tuple[int, int] = tuple(map(int, str(torch.__version__).split(".")[:2]))  # type: ignore[assignment]  # two numbers
BUILT_FOR_CUDA = torch.version.cuda is not None
NCCL = "2.28.9" if VERSION < (2, 12) else "2.29.7" if VERSION < (2, 14) else "2.30.7"
"""The NCCL that a CUDA build of this torch has."""
NO_NCCL = NO_NCCL_BESIDE_GLOO = "Distributed package doesn't have NCCL built in"
if BUILT_FOR_CUDA:
    NO_NCCL = "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"
    NO_NCCL_BESIDE_GLOO = NO_NCCL
    if VERSION >= (2, 15):
        NO_NCCL = "nccl2 requires at least one CUDA device"
"""The error texts of a process without a GPU that asks for NCCL."""

NOT_A_MEMBER = dist.GroupMember.NON_GROUP_MEMBER if VERSION >= (2, 14) else None
"""What `new_group` returns to a rank that is not in the group, unless it asks for another value: fixed since 2.14."""
