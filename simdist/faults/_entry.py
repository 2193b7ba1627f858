"""One fault of a simulated run: its account, and its actions on the simulation and on the rank that it strikes.

Circle of imports: the injector makes an entry for each fault, and an entry acts on the world through its injector.
"""

from __future__ import annotations

import signal as _signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simdist.cluster import Condition, Host, Network
from simdist.faults._fault import Fault
from simdist.faults._lasting import LastingFault
from simdist.kernel import PASS, Verdict
from simdist.process import SimProcess
from simdist.records import fault_reported
from simdist.result import FaultResult

if TYPE_CHECKING:
    from simdist.faults._injector import Injector

__all__ = ["Entry", "Lateness", "SimulatedRank"]

Lateness = Callable[[int, int], int]
"""How much later something starts that a rank does now: `lateness_ns(rank, now_ns)`."""


@dataclass(slots=True, eq=False)
class Entry:
    """One fault of the run: its account, and its `Stage` (see there)."""

    injector: Injector
    fault: Fault
    origin_ns: int = 0
    lifted: bool = False
    lifted_ns: int = 0  # when it was
    in_play: bool = False  # `arm` was called; never for a rank's fault, whose trigger is watched instead
    over: bool = False  # its end was reported
    struck_ns: list[int] = field(default_factory=list)
    ended: list[tuple[int, int, str]] = field(default_factory=list)  # rank, life, and how it ended
    conditions: list[Condition] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)  # that it has brought down
    draws: dict[tuple[int, int], Callable[[], float]] = field(default_factory=dict)  # hosts that it has brought down
    _numbers: Callable[..., float] | None = None  # made when it first draws one

    @property
    def now_ns(self) -> int:
        return self.injector.simulation.now_ns

    @property
    def world_size(self) -> int:
        return self.injector.world_size

    @property
    def network(self) -> Network:
        return self.injector.network

    def call_at(self, time_ns: int, action: Callable[[], None]) -> None:
        self.injector.simulation.call_at(max(time_ns, self.now_ns), lambda: None if self.lifted else action())

    def report(self) -> None:
        rank = self.fault.target
        self.say(self.fault.begins(), -1 if rank is None else rank)
        self.has_struck()

    def report_end(self) -> None:
        self.over = True
        rank = self.fault.target
        self.say(self.fault.ends(), -1 if rank is None else rank)

    def say(self, text: str, rank: int, life: int = 0) -> None:
        """Add an event for the fault."""
        self.injector.said += 1
        self.injector.simulation.bus.record(fault_reported(self.now_ns, rank, self.fault.kind, text, life))

    def has_struck(self) -> None:
        """Note the strike, and release the faults that come after it."""
        self.struck_ns.append(self.now_ns)
        if self.fault.name:
            self.injector.release(self.fault.name)

    def has_passed(self) -> bool:
        """True if it lasts until a time that has passed."""
        fault = self.fault
        if not isinstance(fault, LastingFault) or fault.until_ns is None:
            return False
        return self.origin_ns + fault.until_ns <= self.now_ns

    def result(self) -> FaultResult:
        """Return the fault's account."""
        fault = self.fault
        return FaultResult(
            call=repr(fault),
            called=fault.called,
            kind=fault.kind,
            rank=-1 if fault.target is None else fault.target,
            required=not (fault.optional or self.lifted),
            struck_ns=tuple(self.struck_ns),
            ended=tuple(self.ended),
        )

    def has_ended(self, process: SimProcess, how: str) -> None:
        """Note how a process ended."""
        ended = (process.rank, process.life, how)
        if ended not in self.ended:
            self.ended.append(ended)

    def draw(self, rank: int | None = None) -> float:
        if rank is None:
            return self.injector.drawing(self)()
        key = self.injector.life, rank
        found = self.draws.get(key)
        if found is None:
            found = self.draws[key] = self.injector.draws_for(self, rank)
        return found()

    def number(self, *words: str | int) -> float:
        if self._numbers is None:
            self._numbers = self.injector.numbers_for(self)
        return self._numbers(*words)

    def keep(self, condition: Condition) -> None:
        self.conditions.append(condition)

    def delay_operations(self, lateness_ns: Lateness) -> None:
        self.injector.judge_operations()
        self.injector.late_operations.append((self, lateness_ns))

    def delay_requests(self, lateness_ns: Lateness) -> None:
        self.injector.judge_requests()
        self.injector.late_requests.append((self, lateness_ns))

    def delay_effects(self, lateness_ns: Lateness) -> None:
        self.injector.judge_effects()
        self.injector.late_effects.append((self, lateness_ns))

    def skew_clock(self, rank: int, skew_ns: Callable[[int], int]) -> None:
        def until_lifted_ns(time_ns: int) -> int:
            return 0 if self.lifted and time_ns >= self.lifted_ns else skew_ns(time_ns)

        for host in self.injector.hosts:
            if rank in host.ranks:
                host.skew_clock(until_lifted_ns)

    def change_kernels(self, place: Callable[[int, str, int], tuple[int, float] | None]) -> None:
        from simdist.device import change_kernels  # which worlds without devices do not need

        change_kernels(lambda rank, name, size: None if self.lifted else place(rank, name, size))

    def lose_store(self) -> None:
        self.injector.lose_store()

    def stop_store(self) -> None:
        self.injector.stop_store(self)

    def resume_store(self) -> None:
        self.injector.resume_store(self)

    def keep_store(self) -> None:
        self.injector.keepers.append(self)

    def judge(self, event: type, judge: Callable[[Any], Verdict]) -> None:
        self.injector.simulation.bus.intercept(event, lambda announced: PASS if self.lifted else judge(announced))


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """A simulated process that a fault strikes; see `StruckRank`."""

    injector: Injector
    entry: Entry
    process: SimProcess

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def life(self) -> int:
        return self.process.life

    @property
    def is_real(self) -> bool:
        return False

    def kill(self, signal: str) -> None:
        self._ends("killed")
        self.process.kill(_signal.Signals[signal])

    def exit(self, code: int) -> None:
        self._ends("exited")
        self.process.exit(code)

    def signal(self, signal: str) -> None:
        number = _signal.Signals[signal]
        if self.process.dies_of(number):
            self._ends("killed")
        self.process.signal(number)
        if self.process.has_baton:
            self.process.handle_signals()

    def stop(self, duration_ns: int | None) -> None:
        self._ends("hung")
        self.injector.stop(self.entry, self.process, duration_ns)

    def crash_host(
        self, down_ns: int | None, *, every: bool = False, outcome: int | None = None, disks: str = "own"
    ) -> None:
        hosts = self.injector.hosts if every else (self.process.host,)
        for host in hosts:
            for resident in host.residents:
                if isinstance(resident, SimProcess) and resident.running:
                    self.entry.has_ended(resident, "killed")
        self.injector.crash_hosts(self.entry, hosts, down_ns, outcome, disks)

    def break_device(self, error: str) -> None:
        from simdist.c10d import break_devices_of  # which worlds without devices do not need

        break_devices_of(self.process, error)

    def _ends(self, how: str) -> None:
        self.entry.has_ended(self.process, how)
