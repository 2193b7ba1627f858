"""What kind of torch runs the tests, read before any world: its words differ by version and by build."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["BUILT_FOR_CUDA", "NCCL", "NOT_A_MEMBER", "NO_NCCL", "NO_NCCL_BESIDE_GLOO", "VERSION"]

VERSION: tuple[int, int] = tuple(map(int, str(torch.__version__).split(".")[:2]))  # type: ignore[assignment]  # of two
BUILT_FOR_CUDA = torch.version.cuda is not None
NCCL = "2.28.9" if VERSION < (2, 12) else "2.29.7" if VERSION < (2, 14) else "2.30.7"
"""The NCCL that comes with it, or would if it were built for CUDA."""
NO_NCCL = NO_NCCL_BESIDE_GLOO = "Distributed package doesn't have NCCL built in"
if BUILT_FOR_CUDA:
    NO_NCCL = "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"
    NO_NCCL_BESIDE_GLOO = NO_NCCL
    if VERSION >= (2, 15):
        NO_NCCL = "nccl2 requires at least one CUDA device"
"""What a process without a GPU that asks for NCCL reads."""

NOT_A_MEMBER = dist.GroupMember.NON_GROUP_MEMBER if VERSION >= (2, 14) else None
"""What a rank gets in place of a group that it is not in, where no other is asked for: since 2.14 always the same."""
