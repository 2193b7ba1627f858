"""Devices that break under a rank's groups."""

from __future__ import annotations

from simdist.device import break_devices
from simdist.process import SimProcess

__all__ = ["break_devices_of"]


def break_devices_of(process: SimProcess, kind: str) -> None:
    """Break the devices of a rank, like `simdist.device.break_devices`, with its groups' operations on them."""
    from simdist.c10d.backends.nccl.watch._rank import known_nccl_of  # worlds without NCCL do not need it

    error = break_devices(process, kind)
    nccl = None if error is None else known_nccl_of(process)
    if error is not None and nccl is not None:
        for group in nccl.groups:
            group.lose_devices(error)
