"""The fixture `sim`: worlds driven from outside, and the faults that a test gives them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from simdist._settings import misfits
from simdist.errors import FaultError, SimdistError
from simdist.faults import (
    Crash,
    Fault,
    Hang,
    Hold,
    LinkDelay,
    Partition,
    Raise,
    SlowRank,
    StoreDelay,
    StoreLost,
    problems_of,
)
from simdist.result import RunResult
from simdist.testing._plugin._live import LiveWorld
from simdist.testing._plugin._settings import Settings, nanoseconds, settings_from
from simdist.testing._plugin._worlds import Worlds, worlds_of

__all__ = ["FaultHandle", "Sim", "open_sim"]

When = Literal["before", "during", "after"]
Time = str | int


class FaultHandle:
    """A fault that a test has given. `fault` describes it; `lift` ends it: heals, releases, lets go on.

    `heal`, `release` and `resume` are other names for `lift`. The test may call it between two `advance`s, and so may
    code on a rank. A fault that has not struck yet never will.
    """

    def __init__(self, sim: Sim, fault: Fault) -> None:
        self._sim = sim
        self.fault = fault

    def lift(self) -> None:
        """End the fault now; does nothing twice, or after its world."""
        self._sim._lift(self.fault)

    heal = release = resume = lift

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.fault!r}>"


class Sim:
    """What the fixture `sim` is: starts worlds, and gives them faults.

    A fault that is given while no world is under way belongs to the next one, from its start on; one that is given
    between two `advance`s comes in now. Times and durations are texts such as "2s" and "50ms", or nanoseconds.

    The keywords of the marker (`simdist.testing.plugin`) are those of `run` and `start`; the test's own marker gives
    their defaults, and the command line the seed.

    Example:
        >>> result = sim.run(train, world_size=4)
        >>> sim.crash(2, op="all_reduce", nth=3, when="during")
        >>> result = sim.run(train, world_size=4, check=False)
        >>> [rank.status for rank in result.ranks]
        ['raised', 'raised', 'killed', 'raised']
    """

    def __init__(self, worlds: Worlds, seed: int) -> None:
        self._worlds = worlds
        self._waiting: list[Fault] = []
        self.seed = seed

    # -- worlds --------------------------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        check: bool = True,
        **settings: Any,
    ) -> RunResult:
        """Call `fn(*args, **kwargs)` on every rank of a world, and run it to its end.

        `fn` is an ordinary program: it calls `init_process_group` itself, unless `init=True` is given, here or to the
        marker. With `check`, the first failure on a rank is raised here, as the same exception, and a fault that never
        struck is one as well; with `check=False` the result tells.

        Raises:
            SimdistError: the keywords make no sense, or another world is under way.
        """
        __tracebackhide__ = True
        with self.start(fn, args=args, kwargs=kwargs, **settings) as world:
            return world.finish(check=check)

    def start(
        self,
        fn: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        argv: Sequence[str] | None = None,
        **settings: Any,
    ) -> LiveWorld:
        """Start a world like `run`'s at virtual time 0, and hand it over before anything has happened in it.

        Raises:
            SimdistError: the keywords make no sense, or another world is under way.
        """
        __tracebackhide__ = True
        given = {"fn": fn, "args": args, "kwargs": kwargs, "argv": argv}
        good, problems = misfits(given | ({} if seed is None else {"seed": seed}))
        chosen = settings_from(self._worlds.settings, settings, problems)
        args, kwargs, argv = good["args"], good["kwargs"], good["argv"]
        seed = self.seed if seed is None else good["seed"]
        faults = (*chosen.faults_for(seed), *self._waiting)
        bound = functools.partial(fn, *args, **(kwargs or {}))
        call = _with_group(bound, chosen) if chosen.init else lambda rank: bound()
        world = LiveWorld(self._worlds, call, _namespaces(fn), chosen, seed=seed, faults=faults, argv=argv)
        self._waiting = []
        return world

    # -- faults --------------------------------------------------------------------------------------------------

    def crash(
        self,
        rank: int,
        *,
        at: Time | None = None,
        step: int | None = None,
        op: str | None = None,
        nth: int | None = None,
        when: When = "before",
        life: int | None = 0,
        signal: str = "SIGKILL",
        exit_code: int | None = None,
    ) -> FaultHandle:
        """The rank's process dies: at a time, in a step, or at its n-th operation; without any of these, now."""
        trigger = self._trigger(at, step, op, nth, when, life)
        return self._give(Crash(rank=rank, signal=signal, exit_code=exit_code, **trigger))

    def hang(
        self,
        rank: int,
        *,
        duration: Time | None = None,
        at: Time | None = None,
        step: int | None = None,
        op: str | None = None,
        nth: int | None = None,
        when: When = "before",
        life: int | None = 0,
    ) -> FaultHandle:
        """The rank stops as under SIGSTOP, for `duration` or until `resume`; triggers are those of `crash`."""
        trigger = self._trigger(at, step, op, nth, when, life)
        duration_ns = None if duration is None else nanoseconds(duration, "duration")
        return self._give(Hang(rank=rank, duration_ns=duration_ns, **trigger))

    def raise_in(
        self,
        rank: int,
        error: str = "RuntimeError",
        message: str = "injected by a fault",
        *,
        step: int | None = None,
        op: str | None = None,
        nth: int | None = None,
        life: int | None = 0,
    ) -> FaultHandle:
        """The rank's program gets an exception, at the start of a step or in place of its n-th operation.

        Without any of these it is the next operation of the rank. `error` names one of Python's exceptions, or one of
        torch.distributed's; the program may catch it and call again.
        """
        if (step, op, nth) == (None, None, None):
            nth = 1
            life = None if self._worlds.live is not None else life
        return self._give(Raise(rank=rank, error=error, message=message, at_step=step, op=op, nth=nth, life=life))

    def slow(self, rank: int, by: Time, *, start: Time = 0, until: Time | None = None) -> FaultHandle:
        """Each operation of the rank starts late."""
        return self._give(SlowRank(rank=rank, delay_ns=nanoseconds(by, "by"), **_span(start, until)))

    def delay(
        self, src: int, dst: int, by: Time, *, start: Time = 0, until: Time | None = None, both_ways: bool = True
    ) -> FaultHandle:
        """Messages between two ranks take longer."""
        return self._give(
            LinkDelay(src=src, dst=dst, delay_ns=nanoseconds(by, "by"), both_ways=both_ways, **_span(start, until))
        )

    def partition(self, *groups: Sequence[int], start: Time = 0, until: Time | None = None) -> FaultHandle:
        """Nothing passes between different groups of ranks, until `heal`: `sim.partition([0, 1], [2, 3])`."""
        # What is no group is told with all else that is wrong with the fault.
        return self._give(Partition(groups=groups, **_span(start, until)))  # type: ignore[arg-type]

    def hold(
        self, src: int, dst: int, *, start: Time = 0, until: Time | None = None, both_ways: bool = False
    ) -> FaultHandle:
        """Messages from one rank to another stay in flight until `release`; they leave then, in order."""
        return self._give(Hold(src=src, dst=dst, both_ways=both_ways, **_span(start, until)))

    def delay_store(
        self, by: Time, *, rank: int | None = None, start: Time = 0, until: Time | None = None
    ) -> FaultHandle:
        """Requests to the launcher's store take longer: those of `rank`, or everybody's."""
        return self._give(StoreDelay(rank=rank, delay_ns=nanoseconds(by, "by"), **_span(start, until)))

    def lose_store(self, *, at: Time | None = None) -> FaultHandle:
        """The launcher's store is gone, at a time or now; `lift` helps only before that. A restart brings a new one."""
        live = self._worlds.live
        now_ns = 0 if live is None else live.now_ns
        return self._give(StoreLost(at_ns=now_ns if at is None else nanoseconds(at, "at")))

    def _trigger(
        self, at: Time | None, step: int | None, op: str | None, nth: int | None, when: When, life: int | None
    ) -> dict[str, Any]:
        at_ns = None if at is None else nanoseconds(at, "at")
        live = self._worlds.live
        if (at_ns, step, op, nth) == (None, None, None, None) and live is not None:
            at_ns = live.now_ns
            life = None
        return {"at_ns": at_ns, "at_step": step, "op": op, "nth": nth, "when": when, "life": life}

    def _give(self, fault: Fault) -> FaultHandle:
        live = self._worlds.live
        # A world that is not there yet may have any size.
        problems = problems_of([fault], live.world_size if live is not None else 1 << 30)
        if problems:
            raise FaultError([problem.removeprefix("faults[0]").lstrip(".: ") for problem in problems])
        if live is None:
            self._waiting.append(fault)
        else:
            live.bring_in(fault)
        return FaultHandle(self, fault)

    def _lift(self, fault: Fault) -> None:
        self._waiting = [each for each in self._waiting if each is not fault]
        live = self._worlds.live
        if live is not None:
            live.lift(fault)

    def _must_be_used(self) -> None:
        if self._waiting:
            raise SimdistError(f"{self._waiting[0]!r} was given to 'sim', and no world was started after it")


@contextlib.contextmanager
def open_sim(item: Any, seed: int) -> Iterator[Sim]:
    """The `sim` of one test."""
    worlds = worlds_of(item)
    sim = Sim(worlds, seed)
    yield sim
    worlds.leave()
    sim._must_be_used()


def _span(start: Time, until: Time | None) -> dict[str, Any]:
    return {
        "start_ns": nanoseconds(start, "start"),
        "until_ns": None if until is None else nanoseconds(until, "until"),
    }


def _with_group(bound: Callable[[], Any], settings: Settings) -> Callable[[int], Any]:
    from simdist.testing._plugin._execution import default_group

    def call(rank: int) -> Any:
        with default_group(settings, wanted=True):
            return bound()

    return call


def _namespaces(fn: Callable[..., Any]) -> list[dict[str, Any]]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    namespace = getattr(inspect.unwrap(fn), "__globals__", None)
    return [namespace] if namespace is not None else []
