"""`Crash`: a process dies."""

from __future__ import annotations

import signal as _signal
from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._death import DeathFault
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import EXIT_CODE
from simdist.faults._stage import StruckRank
from simdist.values import Text, brief

__all__ = ["Crash"]


class Crash(DeathFault):
    """The rank's process dies: by `signal`, or with `exit_code` as if by `os._exit`. No `finally` runs.

    In the middle of a write (`op="write", when="during"`) `bytes_written` says how many of its bytes are written; None:
    half of them.
    """

    may_repeat: ClassVar[bool] = False

    signal: Annotated[str, Text()] = "SIGKILL"
    exit_code: Annotated[int | None, EXIT_CODE] = None

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and an unknown signal."""
        yield from super().problems(world)
        is_reported = world.fine("exit_code", "signal") and self.exit_code is None
        if is_reported and self.signal not in _signal.Signals.__members__:
            yield "signal", f"unknown signal {brief(self.signal)}; expected a name such as 'SIGKILL'"

    def strike(self, rank: StruckRank) -> None:
        """Send the signal, or exit."""
        if self.exit_code is not None:
            rank.exit(self.exit_code)
        else:
            rank.kill(self.signal)

    def begins(self) -> str:
        """Describe the death."""
        how = f"exits with code {self.exit_code}" if self.exit_code is not None else f"dies of {self.signal}"
        return f"rank {self.rank} {how}"
