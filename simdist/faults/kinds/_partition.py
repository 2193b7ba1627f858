"""`Partition`: the network splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import GROUPS
from simdist.faults._link_fault import LinkEffect, LinkFault
from simdist.faults._stage import Stage

__all__ = ["Partition"]


class Partition(LinkFault):
    """Nothing passes between different `groups` of ranks; ranks in no group reach everyone. Heals at `until_ns`."""

    says_its_end: ClassVar[bool] = True

    groups: Annotated[tuple[tuple[int, ...], ...], GROUPS]

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Those of every link fault, and groups that are no split."""
        yield from super().problems(world)
        if not world.fine("groups"):
            return
        members = Counter(rank for group in self.groups for rank in group)
        if len(self.groups) < 2:
            yield "groups", "a partition needs at least two groups"
        for rank in sorted(members):
            if members[rank] > 1:
                yield "groups", f"rank {rank} is in more than one group"

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Nothing passes from side to side."""
        sides = [index for rank in (src, dst) for index, group in enumerate(self.groups) if rank in group]
        return LinkEffect(blocked=True) if len(sides) == 2 and sides[0] != sides[1] else None

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """One cut for all pairs."""
        stage.keep(stage.network.cut(self.groups, start_ns=start_ns, until_ns=until_ns))

    def begins(self) -> str:
        """The sides."""
        return f"the network splits: ranks {self._sides()}"

    def ends(self) -> str:
        """It heals."""
        return f"the network heals: ranks {self._sides()}"

    def _sides(self) -> str:
        return " | ".join(", ".join(map(str, group)) for group in self.groups)
