"""The crashes that a sweep tries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simdist.faults import Fault
from simdist.sweeps._points import STRIKES, Strike

__all__ = ["Tries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """The crashes to try, and how long to follow each.

    `strikes` says what is struck (None: everything possible); `outcomes` is how many states of the disk are tried for
    each loss of power of all hosts. At most `limit` crashes are tried, spread evenly over the run. With `second_crash`
    there is a second crash, at each moment of the recovery. Without `merge` each run goes to its end, also if its
    second life begins as another one did. `only` is the one crash to try, or the two.
    """

    strikes: Sequence[Strike] | None = None
    outcomes: int = 4
    limit: int | None = None
    second_crash: bool = False
    merge: bool = True
    only: tuple[Fault, ...] | None = None

    def takes(self, faults: tuple[Fault, ...]) -> bool:
        """True if these crashes are to be tried."""
        return self.only is None or faults == self.only[: len(faults)]

    def problems(self) -> Iterator[str]:
        """Yield the problems of the settings."""
        yield from (
            f"strikes: {each!r} is none of {', '.join(STRIKES)}" for each in self.strikes or () if each not in STRIKES
        )
        if not isinstance(self.outcomes, int) or self.outcomes < 1:
            yield f"outcomes: {self.outcomes!r} is no count; 1 tries the most suspicious one"
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            yield f"limit: {self.limit!r} is no count"
