"""Turns fault descriptions into verdicts, timers and network conditions."""

from __future__ import annotations

import math
import signal as _signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simdist.c10d import OperationIssued, StepReached
from simdist.cluster import Network
from simdist.faults._kinds import Crash, Fault, Hang, LinkDelay, Partition, SlowRank
from simdist.kernel import PASS, Simulation, Verdict
from simdist.process import SimProcess

__all__ = ["Injector"]

_FOR_GOOD = math.inf


@dataclass(slots=True)
class _Armed:
    """A rank fault of one life, and how far its trigger has come."""

    fault: Crash | Hang
    matched: int = 0  # operations seen that match
    in_step: bool = False
    spent: bool = False


class Injector:
    """The faults of one run. `start_life` arms those of a life; the bus asks for verdicts."""

    def __init__(self, simulation: Simulation, network: Network, faults: Sequence[Fault]) -> None:
        self._simulation = simulation
        self._faults = tuple(faults)
        self._armed: dict[int, list[_Armed]] = {}
        self._processes: dict[int, SimProcess] = {}
        self._slow: dict[int, list[SlowRank]] = {}
        self._hanging: dict[SimProcess, list[float]] = {}  # when each of its hangs ends
        for fault in self._faults:
            self._lay_on(network, fault)
        if any(isinstance(fault, SlowRank) or _on_operation(fault) for fault in self._faults):
            simulation.bus.intercept(OperationIssued, self._on_operation)
        if any(isinstance(fault, Crash | Hang) and fault.at_step is not None for fault in self._faults):
            simulation.bus.intercept(StepReached, self._on_step)

    def start_life(self, life: int, processes: dict[int, SimProcess]) -> None:
        """Arm what strikes in this life of the world."""
        self._processes = processes
        self._armed = {}
        for fault in self._faults:
            if isinstance(fault, Crash | Hang) and fault.life in (life, None):
                self._armed.setdefault(fault.rank, []).append(_Armed(fault))
                if fault.at_ns is not None:
                    process = processes[fault.rank]
                    at_ns = max(fault.at_ns, self._simulation.now_ns)
                    self._simulation.call_at(at_ns, self._striker(fault, process))

    # -- links ---------------------------------------------------------------------------------------------------

    def _lay_on(self, network: Network, fault: Fault) -> None:
        if isinstance(fault, LinkDelay):
            ways = [(fault.src, fault.dst)] + ([(fault.dst, fault.src)] if fault.both_ways else [])
            for src, dst in ways:
                network.delay(src, dst, fault.delay_ns, start_ns=fault.start_ns, until_ns=fault.until_ns)
            self._tell_at(
                fault.start_ns,
                "link_delay",
                f"messages between ranks {fault.src} and {fault.dst} take {fault.delay_ns / 1e6:g} ms longer",
            )
        elif isinstance(fault, Partition):
            network.cut(fault.groups, start_ns=fault.start_ns, until_ns=fault.until_ns)
            sides = " | ".join(", ".join(map(str, group)) for group in fault.groups)
            self._tell_at(fault.start_ns, "partition", f"the network splits: ranks {sides}")
            if fault.until_ns is not None:
                self._tell_at(fault.until_ns, "partition", f"the network heals: ranks {sides}")
        elif isinstance(fault, SlowRank):
            self._slow.setdefault(fault.rank, []).append(fault)
            self._tell_at(
                fault.start_ns,
                "slow_rank",
                f"rank {fault.rank} starts each operation {fault.delay_ns / 1e6:g} ms late",
                fault.rank,
            )

    def _tell_at(self, time_ns: int, kind: str, text: str, rank: int = -1) -> None:
        # Not a timer if it is now: a fault that lies in the future keeps the world from being at rest.
        events = self._simulation.events
        if time_ns <= self._simulation.now_ns:
            events.add((self._simulation.now_ns, "fault", rank, kind, text, 0))
        else:
            self._simulation.call_at(
                time_ns, lambda: events.add((self._simulation.now_ns, "fault", rank, kind, text, 0))
            )

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
                verdict = Verdict(strike=self._striker(armed.fault, event.process))
        return verdict

    def _on_operation(self, event: OperationIssued) -> Verdict:
        rank = event.process.rank
        struck: list[Crash | Hang] = []
        for armed in self._armed.get(rank, ()):
            fault = armed.fault
            if armed.spent or not fault.on_operation or (fault.at_step is not None and not armed.in_step):
                continue
            if fault.op is not None and fault.op != event.operation:
                continue
            armed.matched += 1
            if armed.matched >= (fault.nth or 1) and (not struck or struck[0].when == fault.when):
                armed.spent = True
                struck.append(fault)
        late_ns = sum(slow.delay_ns for slow in self._slow.get(rank, ()) if self._is_on(slow))
        if struck:
            strikes = [self._striker(fault, event.process) for fault in struck]
            return Verdict(delay_ns=late_ns, strike=lambda: _call_all(strikes), when=struck[0].when)
        return Verdict(delay_ns=late_ns) if late_ns else PASS

    def _is_on(self, slow: SlowRank) -> bool:
        now = self._simulation.now_ns
        return slow.start_ns <= now and (slow.until_ns is None or now < slow.until_ns)

    # -- strikes -------------------------------------------------------------------------------------------------

    def _striker(self, fault: Crash | Hang, process: SimProcess) -> Callable[[], None]:
        return lambda: self._strike(fault, process)

    def _strike(self, fault: Crash | Hang, process: SimProcess) -> None:
        if not process.running:
            return
        simulation = self._simulation
        events = simulation.events
        if isinstance(fault, Crash):
            how = f"exits with code {fault.exit_code}" if fault.exit_code is not None else f"dies of {fault.signal}"
            text = f"rank {process.rank} {how}"
            events.add((simulation.now_ns, "fault", process.rank, "crash", text, process.life))
            if fault.exit_code is not None:
                process.exit(fault.exit_code)
            else:
                process.kill(_signal.Signals[fault.signal])
            return
        until = "for good" if fault.duration_ns is None else f"for {fault.duration_ns / 1e6:g} ms"
        text = f"rank {process.rank} hangs {until}"
        events.add((simulation.now_ns, "fault", process.rank, "hang", text, process.life))
        process.stop()
        ends = self._hanging.setdefault(process, [])
        if fault.duration_ns is None:
            ends.append(_FOR_GOOD)
        else:
            until_ns = simulation.now_ns + fault.duration_ns
            ends.append(until_ns)
            simulation.call_at(until_ns, lambda: self._go_on(process))

    def _go_on(self, process: SimProcess) -> None:
        # Of hangs that overlap the last to end decides.
        if max(self._hanging[process]) <= self._simulation.now_ns:
            process.resume()


def _call_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _on_operation(fault: Fault) -> bool:
    return isinstance(fault, Crash | Hang) and fault.on_operation
