"""The fixture `sim`: worlds that a test drives, and faults that it gives them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

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
from simdist.settings import misfits
from simdist.testing._plugin._fault_words import CommonWords, SpanWords, Time, TriggerWords, fields_from
from simdist.testing._plugin._live import LiveWorld
from simdist.testing._plugin._settings import Settings, StartWords, WorldWords, nanoseconds, settings_from
from simdist.testing._plugin._worlds import Worlds, worlds_of
from simdist.world import on_each_rank

if TYPE_CHECKING:
    import pytest

__all__ = ["FaultHandle", "Sim", "open_sim"]

_SOURCES = ("at_ns", "at_step", "at_point", "op", "nth", "after")  # any of them makes a trigger


class FaultHandle:
    """A fault that a test has given. `fault` describes it; `lift` ends it: heals, releases, resumes.

    `heal`, `release` and `resume` are other names for `lift`. The test may call it between two `advance`s, and so may
    code on a rank. A lifted fault that has not struck yet never will.
    """

    def __init__(self, sim: Sim, fault: Fault) -> None:
        self._sim = sim
        self.fault = fault

    def lift(self) -> None:
        """End the fault now; does nothing the second time, or after its world."""
        self._sim._lift(self.fault)

    heal = release = resume = lift

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.fault!r}>"


class Sim:
    """The value of the fixture `sim`: starts worlds, and gives them faults.

    A fault that is given while no world runs belongs to the next one, from its start on; one that is given between two
    `advance`s takes effect at once. Times and durations are texts such as "2s" and "50ms", or nanoseconds.

    `run` and `start` take the keywords of the marker (`simdist.testing.plugin`); the test's own marker gives their
    defaults, and the command line the seed.

    Example:
        >>> result = sim.run(train, world_size=4)
        >>> fault = sim.crash(2, op="all_reduce", nth=3, when="during")
        >>> result = sim.run(train, world_size=4, check=False)
        >>> [rank.status for rank in result.ranks]
        ['raised', 'raised', 'killed', 'raised']
    """

    def __init__(self, worlds: Worlds, seed: int) -> None:
        self._worlds = worlds
        self._waiting: list[Fault] = []
        self._refused = False  # the last world did not start, and the test got the reason
        self.seed = seed

    # -- worlds --------------------------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., object],
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        check: bool = True,
        **settings: Unpack[WorldWords],
    ) -> RunResult:
        """Call `fn(*args, **kwargs)` on every rank of a world, and run it to its end.

        `fn` is an ordinary program: it calls `init_process_group` itself, unless `init=True` is given, here or to the
        marker. With `check`, the first failure on a rank is raised here, as the same exception, and so is a fault that
        never struck; with `check=False` the result shows both.

        Raises:
            SimdistError: the keywords make no sense, or another world is running.
        """
        __tracebackhide__ = True
        with self.start(fn, args=args, kwargs=kwargs, **settings) as world:
            return world.finish(check=check)

    def start(
        self,
        fn: Callable[..., object],
        *,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        seed: int | None = None,
        argv: Sequence[str] | None = None,
        **settings: Unpack[StartWords],
    ) -> LiveWorld:
        """Start a world like `run`'s at virtual time 0, and return it before anything has happened in it.

        Raises:
            SimdistError: the keywords make no sense, or another world is running.
        """
        __tracebackhide__ = True
        given = {"fn": fn, "args": args, "kwargs": kwargs, "argv": argv}
        good, problems = misfits(given | ({} if seed is None else {"seed": seed}))
        chosen = settings_from(self._worlds.settings, settings, problems)
        args, kwargs, argv = good["args"], good["kwargs"], good["argv"]
        seed = self.seed if seed is None else good["seed"]
        faults = (*chosen.faults_for(seed), *self._waiting)
        bound = on_each_rank(fn, args, kwargs or {})
        call = _with_group(bound, chosen) if chosen.init else lambda rank: bound()
        self._refused = True
        world = LiveWorld(self._worlds, call, chosen, seed=seed, faults=faults, argv=argv)
        self._waiting, self._refused = [], False
        return world

    # -- faults --------------------------------------------------------------------------------------------------

    def crash(
        self, rank: int, *, signal: str = "SIGKILL", exit_code: int | None = None, **trigger: Unpack[TriggerWords]
    ) -> FaultHandle:
        """The rank's process dies: at a time (`at`), in a step, at a point, or at its n-th operation (`op`, `nth`).

        Without any of these, now. The keywords are those of a rank's fault in a scenario file: `at`, `period`,
        `at_step` (or `step`), `at_point` (or `point`), `op`, `nth`, `every`, `when`, `probability`, `life`, and those
        of every fault.
        """
        return self.give(Crash(rank=rank, signal=signal, exit_code=exit_code, **self._trigger("crash", trigger)))

    def hang(self, rank: int, *, duration: Time | None = None, **trigger: Unpack[TriggerWords]) -> FaultHandle:
        """The rank stops as under SIGSTOP, for `duration` or until `resume`; triggers are those of `crash`."""
        duration_ns = None if duration is None else nanoseconds(duration, "duration")
        return self.give(Hang(rank=rank, duration_ns=duration_ns, **self._trigger("hang", trigger)))

    def raise_in(
        self,
        rank: int,
        error: str = "RuntimeError",
        message: str = "injected by a fault",
        **trigger: Unpack[TriggerWords],
    ) -> FaultHandle:
        """The rank's program gets an exception, at the start of a step, at a point or in place of its n-th operation.

        Without any of these it is the next operation of the rank. `error` names one of Python's exceptions, or one of
        torch.distributed's; the program may catch it and call again.
        """
        fields = fields_from("raise_in", trigger, TriggerWords)
        if not any(fields.get(name) is not None for name in _SOURCES):
            fields["nth"] = 1
            if self._worlds.live is not None:
                fields["life"] = None
        return self.give(Raise(rank=rank, error=error, message=message, **fields))

    def slow(self, rank: int, by: Time, **span: Unpack[SpanWords]) -> FaultHandle:
        """Each operation of the rank starts late, from `start` until `until`."""
        fields = fields_from("slow", span, SpanWords)
        return self.give(SlowRank(rank=rank, delay_ns=nanoseconds(by, "by"), **fields))

    def delay(self, src: int, dst: int, by: Time, *, both_ways: bool = True, **span: Unpack[SpanWords]) -> FaultHandle:
        """Messages between two ranks take longer."""
        fields = fields_from("delay", span, SpanWords)
        return self.give(LinkDelay(src=src, dst=dst, delay_ns=nanoseconds(by, "by"), both_ways=both_ways, **fields))

    def partition(self, *groups: Sequence[int], **span: Unpack[SpanWords]) -> FaultHandle:
        """Nothing passes between different groups of ranks, until `heal`: `sim.partition([0, 1], [2, 3])`."""
        # Values that are no groups are reported with all other problems of the fault.
        return self.give(Partition(groups=groups, **fields_from("partition", span, SpanWords)))  # type: ignore[arg-type]

    def hold(self, src: int, dst: int, *, both_ways: bool = False, **span: Unpack[SpanWords]) -> FaultHandle:
        """Messages from one rank to another stay in flight until `release`; they leave then, in order."""
        return self.give(Hold(src=src, dst=dst, both_ways=both_ways, **fields_from("hold", span, SpanWords)))

    def delay_store(self, by: Time, *, rank: int | None = None, **span: Unpack[SpanWords]) -> FaultHandle:
        """Requests to the launcher's store take longer: those of `rank`, or of all ranks."""
        fields = fields_from("delay_store", span, SpanWords)
        return self.give(StoreDelay(rank=rank, delay_ns=nanoseconds(by, "by"), **fields))

    def lose_store(self, *, at: Time | None = None, **words: Unpack[CommonWords]) -> FaultHandle:
        """The launcher's store is gone, at a time or now; `lift` helps only before that. A restart brings a new one."""
        live = self._worlds.live
        now_ns = 0 if live is None or "after" in words else live.now_ns
        fields = fields_from("lose_store", words, CommonWords)
        return self.give(StoreLost(at_ns=now_ns if at is None else nanoseconds(at, "at"), **fields))

    def give(self, fault: Fault) -> FaultHandle:
        """Give any fault, such as one of your own class; the methods above are short for this.

        Raises:
            FaultError: the fault does not fit the world.
        """
        live = self._worlds.live
        if live is None:  # a world that has not started may have any size, lives and other faults
            names = [fault.after] if isinstance(fault, Fault) and isinstance(fault.after, str) else []
            problems = problems_of([fault], 1 << 30, has_disk=False, names=names)
        else:
            lives = live.max_restarts
            problems = problems_of([fault], live.world_size, max_restarts=lives, has_disk=False, others=live.faults)
        if problems:
            raise FaultError([problem.removeprefix("faults[0]").lstrip(".: ") for problem in problems])
        if live is None:
            self._waiting.append(fault)
        else:
            live.bring_in(fault)
        return FaultHandle(self, fault)

    def _trigger(self, method: str, words: Mapping[str, object]) -> dict[str, Any]:
        fields = fields_from(method, words, TriggerWords)
        live = self._worlds.live
        if live is not None and not any(fields.get(name) is not None for name in _SOURCES):
            fields |= {"at_ns": live.now_ns, "life": None}
        return fields

    def _lift(self, fault: Fault) -> None:
        self._waiting = [each for each in self._waiting if each is not fault]
        live = self._worlds.live
        if live is not None:
            live.lift(fault)

    def _must_be_used(self) -> None:
        if self._waiting and not self._refused:
            raise SimdistError(f"{self._waiting[0]!r} was given to 'sim', and no world was started after it")


@contextlib.contextmanager
def open_sim(item: pytest.Function, seed: int) -> Iterator[Sim]:
    """The `sim` of one test."""
    worlds = worlds_of(item)
    sim = Sim(worlds, seed)
    yield sim
    worlds.leave()
    sim._must_be_used()


def _with_group(bound: Callable[[], object], settings: Settings) -> Callable[[int], object]:
    from simdist.testing._plugin._execution import default_group

    def call(rank: int) -> object:
        with default_group(settings, wanted=True):
            return bound()

    return call
