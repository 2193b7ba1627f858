"""What torchrun's agent does: watch the workers; when one fails stop all of them, and start them again or give up."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Collection, Iterable

from simdist.cluster import Host
from simdist.kernel import Simulation, Timer
from simdist.process import SimProcess
from simdist.records import restarted

__all__ = ["Agent"]

MONITOR_NS = 100_000_000  # torchrun's monitor interval (torch.distributed.run, --monitor-interval)
RESTART_NS = 1_000_000_000  # a new rendezvous round and fresh processes
_GRACE_NS = 30_000_000_000  # from SIGTERM to SIGKILL, for a worker that handles it (torchelastic's MultiprocessContext)


class Agent:
    """Watches the processes of one world.

    `start` begins a life. With `stop_on_failure`, workers that still run when another has failed get SIGTERM once no
    restart is left, as torchrun and `torch.multiprocessing.spawn` do. One that handles it has 30 s to end, then gets
    SIGKILL. A restart waits for every host to be up.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        max_restarts: int,
        stop_on_failure: bool,
        start: Callable[[int], None],
        hosts: Collection[Host],
    ) -> None:
        self._simulation = simulation
        self._max_restarts = max_restarts
        self._stop_on_failure = stop_on_failure
        self._start = start
        self._hosts = hosts
        self._workers: list[SimProcess] = []
        self._alarmed = False
        self.restarts = 0

    def watch(self, workers: list[SimProcess]) -> None:
        """These are the workers of the present life."""
        self._workers = workers
        self._alarmed = False
        if self._max_restarts or self._stop_on_failure:
            for worker in workers:
                worker.end_listeners[self._on_end] = None

    def _on_end(self, worker: SimProcess) -> None:
        if worker.exit_code == 0 or self._alarmed or worker not in self._workers:
            return
        self._alarmed = True
        now = self._simulation.now_ns
        self._simulation.keep_open()
        self._simulation.call_at(now - now % MONITOR_NS + MONITOR_NS, self._react)

    def _react(self) -> None:
        for worker in self._workers:
            # In this life's own terms they are stopped by the agent: no listener of ours may take it for a failure.
            if signal.SIGTERM in worker.handlers:
                worker.signal(signal.SIGTERM)
            else:
                worker.kill(signal.SIGTERM)
        left = [worker for worker in self._workers if worker.running]
        if left:
            deadline = self._simulation.call_at(self._simulation.now_ns + _GRACE_NS, lambda: _kill(left))
            for worker in left:
                worker.end_listeners[functools.partial(self._on_stopped, deadline)] = None
        else:
            self._go_on()

    def _on_stopped(self, deadline: Timer, worker: SimProcess) -> None:
        """A worker that was asked to end has done so."""
        if not any(each.running for each in self._workers):
            deadline.cancel()
            self._go_on()

    def _go_on(self) -> None:
        """All workers have stopped."""
        if self.restarts < self._max_restarts:
            self._simulation.call_at(self._simulation.now_ns + RESTART_NS, self._rejoin)
        else:
            self._simulation.let_end()

    def _rejoin(self) -> None:
        """The new rendezvous round is complete when every host is there."""
        missing = [host for host in self._hosts if not host.up]
        if missing:
            missing[0].listeners.append(self._on_return)
        else:
            self.restarts += 1
            self._begin(self.restarts)

    def _on_return(self, host: Host) -> None:
        host.listeners.remove(self._on_return)
        self._simulation.call_at(self._simulation.now_ns + RESTART_NS, self._rejoin)

    def _begin(self, life: int) -> None:
        self._simulation.bus.record(restarted(self._simulation.now_ns, -1, life))
        self._start(life)
        self._simulation.let_end()


def _kill(workers: Iterable[SimProcess]) -> None:
    for worker in workers:
        worker.kill(signal.SIGKILL)
