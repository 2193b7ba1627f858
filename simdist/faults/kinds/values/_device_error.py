"""`DeviceError`: a virtual device breaks under its rank."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from simdist.faults._fault import Machine
from simdist.faults._fields import DEVICE_ERROR
from simdist.faults._rank_fault import RankFault
from simdist.faults._stage import StruckRank

__all__ = ["DeviceError"]

_BEGINS = {
    "ecc": "has an uncorrectable ECC error",
    "lost": "is lost",
    "oom": "has no memory for the next tensor",
}


class DeviceError(RankFault):
    """The device of the rank fails: an "ecc" error, a "lost" device, or "oom", no memory for the next tensor.

    After "ecc" and "lost" every use of the device raises `torch.AcceleratorError` with CUDA's text: kernels, copies,
    waits for streams, collectives. This lasts until the process ends; a restart has a device that works, unless `life`
    is None and the fault strikes again. Work that was on the device never ends: collectives in which the rank takes
    part do not end, its watchdog takes the process down as torch's does, and peers find out as they do over NCCL.

    After "oom" the next kernel that makes a tensor raises `torch.OutOfMemoryError`, as if another process held all free
    memory. The one after it does not: a program that catches the error may go on with a smaller batch.

    All devices that the rank's process uses break. A world without virtual devices has none to break.

    Example:
        >>> import simdist, torch
        >>> def compute():
        ...     tensor = torch.ones(2, device="cuda")
        ...     simdist.step(1)
        ...     return tensor.add(1).tolist()
        >>> result = simdist.run(compute, world_size=1, backend="nccl", faults=[DeviceError(rank=0, at_step=1)])
        >>> print(str(result.ranks[0].exception).splitlines()[0])
        CUDA error: uncorrectable ECC error encountered
    """

    may_keep_out: ClassVar[bool] = True

    error: Annotated[Literal["ecc", "lost", "oom"], DEVICE_ERROR] = "ecc"

    @property
    def needs_devices(self) -> bool:
        """True."""
        return True

    def strike(self, rank: StruckRank) -> None:
        """Break the device."""
        rank.break_device(self.error)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses: a real device is not broken."""
        return "no real device is broken for a run"

    def begins(self) -> str:
        """Describe the device's error."""
        return f"the device of rank {self.rank} {_BEGINS[self.error]}"
