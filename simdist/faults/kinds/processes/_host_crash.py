"""`HostCrash`: a machine loses power."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from simdist.faults._death import DeathFault
from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._fields import DISKS, MOMENT, TRUTH
from simdist.faults._stage import StruckRank
from simdist.faults._words import milliseconds
from simdist.values import Maybe, Whole

__all__ = ["HostCrash"]

Disks = Literal["own", "empty", "swapped"]


class HostCrash(DeathFault):
    """The host of the rank goes down, and all its processes die at once. It is back after `down_ns`, or never (None).

    With `all_hosts` every host does. A simulated disk then holds one of the outcomes that its file system allows: the
    seed draws one, or `outcome` says which, counted from 0, the most suspicious first.

    `disks` says what happens to the hosts' own disks. They are "own" still; or the machine is replaced and comes back
    with an "empty" one; or, of all hosts, each comes back with that of another ("swapped": the first has that of the
    last, and so on). Hosts whose disks are swapped are shut down in good order: everything that was written is on them.

    In the middle of a write (`op="write", when="during"`) `bytes_written` says how many of its bytes the host has seen;
    None: half of them. The outcome decides which of them are on the disk.

    No packet informs the ranks of other hosts: they hear nothing, and find their connections closed when the host is up
    again. A restart waits until then. The launcher's store lives on the first host.
    """

    may_repeat: ClassVar[bool] = False

    down_ns: Annotated[int | None, MOMENT] = None
    all_hosts: Annotated[bool, TRUTH] = False
    outcome: Annotated[int | None, Maybe(Whole(least=0))] = None
    disks: Annotated[Disks, DISKS] = "own"

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and disks that do not exist."""
        yield from super().problems(world)
        if not world.fine("disks", "all_hosts") or self.disks == "own":
            return
        if world.has_local_disks is False:
            yield "disks", f"no host has a disk of its own that could be {self.disks}; give the mount local ones"
        if self.disks == "swapped" and not self.all_hosts:
            yield "disks", "a host that stays up keeps its disk; with all_hosts they can be swapped"

    def strike(self, rank: StruckRank) -> None:
        """Take the host down."""
        rank.crash_host(self.down_ns, every=self.all_hosts, outcome=self.outcome, disks=self.disks)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses: the ranks of a real run share machines with the run itself."""
        return "no machine is switched off for a run"

    def struck_ranks(self, hosts: Sequence[str]) -> frozenset[int]:
        """Return the ranks on its host, or all."""
        return frozenset(rank for rank, host in enumerate(hosts) if self.all_hosts or host == hosts[self.rank])

    def begins(self) -> str:
        """Describe the crash and its duration."""
        until = "for good" if self.down_ns is None else f"for {milliseconds(self.down_ns)}"
        disks = {"own": "", "empty": ", for others with empty disks", "swapped": ", and their disks are swapped"}
        return f"{self._who} {until}{disks[self.disks]}"

    @property
    def _who(self) -> str:
        return "all hosts go down" if self.all_hosts else f"the host of rank {self.rank} goes down"

    def ends(self) -> str:
        """Describe the host's return."""
        return "a host is up again" if self.all_hosts else f"the host of rank {self.rank} is up again"
