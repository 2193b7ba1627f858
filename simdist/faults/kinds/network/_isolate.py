"""`Isolate`: a rank, or a machine, is cut off from all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._fields import RANK, TRUTH
from simdist.faults._link_fault import LinkEffect, LinkFault
from simdist.faults._stage import Stage

__all__ = ["Isolate"]


class Isolate(LinkFault):
    """Nothing passes between `rank` and any other rank until `until_ns`; with `host`, between its host and the others.

    The ranks of an isolated host still reach each other. If all ranks of the world are on this host, the fault never
    strikes. Requests to the launcher's store are not affected.

    Example:
        >>> Isolate(rank=2, start_ns=1_000_000_000, until_ns=3_000_000_000).begins()
        'rank 2 is cut off from all others'
    """

    says_its_end: ClassVar[bool] = True

    rank: Annotated[int, RANK]
    host: Annotated[bool, TRUTH] = False

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every link fault, and a world of one rank."""
        yield from super().problems(world)
        if world.world_size == 1:
            yield "", "a world of 1 rank has nobody to be cut off from"

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Block messages from and to the rank; `arm` finds the ranks of its host."""
        return LinkEffect(blocked=True) if self.rank in (src, dst) else None

    def arm(self, stage: Stage) -> None:
        """Do nothing if no rank is on another host."""
        if len(self._inside(stage)) < stage.world_size:
            super().arm(stage)

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Lay one cut between inside and outside."""
        inside = self._inside(stage)
        outside = [rank for rank in range(stage.world_size) if rank not in inside]
        stage.keep(stage.network.cut((inside, outside), start_ns=start_ns, until_ns=until_ns))

    def _inside(self, stage: Stage) -> list[int]:
        if not self.host:
            return [self.rank]
        placement = stage.network.cluster.placement
        return [rank for rank in range(stage.world_size) if placement[rank] == placement[self.rank]]

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses hosts: all ranks of a real run with link faults are on one machine."""
        return super().real_obstacle(machine) or (
            "link faults strike links between ranks on one machine, and a host has none to another" if self.host else ""
        )

    def begins(self) -> str:
        """Describe the isolated ranks."""
        return f"{self._who} is cut off from all others"

    def ends(self) -> str:
        """Describe their return."""
        return f"{self._who} reaches all others again"

    @property
    def _who(self) -> str:
        return f"the host of rank {self.rank}" if self.host else f"rank {self.rank}"
