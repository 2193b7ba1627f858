"""The watchdog of a group, which ends a process with an operation that does not end (torch 2.13).

It looks every 100 ms. When a work is older than its timeout, or NCCL has reported an error, it logs that, asks all
processes of the job to dump (`_monitor`), sleeps for a minute and ends its process, whatever the program does
meanwhile. In torch it is a thread; here it is a set of timers, which start with its first work.

With TORCH_NCCL_BLOCKING_WAIT there is no watchdog and no monitor: host waits have the timeout.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._work import FAILED_LINES
from simdist.c10d.backends.nccl.watch._desync import DesyncDebugger
from simdist.c10d.backends.nccl.watch._monitor import ask_for_dumps, when_it_runs
from simdist.inside.torch import Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.backends.nccl.watch._rank import RankNccl
    from simdist.c10d.backends.nccl.watch._recorder import Entry
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember

__all__ = ["Watchdog"]

_EVERY_NS = 100_000_000
_RAISED = {
    "TIMEOUT": f"checkTimeout at {Place.TIMEOUT_RAISED.path_for_cuda}",
    "COMM_ERROR": f"checkForNCCLErrorsInternal at {Place.WORK_CHECKED.path_for_cuda}",
}
_NO_STACK = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it "
    "by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)


class Watchdog:
    """Watches the works of one rank's group. It is an `Expiring` of the simulation while it has works."""

    def __init__(self, group: WatchedMember, rank_nccl: RankNccl) -> None:
        self._group = group
        self._nccl = rank_nccl
        self._process = rank_nccl.process
        self._begin_ns = self._process.simulation.now_ns
        self._works: dict[NcclWork, Entry | None] = {}  # works whose end it has not seen, and their records
        self._keeps_works = False  # an abort ends works now; the watchdog will see the communicator's error first
        self._failing = False  # it has found a failure, and sleeps or has ended
        self._acts_ns = -1  # the end of its sleep
        self._desync = DesyncDebugger(group) if group.environment.desync else None
        self.deadline_ns: int | None = None

    @property
    def is_failing(self) -> bool:
        """True if it has found a failure, and sleeps before it acts on it."""
        return self._failing

    def tick_after(self, time_ns: int) -> int:
        """Return the time of its first look at or after `time_ns`."""
        return self._begin_ns - (self._begin_ns - time_ns) // _EVERY_NS * _EVERY_NS

    def watch(self, work: NcclWork) -> None:
        """Watch a launched work."""
        if self._group.environment.blocking_wait or self._failing:
            return
        if self._desync is not None:
            self._desync.launched(work)
            if work.done:
                self._desync.ended(work)
        if work.done:
            return
        self._works[work] = work.entry
        due_ns = self._sees_at(work)
        if self.deadline_ns is None or due_ns < self.deadline_ns:
            self._process.simulation.move_deadline(self, due_ns)

    def _sees_at(self, work: NcclWork) -> int:
        """Return when it finds that the work has timed out."""
        late_ns = work.member.communicator.backend.failure.late_ns
        return self.tick_after(work.issued_ns + work.timeout_ns + late_ns)

    def forget(self, work: NcclWork) -> None:
        """Stop watching a finished work."""
        if work not in self._works or self._keeps_works:
            return
        if self._desync is not None:
            self._desync.ended(work)
        del self._works[work]
        if not self._works:
            self._process.simulation.move_deadline(self, None)

    def watches(self, work: NcclWork) -> bool:
        """True if it has not seen the end of a work."""
        return work in self._works

    @contextlib.contextmanager
    def keep_works(self) -> Iterator[None]:
        """While this is active, works end because their communicator is aborted, and the watchdog keeps them."""
        self._keeps_works = True
        try:
            yield
        finally:
            self._keeps_works = False

    def join(self) -> None:
        """Park until the watchdog has ended: it finishes its sleep, and then acts on its failure."""
        simulation = self._process.simulation
        while simulation.now_ns < self._acts_ns:
            simulation.sleep(self._acts_ns - simulation.now_ns)

    def flush(self) -> None:
        """Look at the works for the last time."""
        if self._desync is not None:
            self._desync.look()

    def stop(self) -> None:
        """Stop because the group is shut down."""
        self._works.clear()
        self._process.simulation.move_deadline(self, None)

    def expire(self) -> None:
        """Look for works that are older than their timeouts; called at the deadline."""
        self.deadline_ns = None
        when_it_runs(self._process, self._look)

    def notice(self) -> None:
        """Schedule a look, after NCCL has reported an error of a communicator."""
        simulation = self._process.simulation
        simulation.call_at(self.tick_after(simulation.now_ns), lambda: when_it_runs(self._process, self._look))

    def _look(self) -> None:
        if self._failing:
            return
        now_ns = self._process.simulation.now_ns
        for work in self._works:
            error = self._group.errors.get(work.connection)
            if error is not None:
                self._fail(work, work.error_text(error), error, "COMM_ERROR", Place.WORK_FAILED)
                return
            if now_ns >= work.issued_ns + work.timeout_ns:
                text = work.timeout_text((now_ns - work.issued_ns) // 1_000_000)
                self._fail(work, text, text, "TIMEOUT", Place.WORK_TIMED_OUT)
                return
        due = [self._sees_at(work) for work in self._works]
        self._process.simulation.move_deadline(self, min(due, default=None))

    def notice_device_error(self, error: BaseException) -> None:
        """End the watchdog with the error of a failed kernel, when it next queries the device."""
        process = self._process
        if self._group.environment.blocking_wait:
            return

        def look() -> None:
            self._terminate(f"{self._group._prefix()}Process group watchdog thread terminated with exception: {error}")

        process.simulation.call_at(self.tick_after(process.simulation.now_ns + 1), lambda: when_it_runs(process, look))

    def lose_devices(self, error: BaseException) -> None:
        """Report broken devices to the watchdog, which notices them only if it has a work to query."""
        if self._works and not self._failing:
            self.notice_device_error(error)

    def _fail(self, work: NcclWork, said: str, error: str, kind: str, place: Place) -> None:
        """Log a failed work, ask for dumps, sleep, and then act on the failure."""
        self._failing = True
        group, process, environment = self._group, self._process, self._group.environment
        self._process.simulation.move_deadline(self, None)
        group.set_error(kind, work)
        prefix = group._prefix()
        log(process, "E", said, place)
        if self._desync is not None and kind == "TIMEOUT":
            self._desync.run()
        enqueued, completed = group.progress()
        log(
            process,
            "E",
            f"{prefix} failure detected by watchdog at work sequence id: {work.number} PG status: last enqueued work: "
            f"{enqueued}, last completed work: {completed}",
            Place.WATCHDOG_FOUND,
        )
        entry = self._works[work]
        log(process, "E", _stack_text(entry), Place.WORK_HAS_NO_STACK if entry is None else Place.WORK_STACK)
        if group.remote_errors is not None:
            group.remote_errors.report()
        ask_for_dumps(group)
        act_ns = self._acts_ns = process.simulation.now_ns + environment.pause_ns
        assert group.monitor is not None
        group.monitor.watchdog_stands_still(act_ns)
        process.simulation.call_at(act_ns, lambda: when_it_runs(process, lambda: self._act(work, error, _RAISED[kind])))

    def _act(self, work: NcclWork, error: str, raised_at: str) -> None:
        process, environment, group = self._process, self._group.environment, self._group
        if environment.cleans_up:
            group.abort_connections()
        for said, place in FAILED_LINES if environment.tears_down else FAILED_LINES[:1]:
            log(process, "E", f"{group.nccl.work_prefix(group)}{said}", place)
        if environment.tears_down:
            self._works.clear()
            self._terminate(
                f"{group._prefix()}Process group watchdog thread terminated with exception: {error}\nException raised "
                f"from {raised_at}"
            )
        else:  # it counts the work as done, and goes on with the next
            self._works.pop(work, None)
            group.count_done(work)
            self._failing = False
            self._look()

    def _terminate(self, what: str) -> None:
        """End the watchdog's thread by an exception, which ends the process unless a variable forbids that."""
        process = self._process
        self._group.dump_extra()
        log(process, "E", what, Place.WATCHDOG_ENDED)
        if not self._group.environment.rethrows:
            self._failing = True
            assert self._group.monitor is not None
            self._group.monitor.watchdog_stands_still(None)
            return
        process.add_output(
            "stderr", f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {what}\n"
        )
        process.kill(signal.SIGABRT)


def _stack_text(entry: Entry | None) -> str:
    if entry is None:
        return _NO_STACK
    lines = [
        f"#{place} {code.co_name} from {code.co_filename}:{line}" for place, (code, line) in enumerate(entry.frames)
    ]
    return "Stack trace of the failed collective: \n" + "\n".join(lines) + "\n"
