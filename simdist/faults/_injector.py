"""Turns fault descriptions into verdicts, timers and network conditions."""

from __future__ import annotations

import math
import signal as _signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simdist.c10d import OperationIssued, StepReached, StoreRequested
from simdist.cluster import Condition, Network
from simdist.faults._kinds import (
    Crash,
    Fault,
    Hang,
    Hold,
    LinkDelay,
    Partition,
    Raise,
    RankFault,
    SlowRank,
    StoreDelay,
    StoreLost,
)
from simdist.faults._words import begin_text, end_text, kind_of
from simdist.kernel import PASS, Simulation, Verdict
from simdist.process import SimProcess

__all__ = ["Injector"]


@dataclass(slots=True)
class _Armed:
    """A rank fault of one life, and how far its trigger has come."""

    fault: RankFault
    matched: int = 0  # operations seen that match
    in_step: bool = False
    spent: bool = False
    operations: tuple[str, ...] | None = field(init=False)  # that match

    def __post_init__(self) -> None:
        self.operations = self.fault.operations


@dataclass(slots=True)
class _Hanging:
    """A hang that has struck, and when it ends."""

    fault: Hang
    until_ns: float


class Injector:
    """The faults of one run. `start_life` arms those of a life; the bus asks for verdicts.

    `lose_store` ends the launcher's store.

    Faults are told apart by identity: two equal descriptions are two faults.
    """

    def __init__(
        self, simulation: Simulation, network: Network, faults: Sequence[Fault], lose_store: Callable[[], None]
    ) -> None:
        self._simulation = simulation
        self._network = network
        self._lose_store = lose_store
        self._slow_stores: list[StoreDelay] = []
        self._faults: list[Fault] = []
        self._life = 0
        self._armed: dict[int, list[_Armed]] = {}
        self._processes: dict[int, SimProcess] = {}
        self._slow: dict[int, list[SlowRank]] = {}
        self._hanging: dict[SimProcess, list[_Hanging]] = {}
        self._conditions: list[tuple[Fault, list[Condition]]] = []
        self._lifted: list[Fault] = []
        for fault in faults:
            self._take(fault)

    def start_life(self, life: int, processes: dict[int, SimProcess]) -> None:
        """Arm what strikes in this life of the world."""
        self._life = life
        self._processes = processes
        self._armed = {}
        for fault in self._faults:
            if isinstance(fault, RankFault):
                self._arm(fault)

    def add(self, fault: Fault) -> None:
        """Bring in a fault while the world runs. One whose time has come begins at once."""
        self._take(fault)
        if isinstance(fault, RankFault):
            if fault.at_ns is not None and fault.at_ns <= self._simulation.now_ns:
                if fault.life in (self._life, None):
                    self._strike(fault, self._processes[fault.rank])
            else:
                self._arm(fault)

    def lift(self, fault: Fault) -> None:
        """End a fault now: heal, release, let go on. One that has not struck yet never will; does nothing twice."""
        if any(each is fault for each in self._lifted):
            return
        self._lifted.append(fault)
        now = self._simulation.now_ns
        for known, conditions in self._conditions:
            if known is fault:
                if not _is_over(fault, now):
                    self._tell(kind_of(fault), end_text(fault))
                for condition in conditions:
                    self._network.lift(condition, now)
        if isinstance(fault, SlowRank):
            self._slow[fault.rank] = [each for each in self._slow[fault.rank] if each is not fault]
        if isinstance(fault, StoreDelay):
            self._slow_stores = [each for each in self._slow_stores if each is not fault]
        if isinstance(fault, Hang):
            for process, hangs in self._hanging.items():
                for hang in hangs:
                    if hang.fault is fault:
                        hang.until_ns = min(hang.until_ns, now)
                        self._go_on(process)

    def _take(self, fault: Fault) -> None:
        self._faults.append(fault)
        bus = self._simulation.bus
        if (isinstance(fault, SlowRank) or _on_operation(fault)) and not bus.wants(OperationIssued):
            bus.intercept(OperationIssued, self._on_operation)
        if isinstance(fault, RankFault) and fault.at_step is not None and not bus.wants(StepReached):
            bus.intercept(StepReached, self._on_step)
        if isinstance(fault, StoreDelay) and not bus.wants(StoreRequested):
            bus.intercept(StoreRequested, self._on_store_request)
        self._lay_on(fault)

    def _arm(self, fault: RankFault) -> None:
        if fault.life not in (self._life, None):
            return
        self._armed.setdefault(fault.rank, []).append(_Armed(fault))
        if fault.at_ns is not None:
            at_ns = max(fault.at_ns, self._simulation.now_ns)
            self._simulation.call_at(at_ns, self._striker(fault, self._processes[fault.rank]))

    # -- links ---------------------------------------------------------------------------------------------------

    def _lay_on(self, fault: Fault) -> None:
        network = self._network
        if isinstance(fault, RankFault):
            return
        if isinstance(fault, StoreLost):
            self._simulation.call_at(max(fault.at_ns, self._simulation.now_ns), lambda: self._lose(fault))
            return
        start_ns = max(fault.start_ns, self._simulation.now_ns)  # what has happened is not rewritten
        if isinstance(fault, LinkDelay | Hold):
            ways = [(fault.src, fault.dst)] + ([(fault.dst, fault.src)] if fault.both_ways else [])
        if isinstance(fault, LinkDelay):
            conditions = [
                network.delay(src, dst, fault.delay_ns, start_ns=start_ns, until_ns=fault.until_ns) for src, dst in ways
            ]
            self._tell_at(start_ns, fault, begin_text(fault))
        elif isinstance(fault, Hold):
            conditions = [network.hold(src, dst, start_ns=start_ns, until_ns=fault.until_ns) for src, dst in ways]
            self._tell_at(start_ns, fault, begin_text(fault))
        elif isinstance(fault, Partition):
            conditions = [network.cut(fault.groups, start_ns=start_ns, until_ns=fault.until_ns)]
            self._tell_at(start_ns, fault, begin_text(fault))
        elif isinstance(fault, StoreDelay):
            conditions = []
            self._slow_stores.append(fault)
            self._tell_at(start_ns, fault, begin_text(fault), -1 if fault.rank is None else fault.rank)
        else:
            conditions = []
            self._slow.setdefault(fault.rank, []).append(fault)
            self._tell_at(start_ns, fault, begin_text(fault), fault.rank)
        if isinstance(fault, Partition | Hold) and fault.until_ns is not None:
            self._tell_at(fault.until_ns, fault, end_text(fault))
        self._conditions.append((fault, conditions))

    def _lose(self, fault: StoreLost) -> None:
        if not any(each is fault for each in self._lifted):
            self._tell("store_lost", begin_text(fault))
            self._lose_store()

    def _tell_at(self, time_ns: int, fault: Fault, text: str, rank: int = -1) -> None:
        # Not a timer if it is now: a fault that lies in the future keeps the world from being at rest.
        if time_ns <= self._simulation.now_ns:
            self._tell(kind_of(fault), text, rank)
        else:
            self._simulation.call_at(time_ns, lambda: self._tell_of(fault, text, rank))

    def _tell_of(self, fault: Fault, text: str, rank: int) -> None:
        if not any(each is fault for each in self._lifted):
            self._tell(kind_of(fault), text, rank)

    def _tell(self, kind: str, text: str, rank: int = -1, life: int = 0) -> None:
        self._simulation.events.add((self._simulation.now_ns, "fault", rank, kind, text, life))

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _on_step(self, event: StepReached) -> Verdict:
        verdict = PASS
        for armed in self._armed.get(event.process.rank, ()):
            if armed.spent or armed.fault.at_step is None:
                continue
            armed.in_step = event.step == armed.fault.at_step
            armed.matched = 0
            if armed.in_step and not armed.fault.on_operation and verdict is PASS:
                armed.spent = True
                verdict = self._verdict([armed.fault], event.process)
        return verdict

    def _on_operation(self, event: OperationIssued) -> Verdict:
        rank = event.process.rank
        struck: list[RankFault] = []
        for armed in self._armed.get(rank, ()):
            fault = armed.fault
            if armed.spent or not fault.on_operation or (fault.at_step is not None and not armed.in_step):
                continue
            if armed.operations is not None and event.operation not in armed.operations:
                continue
            armed.matched += 1
            if armed.matched >= (fault.nth or 1) and (not struck or struck[0].when == fault.when):
                armed.spent = True
                struck.append(fault)
        late_ns = sum(slow.delay_ns for slow in self._slow.get(rank, ()) if self._is_on(slow))
        if struck:
            return self._verdict(struck, event.process, late_ns)
        return Verdict(delay_ns=late_ns) if late_ns else PASS

    def _verdict(self, faults: Sequence[RankFault], process: SimProcess, late_ns: int = 0) -> Verdict:
        """What `faults` do to the process, one after the other; after an exception there is nothing left to strike."""
        strikes = []
        error = None
        for fault in faults:
            strikes.append(self._striker(fault, process))
            if isinstance(fault, Raise) and not any(each is fault for each in self._lifted):
                error = fault.make()
                break
        return Verdict(delay_ns=late_ns, strike=lambda: _call_all(strikes), when=faults[0].when, error=error)

    def _on_store_request(self, event: StoreRequested) -> Verdict:
        delays = [
            slow.delay_ns
            for slow in self._slow_stores
            if slow.rank in (None, event.process.rank) and event.launchers and self._is_on(slow)
        ]
        return Verdict(delay_ns=sum(delays)) if delays else PASS

    def _is_on(self, slow: SlowRank | StoreDelay) -> bool:
        now = self._simulation.now_ns
        return slow.start_ns <= now and (slow.until_ns is None or now < slow.until_ns)

    # -- strikes -------------------------------------------------------------------------------------------------

    def _striker(self, fault: RankFault, process: SimProcess) -> Callable[[], None]:
        return lambda: self._strike(fault, process)

    def _strike(self, fault: RankFault, process: SimProcess) -> None:
        if not process.running or any(each is fault for each in self._lifted):
            return
        simulation = self._simulation
        self._tell(kind_of(fault), begin_text(fault), process.rank, process.life)
        if isinstance(fault, Crash):
            if fault.exit_code is not None:
                process.exit(fault.exit_code)
            else:
                process.kill(_signal.Signals[fault.signal])
            return
        if isinstance(fault, Raise):
            return  # the verdict has the exception
        process.stop()
        until_ns = math.inf if fault.duration_ns is None else simulation.now_ns + fault.duration_ns
        self._hanging.setdefault(process, []).append(_Hanging(fault, until_ns))
        if fault.duration_ns is not None:
            simulation.call_at(simulation.now_ns + fault.duration_ns, lambda: self._go_on(process))

    def _go_on(self, process: SimProcess) -> None:
        # Of hangs that overlap the last to end decides.
        if process.running and max(hang.until_ns for hang in self._hanging[process]) <= self._simulation.now_ns:
            process.resume()


def _call_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _on_operation(fault: Fault) -> bool:
    return isinstance(fault, RankFault) and fault.on_operation


def _is_over(fault: Fault, now_ns: int) -> bool:
    return not isinstance(fault, RankFault | StoreLost) and fault.until_ns is not None and fault.until_ns <= now_ns
