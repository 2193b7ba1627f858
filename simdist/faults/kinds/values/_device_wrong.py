"""`DeviceWrong`: a virtual device computes wrongly for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._fields import RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.values import Maybe, Number, Text

__all__ = ["PRODUCTS", "DeviceWrong"]

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
"""The kernels of matrix products, as torch names their operators."""


class DeviceWrong(LastingFault):
    """The device of the rank computes wrongly while it lasts, and reports no error: silent data corruption.

    Each result of a matrix product, or of the operator that `kernel` names ("exp", "convolution"), has one element that
    is `factor` times what it should be; which one is drawn from the run's seed. Results of other types than
    floating-point numbers stay right. The fault strikes with the first wrong result: if no such kernel runs, it never
    does. A world without virtual devices has none that could compute wrongly.

    Example:
        >>> import simdist, torch
        >>> def product():
        ...     ones = torch.ones(2, 2, device="cuda")
        ...     return (ones @ ones).tolist()
        >>> simdist.run(product, world_size=2, backend="nccl", faults=[DeviceWrong(rank=1, factor=3)]).values
        [[[2.0, 2.0], [2.0, 2.0]], [[2.0, 2.0], [6.0, 2.0]]]
    """

    reported_at_start: ClassVar[bool] = False

    rank: Annotated[int, RANK]
    kernel: Annotated[str | None, Maybe(Text(title=True))] = None
    factor: Annotated[float, Number()] = 2.0

    @property
    def needs_devices(self) -> bool:
        """True."""
        return True

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault that lasts, and a factor that changes nothing."""
        yield from super().problems(world)
        if world.fine("factor") and self.factor == 1:
            yield "factor", "1 changes nothing"

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Change results from the start on, and report the fault with the first."""
        kernels = PRODUCTS if self.kernel is None else (self.kernel,)
        reported: list[int] = []

        def place(rank: int, name: str, size: int) -> tuple[int, float] | None:
            if rank != self.rank or name not in kernels or (until_ns is not None and stage.now_ns >= until_ns):
                return None
            if not reported:
                reported.append(stage.now_ns)
                stage.report()
            return int(stage.draw() * size), self.factor

        if start_ns > stage.now_ns:
            stage.call_at(start_ns, lambda: stage.change_kernels(place))
        else:
            stage.change_kernels(place)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses: a real device is not changed."""
        return "no real device is made to compute wrongly"

    def begins(self) -> str:
        """Describe the wrong results."""
        what = "matrix product" if self.kernel is None else self.kernel
        return f"one element of each {what} of rank {self.rank} is {self.factor:g} times what it should be"

    def ends(self) -> str:
        """Describe the end of the wrong results."""
        return f"the device of rank {self.rank} computes as it should again"
