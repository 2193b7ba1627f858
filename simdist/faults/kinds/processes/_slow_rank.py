"""`SlowRank`: a straggler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from simdist.faults._draws import uniform_ns
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import DELAY, MOMENT, SHARE
from simdist.faults._operation_delay import OperationDelay
from simdist.faults._words import milliseconds

__all__ = ["SlowRank"]


class SlowRank(OperationDelay):
    """A straggler: every operation of `rank` starts `delay_ns` late, from `start_ns` to `until_ns` (None: for ever).

    Each starts up to `jitter_ns` later in addition, evenly distributed, and a share of them, `tail_share`, `tail_ns`
    later. Both are drawn from the run's seed for each operation; on real processes the same numbers are drawn.

    Example:
        >>> import simdist, time, torch
        >>> import torch.distributed as dist
        >>> def work():
        ...     dist.init_process_group("gloo")
        ...     began_ns = time.monotonic_ns()
        ...     dist.all_reduce(torch.ones(1))
        ...     return (time.monotonic_ns() - began_ns) // 1_000_000
        >>> slow = SlowRank(rank=1, jitter_ns=4_000_000, tail_share=0.5, tail_ns=50_000_000)
        >>> [simdist.run(work, world_size=2, faults=[slow], seed=seed).values[0] for seed in range(4)]
        [4, 51, 52, 54]
    """

    delay_ns: Annotated[int | None, MOMENT] = None
    jitter_ns: Annotated[int, DELAY] = 0
    tail_share: Annotated[float, SHARE] = 0.0
    tail_ns: Annotated[int, DELAY] = 0

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault that lasts, a lateness of nothing, and half of a tail."""
        yield from super().problems(world)
        if not world.fine("delay_ns", "jitter_ns", "tail_share", "tail_ns"):
            return
        if self.tail_share and not self.tail_ns:
            yield "tail_ns", f"a share of {self.tail_share:g} starts later, and nothing says by how much"
        elif self.tail_ns and not self.tail_share:
            yield (
                "tail_share",
                "no operation starts later by tail_ns; give the share of those that do",
            )
        elif self.delay_ns is None and not self.jitter_ns and not self.tail_share:
            yield "delay_ns", "nothing makes the rank late; give delay_ns, jitter_ns, or tail_share and tail_ns"

    def lateness_ns(self, lasted_ns: int) -> int:
        """Always the same."""
        return self.delay_ns or 0

    def drawn_ns(self, draw: Callable[[], float]) -> int:
        """Return the jitter of an operation, and the tail if the operation is in it."""
        late_ns = uniform_ns(self.jitter_ns, draw) if self.jitter_ns else 0
        return late_ns + self.tail_ns if self.tail_share and draw() < self.tail_share else late_ns

    def begins(self) -> str:
        """Describe the delay."""
        parts = [milliseconds(self.delay_ns)] if self.delay_ns is not None else []
        if self.jitter_ns:
            parts.append(f"up to {milliseconds(self.jitter_ns)}")
        said = f"rank {self.rank} starts each operation {' and '.join(parts)} late" if parts else ""
        if not self.tail_share:
            return said
        share = f"{100 * self.tail_share:g} % of"
        more = f"{milliseconds(self.tail_ns)} {'later still' if parts else 'late'}"
        return f"{said}, {share} them {more}" if said else f"rank {self.rank} starts {share} its operations {more}"
