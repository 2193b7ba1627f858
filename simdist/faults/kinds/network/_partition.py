"""`Partition`: the network splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._fields import GROUPS, PERIOD, TRUTH
from simdist.faults._link_fault import LinkEffect, LinkFault
from simdist.faults._stage import Stage
from simdist.faults._words import milliseconds

__all__ = ["Partition"]


class Partition(LinkFault):
    """Nothing passes between different `groups` of ranks; ranks in no group reach everyone. Heals at `until_ns`.

    With `one_way` nothing passes from the first group to the others; everything passes the other way, and so do a
    receiver's answers to a sender before it sends. With `period_ns` the network splits and heals in turn until
    `until_ns`: in each period it is split at first, and whole for its last `up_ns`. Messages that do not pass arrive as
    soon as they can; a real TCP waits for its next retransmission, which may find the network split again.

    Example:
        >>> flapping = Partition(groups=((0, 1), (2,)), period_ns=500_000_000, up_ns=100_000_000)
        >>> [flapping.is_on(now_ns) for now_ns in (0, 399_999_999, 400_000_000, 500_000_000)]
        [True, True, False, True]
    """

    says_its_end: ClassVar[bool] = True

    groups: Annotated[tuple[tuple[int, ...], ...], GROUPS]
    one_way: Annotated[bool, TRUTH] = False
    period_ns: Annotated[int | None, PERIOD] = None
    up_ns: Annotated[int | None, PERIOD] = None

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """The problems of every link fault, groups that are no split, and periods in which nothing opens or closes."""
        yield from super().problems(world)
        if world.fine("groups"):
            members = Counter(rank for group in self.groups for rank in group)
            if len(self.groups) < 2:
                yield "groups", "a partition needs at least two groups"
            for rank in sorted(members):
                if members[rank] > 1:
                    yield "groups", f"rank {rank} is in more than one group"
        if world.fine("period_ns", "up_ns"):
            yield from self._problems_of_period()

    def _problems_of_period(self) -> Iterator[Problem]:
        if self.period_ns is None:
            if self.up_ns is not None:
                yield "up_ns", "is a part of a period; give period_ns as well"
        elif self.period_ns < 1:
            yield "period_ns", "0 ns is no period"
        elif self.up_ns is None:
            yield "period_ns", "needs up_ns, for which the network is whole in each period"
        elif self.up_ns < 1:
            yield "up_ns", "in 0 ns nothing passes; leave out the period for a network that is split all the time"
        elif self.up_ns >= self.period_ns:
            yield "up_ns", "is all of the period, so the network never splits"

    def is_on(self, now_ns: int) -> bool:
        """True if the network is split at this moment, on the time line of the fault's own times."""
        return super().is_on(now_ns) and not (
            self.period_ns and self.up_ns and (now_ns - self.start_ns) % self.period_ns >= self.period_ns - self.up_ns
        )

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Block messages from side to side."""
        sides = [index for rank in (src, dst) for index, group in enumerate(self.groups) if rank in group]
        if len(sides) < 2 or sides[0] == sides[1] or (self.one_way and sides[0] != 0):
            return None
        return LinkEffect(blocked=True)

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Lay one cut for all pairs."""
        cut = stage.network.cut(
            self.groups,
            start_ns=start_ns,
            until_ns=until_ns,
            one_way=self.one_way,
            period_ns=self.period_ns or 0,
            up_ns=self.up_ns or 0,
        )
        stage.keep(cut)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses a cut of one direction alone."""
        return super().real_obstacle(machine) or (
            "Gloo sends nothing that the receiver has not asked for, so a cut of one direction stops the other, too"
            if self.one_way
            else ""
        )

    def begins(self) -> str:
        """Describe the split and its sides."""
        if self.period_ns is not None and self.up_ns is not None:
            down = milliseconds(self.period_ns - self.up_ns)
            return f"the network splits for {down} of every {milliseconds(self.period_ns)}: {self._sides()}"
        return f"the network splits: {self._sides()}"

    def ends(self) -> str:
        """Describe the end of the split."""
        return f"the network heals: {self._sides()}"

    def _sides(self) -> str:
        texts = [", ".join(map(str, group)) for group in self.groups]
        if self.one_way and len(texts) > 1:
            return f"nothing passes from ranks {texts[0]} to ranks {', '.join(texts[1:])}"
        return f"ranks {' | '.join(texts)}"
