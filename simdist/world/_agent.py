"""Torchrun's agent: watches the workers; when one fails it stops all of them, and starts them again or gives up."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Collection, Iterable

from simdist.cluster import Host
from simdist.kernel import Simulation, Timer
from simdist.process import SimProcess
from simdist.records import restarted

__all__ = ["GRACE_NS", "MONITOR_NS", "Agent"]

MONITOR_NS = 100_000_000  # torchrun's monitor interval (torch.distributed.run, --monitor-interval)
RESTART_NS = 1_000_000_000  # a new rendezvous round and fresh processes
GRACE_NS = 30_000_000_000  # from SIGTERM to SIGKILL, for a worker that handles it (torchelastic's MultiprocessContext)
# Of a rendezvous (torchelastic's DynamicRendezvousHandler): the last call once enough nodes are there, and the limit.
_LAST_CALL_NS = 30_000_000_000
_JOIN_NS = 600_000_000_000


class Agent:
    """Watches the processes of one world.

    `start` begins a life. With `stop_on_failure`, workers that still run when another has failed get SIGTERM once no
    restart is left, as torchrun and `torch.multiprocessing.spawn` do. One that handles it has 30 s to end, then gets
    SIGKILL. A restart waits for every host to be up.

    With `min_hosts` it waits only as long as a rendezvous does, and goes on with the hosts that are left if there are
    enough of them, including the first host, which serves the rendezvous. A host that comes back later is taken in: all
    workers are stopped for a new round, which does not count as a restart for `max_restarts`.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        max_restarts: int,
        stop_on_failure: bool,
        start: Callable[[int], None],
        hosts: Collection[Host],
        min_hosts: int | None = None,
        monitor_ns: int = MONITOR_NS,
        grace_ns: int = GRACE_NS,
    ) -> None:
        self._simulation = simulation
        self._max_restarts = max_restarts
        self._stop_on_failure = stop_on_failure
        self._start = start
        self._hosts = hosts
        self._min_hosts = min_hosts
        self._monitor_ns = monitor_ns
        self._grace_ns = grace_ns
        self._deadline: Timer | None = None  # of the present rendezvous
        self._awaited: list[Host] = []  # the hosts that it waits for
        self._joining = False  # a host has come back, which is the reason for the new round
        self._life = 0
        self._workers: list[SimProcess] = []
        self._alarmed = False
        self.restarts = 0

    def watch(self, workers: list[SimProcess]) -> None:
        """Watch the workers of the present life."""
        self._workers = workers
        self._alarmed = False
        if self._max_restarts or self._stop_on_failure:
            for worker in workers:
                worker.end_listeners[self._on_end] = None

    def _on_end(self, worker: SimProcess) -> None:
        if worker.exit_code == 0 or self._alarmed or worker not in self._workers:
            return
        self._alarmed = True
        self._react_at_next_look()

    def _react_at_next_look(self) -> None:
        now = self._simulation.now_ns
        self._simulation.keep_open()
        self._simulation.call_at(now - now % self._monitor_ns + self._monitor_ns, self._react)

    def _react(self) -> None:
        for worker in self._workers:
            # The agent stops them in this life: no listener of the agent may take that for a failure.
            if signal.SIGTERM in worker.handlers:
                worker.signal(signal.SIGTERM)
            else:
                worker.kill(signal.SIGTERM)
        left = [worker for worker in self._workers if worker.running]
        if left:
            deadline = self._simulation.call_at(self._simulation.now_ns + self._grace_ns, lambda: _kill(left))
            for worker in left:
                worker.end_listeners[functools.partial(self._on_stopped, deadline)] = None
        else:
            self._go_on()

    def _on_stopped(self, deadline: Timer, worker: SimProcess) -> None:
        """Go on when all workers have ended: one that was asked to end has done so."""
        if not any(each.running for each in self._workers):
            deadline.cancel()
            self._go_on()

    def _go_on(self) -> None:
        """Restart, or let the world end: all workers have stopped."""
        if self._joining or self.restarts < self._max_restarts:
            self._simulation.call_at(self._simulation.now_ns + RESTART_NS, self._rejoin)
        else:
            self._simulation.let_end()

    def _rejoin(self) -> None:
        """Complete the new rendezvous round: when every host is there, or enough are and the last call is over."""
        missing = [host for host in self._hosts if not host.up]
        if not missing:
            self._begin()
            return
        self._awaited = missing
        for host in missing:
            host.listeners.append(self._on_return)
        if self._min_hosts is not None:
            enough = missing[0] is not next(iter(self._hosts)) and len(self._hosts) - len(missing) >= self._min_hosts
            now = self._simulation.now_ns
            if enough:
                self._deadline = self._simulation.call_at(now + _LAST_CALL_NS, self._begin_without)
            else:
                self._deadline = self._simulation.call_at(now + _JOIN_NS, self._give_up)

    def _on_return(self, host: Host) -> None:
        self._end_round()
        self._simulation.call_at(self._simulation.now_ns + RESTART_NS, self._rejoin)

    def _end_round(self) -> None:
        for host in self._awaited:
            host.listeners.remove(self._on_return)
        self._awaited = []
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._end_round()
        self._simulation.let_end()

    def _begin_without(self) -> None:
        lost = self._awaited
        self._end_round()
        for host in lost:
            host.listeners.append(self._on_late)
        self._begin()

    def _on_late(self, host: Host) -> None:
        """Begin a new round: a host is back that the present round does without."""
        host.listeners.remove(self._on_late)
        if not self._alarmed and any(worker.running for worker in self._workers):
            self._alarmed = self._joining = True
            self._react_at_next_look()

    def _begin(self) -> None:
        if self._joining:
            self._joining = False
        else:
            self.restarts += 1
        self._life += 1
        self._simulation.bus.record(restarted(self._simulation.now_ns, -1, self._life))
        self._start(self._life)
        self._simulation.let_end()


def _kill(workers: Iterable[SimProcess]) -> None:
    for worker in workers:
        worker.kill(signal.SIGKILL)
