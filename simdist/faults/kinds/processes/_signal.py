"""`Signal`: a process gets a signal that its program may handle."""

from __future__ import annotations

import signal as _signal
from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._rank_fault import RankFault
from simdist.faults._stage import StruckRank
from simdist.values import Text, brief

__all__ = ["Signal"]


class Signal(RankFault):
    """The rank gets a signal, as from a scheduler that takes its machine away: its handler runs, if it has one.

    A program without a handler follows the default: it dies of SIGTERM, and ignores SIGCHLD.
    """

    may_keep_out: ClassVar[bool] = False  # the program's handler decides

    signal: Annotated[str, Text()] = "SIGTERM"

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and a signal that does not exist or that no program handles."""
        yield from super().problems(world)
        if world.fine("signal"):
            if self.signal not in _signal.Signals.__members__:
                yield "signal", f"unknown signal {brief(self.signal)}; expected a name such as 'SIGTERM'"
            elif self.signal in _OTHERS:
                yield "signal", f"no program handles {self.signal}; a {_OTHERS[self.signal]} does what it does"

    def strike(self, rank: StruckRank) -> None:
        """Send the signal."""
        rank.signal(self.signal)

    def begins(self) -> str:
        """Describe the signal."""
        return f"rank {self.rank} gets {self.signal}"


_OTHERS = {"SIGKILL": "crash", "SIGSTOP": "hang"}
