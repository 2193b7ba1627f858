"""A running world: the test holds it, lets virtual time pass, looks at ranks, and gives faults."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeVar

from simdist.errors import SimdistError, StallError
from simdist.faults import Fault
from simdist.process import SimProcess
from simdist.result import RunResult
from simdist.testing._plugin._frames import hides, traceback_of
from simdist.testing._plugin._settings import Settings, nanoseconds
from simdist.testing._plugin._worlds import Worlds

__all__ = ["LiveWorld", "RankView"]

_SHOWN = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank at one moment. `waiting` describes its wait; empty if it could run or has ended."""

    rank: int
    status: Literal["running", "returned", "raised", "exited", "killed"]
    waiting: str
    last_operation: str
    operations: int
    exit_code: int | None
    exception: BaseException | None
    stdout: str
    stderr: str
    life: int


class LiveWorld:
    """A simulated world between its start and its end. Made by `Sim.start`.

    Virtual time only passes in `advance`, `advance_to` and `finish`. In between, the test may look at `ranks`, give
    faults with the methods of `sim`, and release what it holds. As a context manager it ends the world at the end.

    Example:
        >>> world = sim.start(train, world_size=4)
        >>> world.advance("2s")
        True
        >>> world.ranks[2].status
        'running'
        >>> fault = sim.crash(2)
        >>> result = world.finish(check=False)
    """

    def __init__(
        self,
        worlds: Worlds,
        call: Callable[[int], object],
        settings: Settings,
        *,
        seed: int,
        faults: Sequence[Fault] | None = None,
        argv: Sequence[str] | None = None,
    ) -> None:
        if worlds.live is not None:
            raise SimdistError("another world of this test is under way; finish it first, or close it")
        faults = settings.faults_for(seed) if faults is None else faults
        self._worlds = worlds
        self._world, self._record, self._stack = worlds.open(call, settings, seed=seed, faults=faults, argv=argv)
        worlds.live = self

    def __enter__(self) -> LiveWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def now_ns(self) -> int:
        """Virtual time: nanoseconds since the start of the world."""
        return self._world.now_ns

    @property
    def over(self) -> bool:
        """True once the world has ended."""
        return self._worlds.live is not self

    @property
    def ranks(self) -> tuple[RankView, ...]:
        """The present state of each rank."""
        self._must_live()
        return tuple(_view(process) for process in self._world.processes)

    def advance(self, duration: str | int) -> bool:
        """Let virtual time pass: "2s", "5ms", or nanoseconds. What happens at the last instant is included.

        Returns False if every rank has ended; time then stands still at the last end.

        Raises:
            ArgumentError: `duration` is no duration.
            StallError: a rank blocks on something outside the simulation; the world has ended.
        """
        __tracebackhide__ = True
        return self.advance_to(self.now_ns + nanoseconds(duration, "duration"))

    def advance_to(self, time: str | int) -> bool:
        """Let virtual time pass until `time`, counted from the start of the world; else as `advance`.

        Raises:
            SimdistError: that time is in the past.
        """
        __tracebackhide__ = True
        self._must_live()
        until_ns = nanoseconds(time)
        if until_ns < self.now_ns:
            raise SimdistError(f"virtual time is {self.now_ns} ns already; it does not go back to {until_ns} ns")
        return self._carefully(lambda: self._world.advance(until_ns))

    def finish(self, *, check: bool = True) -> RunResult:
        """Run the world to its end.

        With `check`, raise the exception of the first failed rank, unless every rank returned or was ended by a fault.
        """
        __tracebackhide__ = hides
        self._must_live()
        result = self._carefully(self._world.finish)
        self._end()
        self._worlds.ended(self._record, result)
        failure = self._worlds.failure_of(self._record) if check else None
        if failure is not None:
            raise failure
        return result

    def close(self) -> None:
        """End the world at the present time: no rank runs any further. Does nothing if it has ended."""
        if self._worlds.live is self:
            self._record.notes += _standing(self.now_ns, self.ranks)
            self._end()

    def bring_in(self, fault: Fault) -> None:
        """Add a fault to the world now."""
        self._must_live()
        self._world.injector.add(fault)

    def lift(self, fault: Fault) -> None:
        """End a fault now; does nothing once the world has ended."""
        if not self.over:
            self._world.injector.lift(fault)

    @property
    def max_restarts(self) -> int:
        """The maximum number of restarts of all ranks."""
        return self._record.spec.max_restarts

    @property
    def faults(self) -> Sequence[Fault]:
        """The faults that were given to this world, struck or not."""
        return self._world.injector.faults

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._record.spec.world_size

    def _end(self) -> None:
        self._worlds.live = None
        self._stack.close()

    def _must_live(self) -> None:
        if self.over:
            raise SimdistError("this world has ended")

    def _carefully(self, action: Callable[[], _T]) -> _T:
        """Call `action`; if it raises, the world is over."""
        __tracebackhide__ = True
        try:
            return action()
        except BaseException as error:
            stuck = self._stuck_in() if isinstance(error, StallError) else None
            # Report the stall or interrupt only: that its thread did not end follows from it.
            with contextlib.suppress(SimdistError):
                self._end()
            if stuck is not None and not self._worlds.full_trace:
                error.__traceback__ = stuck
            failure = error
        raise failure

    def _stuck_in(self) -> TracebackType | None:
        task = self._world.runtime.simulation.current
        frame = None if task is None else sys._current_frames().get(task.ident)
        return None if frame is None else traceback_of(frame)


def _standing(now_ns: int, ranks: Sequence[RankView]) -> list[str]:
    """Return lines for the report of a test that ended before its world."""
    from simdist.scenario import format_duration

    lines = [f"{len(ranks)} ranks, under way at {format_duration(now_ns)} of virtual time"]
    for rank in ranks[:_SHOWN]:
        waits = f", waits in {rank.waiting}" if rank.waiting else ""
        last = f", last operation {rank.last_operation}" if rank.last_operation else ""
        lines.append(f"rank {rank.rank}: {rank.status}{waits}{last}")
    return lines + ([f"and {len(ranks) - _SHOWN} more ranks"] if len(ranks) > _SHOWN else [])


def _view(process: SimProcess) -> RankView:
    task, last = process.main, process.last_operation
    waiting = ""
    if process.running and task is not None:
        waiting = task.waiting.describe() if task.waiting is not None else ""
        if task.paused:
            waiting = f"stopped by a fault{', in ' + waiting if waiting else ''}"
    return RankView(
        rank=process.rank,
        status=process.status,
        waiting=waiting,
        last_operation="" if last is None else f"{last[0]} #{last[1]} in group {last[2]!r}",
        operations=process.operations,
        exit_code=process.exit_code,
        exception=process.exception,
        stdout="".join(process.stdout) + process.partial["stdout"],
        stderr="".join(process.stderr) + process.partial["stderr"],
        life=process.life,
    )
