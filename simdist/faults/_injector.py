"""Brings faults into a simulation: arms them, strikes where their triggers say, and records the strikes.

What holds at any time:

- Each fault of the run has one `Entry`, which is its `Stage`, for the whole run; a rank's triggers are watched anew in
  each life. Two equal descriptions are two entries.
- For the faults of ranks, only the injector is a judge on the bus: it adds up the verdicts of several faults on one
  operation; the last of them decides when they strike.
- A fault that comes after another one is armed when that one strikes, and at most once; a rank's trigger is watched
  from the start of its life, and released when that one strikes.
- A period ends when nothing has happened since its last alarm and nothing else will. Without that rule a deadlock, or a
  rank that hangs for good, would be followed by strikes for ever.

In doubt: if another fault releases a fault of a rank that has no trigger of its own, it strikes by a timer at that
instant, so after everything that the striking fault does at once. That is a choice, not a fact about machines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.c10d import OperationCalled, StoreRequested
from simdist.cluster import Host, Network
from simdist.faults._draws import draws_for, numbers_for
from simdist.faults._entry import Entry, Lateness, SimulatedRank
from simdist.faults._fault import Fault
from simdist.faults._operations import STORE
from simdist.faults._rank_fault import RankFault
from simdist.faults._trigger import Watch, Watches
from simdist.kernel import PASS, Change, Simulation, Timer, Verdict
from simdist.process import PointReached, SimProcess, StepReached
from simdist.result import FaultResult

if TYPE_CHECKING:
    from simdist.files import StorageCalled

__all__ = ["Injector"]

_Event = TypeVar("_Event")


@dataclass(slots=True)
class _Stop:
    """A process that a fault has stopped, and when it may go on."""

    entry: Entry
    until_ns: float


class Injector:
    """The faults of one run. `start_life` arms those of a life; the bus asks for verdicts; `account` has the strikes.

    `lose_store` ends the launcher's store, and `let_store_run` stops it (False) or lets it go on; faults draw their
    numbers from `seed`; `has_devices` says that the world has virtual ones.
    """

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        faults: Sequence[Fault],
        lose_store: Callable[[], None],
        let_store_run: Callable[[bool], None],
        *,
        hosts: Sequence[Host],
        seed: int,
        has_devices: bool,
    ) -> None:
        self.simulation = simulation
        self.network = network
        self.lose_store = lose_store
        self.let_store_run = let_store_run
        self.hosts = tuple(hosts)
        self.world_size = network.cluster.world_size
        self.late_operations: list[tuple[Entry, Lateness]] = []
        self.late_requests: list[tuple[Entry, Lateness]] = []
        self.late_effects: list[tuple[Entry, Lateness]] = []
        self.said = 0  # events of faults in the log
        self._seed = seed
        self._has_devices = has_devices
        self.life = 0
        self._entries: list[Entry] = []
        self._released: dict[str, int] = {}  # when each fault with a name struck first
        self._watches: dict[int, Watches[Entry]] = {}  # of the present life, by rank
        self._draws: dict[Entry, Callable[[], float]] = {}  # of the present life, by fault: numbers for its changes
        self._processes: dict[int, SimProcess] = {}
        self._stops: dict[SimProcess, list[_Stop]] = {}
        self._judging: dict[type, None] = {}  # announcements of which it is a judge
        self._stoppers: dict[Entry, None] = {}  # faults that have stopped the launcher's store
        self.keepers: list[Entry] = []  # faults that keep the launcher's store over restarts
        self._moving: dict[Timer, None] = {}  # timers that keep nothing else going: periods, and the ends of stops
        for fault in faults:
            self._take(fault)

    # -- what the world and the test say -------------------------------------------------------------------------

    def start_life(self, life: int, processes: dict[int, SimProcess]) -> None:
        """Watch for the faults that strike in this life of the world."""
        self.life = life
        self._processes = processes
        self._watches = {}
        self._draws = {}
        for entry in self._entries:
            self._watch(entry)

    def add(self, fault: Fault) -> None:
        """Add a fault while the world runs. One whose time has come strikes at once."""
        self._watch(self._take(fault), at_once=True)

    def lift(self, fault: Fault) -> None:
        """End a fault now: heal, release, resume. One that has not struck never will. The second call does nothing."""
        for entry in self._entries:
            if entry.fault is fault and not entry.lifted:
                self._lift(entry)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults of the run, in the order in which they were added."""
        return tuple(entry.fault for entry in self._entries)

    def numbers_for(self, entry: Entry) -> Callable[..., float]:
        """Return the numbers that a fault of the run draws, by words."""
        earlier = [each.fault for each in self._entries[: self._entries.index(entry)]]
        return numbers_for(entry.fault, earlier, seed=self._seed)

    def account(self) -> tuple[FaultResult, ...]:
        """Return the account of each fault, in the order in which they were added."""
        return tuple(entry.result() for entry in self._entries)

    def release(self, name: str) -> None:
        """Called when a fault of this name strikes: faults that come after it come into play."""
        now_ns = self.simulation.now_ns
        if name in self._released:
            return
        self._released[name] = now_ns
        for entry in list(self._entries):
            if entry.fault.after == name and not isinstance(entry.fault, RankFault):
                self._arm(entry, now_ns)
        for watches in self._watches.values():
            for entry, watch in watches:
                if entry.fault.after == name:
                    watch.released(now_ns, now_ns)
                    self._set_alarm(entry, watch)

    # -- arming --------------------------------------------------------------------------------------------------

    def _take(self, fault: Fault) -> Entry:
        entry = Entry(self, fault)
        self._entries.append(entry)
        if isinstance(fault, RankFault):
            trigger = fault.trigger
            if trigger.effects == (STORE,):
                self.judge_requests()
            elif trigger.effects:
                self.judge_effects()
            elif trigger.on_operation:
                self.judge_operations()
            if trigger.step is not None:
                self._judge(StepReached, self._on_step)
            if trigger.point is not None:
                self._judge(PointReached, self._on_point)
        elif fault.after is None:
            self._arm(entry, 0)
        elif fault.after in self._released:
            self._arm(entry, self._released[fault.after])
        return entry

    def _arm(self, entry: Entry, origin_ns: int) -> None:
        if entry.fault.needs_devices and not self._has_devices:  # its problems() could not know that: it never strikes
            return
        if not entry.in_play and not entry.lifted:
            entry.in_play = True
            entry.origin_ns = origin_ns
            entry.fault.arm(entry)

    def _watch(self, entry: Entry, *, at_once: bool = False) -> None:
        fault = entry.fault
        if not isinstance(fault, RankFault) or fault.life not in (self.life, None) or entry.lifted:
            return
        if fault.rank not in self._processes:  # a life with fewer ranks
            return
        if fault.needs_devices and not self._has_devices:  # its problems() could not know that: it never strikes
            return
        now_ns = self.simulation.now_ns
        watch = Watch(fault.trigger, self.draws_for(entry), now_ns)
        if fault.after is not None and fault.after in self._released:
            watch.released(self._released[fault.after], now_ns)
        self._watches.setdefault(fault.rank, Watches()).add(entry, watch)
        if at_once and watch.alarm_ns == now_ns:
            self._alarm(entry, watch, self._processes[fault.rank])
        else:
            self._set_alarm(entry, watch)

    def draws_for(self, entry: Entry, rank: int | None = None, use: str = "") -> Callable[[], float]:
        """Return a fault's numbers in the present life: for a rank's operations, another use, or its trigger."""
        earlier = [each.fault for each in self._entries[: self._entries.index(entry)]]
        return draws_for(entry.fault, earlier, seed=self._seed, life=self.life, rank=rank, use=use)

    def _set_alarm(self, entry: Entry, watch: Watch) -> None:
        if watch.alarm_ns is None or watch.spent:
            return
        assert entry.fault.target is not None
        process = self._processes[entry.fault.target]
        self.simulation.call_at(watch.alarm_ns, lambda: self._alarm(entry, watch, process))

    def _alarm(self, entry: Entry, watch: Watch, process: SimProcess, happened: int = -1) -> None:
        """An alarm is due. With a period, `happened` is the number of events at the last alarm."""
        if happened == len(self.simulation.events) - self.said and not self._can_go_on():
            return
        if watch.alarm():
            self._strike(entry, process)
        if watch.alarm_ns is not None and process.running and not entry.lifted:
            happened = len(self.simulation.events) - self.said
            self._move_on(watch.alarm_ns, lambda: self._alarm(entry, watch, process, happened))

    def _can_go_on(self) -> bool:
        """True if anything can happen in the world apart from the next strikes of periods."""
        simulation = self.simulation
        self._moving = {timer: None for timer in self._moving if timer.action is not None}
        return bool(simulation.deadlines()) or any(timer not in self._moving for _, timer in simulation.timers())

    def _move_on(self, time_ns: int, action: Callable[[], None]) -> None:
        self._moving[self.simulation.call_at(time_ns, action)] = None

    # -- verdicts ------------------------------------------------------------------------------------------------

    def judge_operations(self) -> None:
        """Judge operations from now on."""
        self._judge(OperationCalled, self._on_operation)

    def judge_effects(self) -> None:
        """Judge effects on disks from now on."""
        from simdist.files import StorageCalled  # which worlds without such faults do not need

        self._judge(StorageCalled, self._on_effect)

    def judge_requests(self) -> None:
        """Judge requests to the store from now on."""
        self._judge(StoreRequested, self._on_request)

    def _judge(self, kind: type[_Event], judge: Callable[[_Event], Verdict]) -> None:
        # Other judges may be there too, so the bus does not show whether the injector is one.
        if kind not in self._judging:
            self._judging[kind] = None
            self.simulation.bus.intercept(kind, judge)

    def _on_step(self, event: StepReached) -> Verdict:
        watches = self._watches.get(event.process.rank)
        return PASS if watches is None else self._verdict(watches.step(event.step), event.process)

    def _on_point(self, event: PointReached) -> Verdict:
        watches = self._watches.get(event.process.rank)
        return PASS if watches is None else self._verdict(watches.point(event.name), event.process)

    def _on_effect(self, event: StorageCalled) -> Verdict:
        watches = self._watches.get(event.process.rank)
        struck = [] if watches is None else watches.effect(event.effect)
        late_ns = self._lateness_ns(self.late_effects, event.process.rank)
        return self._verdict(struck, event.process, late_ns)

    def _on_operation(self, event: OperationCalled) -> Verdict:
        watches = self._watches.get(event.process.rank)
        struck = [] if watches is None else watches.operation(event.operation)
        late_ns = self._lateness_ns(self.late_operations, event.process.rank)
        return self._verdict(struck, event.process, late_ns)

    def _on_request(self, event: StoreRequested) -> Verdict:
        watches = self._watches.get(event.process.rank)
        struck = [] if watches is None else watches.effect(STORE)
        late_ns = self._lateness_ns(self.late_requests, event.process.rank) if event.launchers else 0
        return self._verdict(struck, event.process, late_ns)

    def _lateness_ns(self, asked: list[tuple[Entry, Lateness]], rank: int) -> int:
        now_ns = self.simulation.now_ns
        return sum(lateness_ns(rank, now_ns) for entry, lateness_ns in asked if not entry.lifted)

    def _verdict(self, struck: Sequence[Entry], process: SimProcess, late_ns: int = 0) -> Verdict:
        """Return the faults' strikes on the process, one after the other, and the result for its program."""
        entries = [entry for entry in struck if not entry.lifted]
        if not entries:
            return Verdict(delay_ns=late_ns) if late_ns else PASS
        last = entries[-1].fault
        assert isinstance(last, RankFault)

        unchanged: dict[Entry, None] = {}  # faults that change a result that is not there yet

        def strike() -> None:
            for entry in entries:
                if entry not in unchanged:  # an operation that failed has left nothing to change
                    self._strike(entry, process)

        own = Verdict(
            delay_ns=late_ns, strike=strike, when=last.when, error=last.exception(), part_bytes=last.part_bytes
        )
        for entry in entries:
            fault = entry.fault
            assert isinstance(fault, RankFault)
            if fault.drops or fault.changes is not None:
                own = own.and_then(Verdict(change=self._change_of(entry), drop=fault.drops, when=own.when))
            if fault.changes_result is not None:
                unchanged[entry] = None
                own = own.and_then(Verdict(change_result=self._result_change_of(entry, unchanged), when=own.when))
        return own

    def _result_change_of(self, entry: Entry, unchanged: dict[Entry, None]) -> Change:
        """Return the fault's change of a collective's results, and take it out of `unchanged` then."""

        def change_result(results: Any) -> Any:
            assert isinstance(entry.fault, RankFault)
            del unchanged[entry]
            return results if entry.lifted else entry.fault.change_result(results, self.drawing(entry))

        return change_result

    def _change_of(self, entry: Entry) -> Change | None:
        """Return the fault's change of what an operation carries."""
        assert isinstance(entry.fault, RankFault)
        change = entry.fault.changes
        if change is None:
            return None

        def change_drawn(payload: Any) -> Any:
            return change(payload, self.drawing(entry))

        return change_drawn

    def drawing(self, entry: Entry) -> Callable[[], float]:
        """Return the numbers for what a fault changes: each strike continues where the one before ended."""
        if entry not in self._draws:
            self._draws[entry] = self.draws_for(entry, use="values")
        return self._draws[entry]

    # -- strikes -------------------------------------------------------------------------------------------------

    def _strike(self, entry: Entry, process: SimProcess) -> None:
        fault = entry.fault
        if not process.running or entry.lifted:
            return
        assert isinstance(fault, RankFault)
        entry.say(fault.begins(), process.rank, process.life)
        entry.has_struck()
        fault.strike(SimulatedRank(self, entry, process))

    def stop(self, entry: Entry, process: SimProcess, duration_ns: int | None) -> None:
        """Stop a process for a while, or until the fault is lifted."""
        now_ns = self.simulation.now_ns
        process.stop()
        until_ns = math.inf if duration_ns is None else now_ns + duration_ns
        self._stops.setdefault(process, []).append(_Stop(entry, until_ns))
        if duration_ns is not None:
            again = functools.partial(self._go_on, process)
            if isinstance(entry.fault, RankFault) and entry.fault.period_ns is not None:
                self._move_on(now_ns + duration_ns, again)
            else:
                self.simulation.call_at(now_ns + duration_ns, again)

    def stop_store(self, entry: Entry) -> None:
        """Stop the launcher's store until this fault, and all others that have stopped it, let it go on."""
        self._stoppers[entry] = None
        self.let_store_run(False)

    def resume_store(self, entry: Entry) -> None:
        """This fault no longer stops the store."""
        if entry in self._stoppers:
            del self._stoppers[entry]
            if not self._stoppers:
                self.let_store_run(True)

    def keeps_store(self) -> bool:
        """True if the new life finds the launcher's store as the one before left it."""
        keepers = [entry for entry in self.keepers if not entry.lifted]
        for entry in keepers:
            entry.report()
        return bool(keepers)

    def crash_hosts(
        self, entry: Entry, hosts: Sequence[Host], down_ns: int | None, outcome: int | None, disks: str
    ) -> None:
        """Bring hosts down for a while, or until the fault is lifted. Does not return to a rank of a crashed host.

        `outcome` selects one of the outcomes of their disks, `disks` the disks with which they come back.
        """
        now_ns = self.simulation.now_ns
        entry.hosts += hosts
        if down_ns is not None:
            self.simulation.call_at(now_ns + down_ns, functools.partial(self._boot_all, entry, hosts))
        for host in hosts:
            host.failing, host.disks = True, disks
        # All of them before any rank ends: the caller may be on the first.
        for host in hosts:
            host.lose_power(now_ns, outcome=outcome)
        for host in hosts:
            host.failing = False
        for host in sorted(hosts, key=lambda each: each.has_baton):
            host.end_residents()

    def _boot_all(self, entry: Entry, hosts: Sequence[Host]) -> None:
        for host in hosts:
            self._boot(entry, host)

    def _boot(self, entry: Entry, host: Host) -> None:
        if host in entry.hosts:
            entry.hosts.remove(host)
            entry.report_end()
            host.boot(self.simulation.now_ns)

    def _go_on(self, process: SimProcess) -> None:
        # If stops overlap, the last one to end decides.
        now_ns = self.simulation.now_ns
        self._stops[process] = left = [stop for stop in self._stops[process] if stop.until_ns > now_ns]
        if process.running and not left:
            process.resume()

    def _lift(self, entry: Entry) -> None:
        entry.lifted = True
        now_ns = entry.lifted_ns = self.simulation.now_ns
        if entry.hosts:
            for host in list(entry.hosts):
                self._boot(entry, host)
        elif entry.struck_ns and not entry.over and entry.fault.ends() and not entry.has_passed():
            entry.report_end()
        self.resume_store(entry)
        for condition in entry.conditions:
            self.network.lift(condition, now_ns)
        for process, stops in list(self._stops.items()):
            mine = [stop for stop in stops if stop.entry is entry]
            for stop in mine:
                stop.until_ns = min(stop.until_ns, now_ns)
            if mine:
                self._go_on(process)
