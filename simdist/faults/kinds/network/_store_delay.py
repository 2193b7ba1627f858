"""`StoreDelay`: requests to the launcher's store take longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from simdist.faults._draws import uniform_ns
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import DELAY, MOMENT, RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.faults._store_fault import StoreFault
from simdist.faults._words import milliseconds
from simdist.values import Maybe

__all__ = ["StoreDelay"]


class StoreDelay(StoreFault, LastingFault):
    """Every request of `rank` (None: of any rank) to the launcher's store takes `delay_ns` longer.

    Each takes up to `jitter_ns` longer in addition, evenly distributed. That is drawn from the run's seed, for each
    request or, on real processes, for each piece of data that the rank sends. The launcher's store is the one that
    torchrun serves, at MASTER_ADDR and MASTER_PORT; a store that a rank serves itself is not affected.
    """

    delay_ns: Annotated[int | None, MOMENT] = None
    jitter_ns: Annotated[int, DELAY] = 0
    rank: Annotated[int | None, Maybe(RANK)] = None

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault that lasts, and a delay of nothing."""
        yield from super().problems(world)
        if world.fine("delay_ns", "jitter_ns") and self.delay_ns is None and not self.jitter_ns:
            yield "delay_ns", "no request takes longer; give delay_ns or jitter_ns"

    def request_delay_ns(self, rank: int, now_ns: int) -> int:
        """Return the delay, while it lasts."""
        return self.delay_ns or 0 if self.rank in (None, rank) and self.is_on(now_ns) else 0

    def drawn_delay_ns(self, rank: int, now_ns: int, draw: Callable[[], float]) -> int:
        """Return the jitter, while it lasts."""
        if not self.jitter_ns or self.rank not in (None, rank):
            return 0
        drawn_ns = uniform_ns(self.jitter_ns, draw)
        return drawn_ns if self.is_on(now_ns) else 0

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Delay each request."""
        origin_ns = stage.origin_ns

        def lateness_ns(rank: int, now_ns: int) -> int:
            drawn_ns = self.drawn_delay_ns(rank, now_ns - origin_ns, lambda: stage.draw(rank))
            return self.request_delay_ns(rank, now_ns - origin_ns) + drawn_ns if now_ns >= start_ns else 0

        stage.delay_requests(lateness_ns)

    def begins(self) -> str:
        """Describe the delayed requests and the delay."""
        parts = [milliseconds(self.delay_ns)] if self.delay_ns is not None else []
        if self.jitter_ns:
            parts.append(f"up to {milliseconds(self.jitter_ns)}")
        return f"requests of {self._whose()} to the launcher's store take {' and '.join(parts)} longer"

    def ends(self) -> str:
        """Describe the end of the delay."""
        return f"requests of {self._whose()} to the launcher's store are no longer delayed"

    def _whose(self) -> str:
        return "all ranks" if self.rank is None else f"rank {self.rank}"
