"""The watchdog of a group: what becomes of an operation that does not end (torch 2.13).

It looks every 100 ms. When a work is older than its timeout, or NCCL has reported an error, it says so, asks all
processes of the job to dump (`_monitor`), sleeps for a minute and takes its process down, whatever the program does
meanwhile. It is a thread in torch, and timers here: they begin with the first thing that there is to do.

With TORCH_NCCL_BLOCKING_WAIT there is neither it nor a monitor: waits on the host have the timeout themselves.
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
    """Watches the works of one rank's group. It is an `Expiring` of the simulation while there are any."""

    def __init__(self, group: WatchedMember, rank_nccl: RankNccl) -> None:
        self._group = group
        self._nccl = rank_nccl
        self._process = rank_nccl.process
        self._begin_ns = self._process.simulation.now_ns
        self._works: dict[NcclWork, Entry | None] = {}  # that it has not seen the end of, and the record of their calls
        self._keeps_works = False  # they end by an abort, after which it looks at their communicator first
        self._failing = False  # it has found something, and sleeps, or has ended by that
        self._acts_ns = -1  # until when it sleeps
        self._desync = DesyncDebugger(group) if group.environment.desync else None
        self.deadline_ns: int | None = None

    @property
    def is_failing(self) -> bool:
        """It has found something, and sleeps before it acts on it."""
        return self._failing

    def tick_after(self, time_ns: int) -> int:
        """When it looks for the first time at or after `time_ns`."""
        return self._begin_ns - (self._begin_ns - time_ns) // _EVERY_NS * _EVERY_NS

    def watch(self, work: NcclWork) -> None:
        """A work was launched."""
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
        """When it finds that the work has had its time."""
        late_ns = work.member.communicator.backend.failure.late_ns
        return self.tick_after(work.issued_ns + work.timeout_ns + late_ns)

    def forget(self, work: NcclWork) -> None:
        """A work is over."""
        if work not in self._works or self._keeps_works:
            return
        if self._desync is not None:
            self._desync.ended(work)
        del self._works[work]
        if not self._works:
            self._process.simulation.move_deadline(self, None)

    def watches(self, work: NcclWork) -> bool:
        """It has not seen that a work is over."""
        return work in self._works

    @contextlib.contextmanager
    def keep_works(self) -> Iterator[None]:
        """Inside, works end because their communicator is aborted while it goes round: it does not see that they do."""
        self._keeps_works = True
        try:
            yield
        finally:
            self._keeps_works = False

    def join(self) -> None:
        """Park until it has ended: it sleeps to the end, and then acts on what it has found."""
        simulation = self._process.simulation
        while simulation.now_ns < self._acts_ns:
            simulation.sleep(self._acts_ns - simulation.now_ns)

    def flush(self) -> None:
        """It is woken, to look at its works for the last time."""
        if self._desync is not None:
            self._desync.look()

    def stop(self) -> None:
        """The group is shut down."""
        self._works.clear()
        self._process.simulation.move_deadline(self, None)

    def expire(self) -> None:
        """A work may be older than its timeout."""
        self.deadline_ns = None
        when_it_runs(self._process, self._look)

    def notice(self) -> None:
        """NCCL has reported an error of a communicator: the watchdog sees it when it next looks."""
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
        """A kernel has failed on the device: the watchdog meets that when it next asks the device."""
        process = self._process
        if self._group.environment.blocking_wait:
            return

        def look() -> None:
            self._terminate(f"{self._group._prefix()}Process group watchdog thread terminated with exception: {error}")

        process.simulation.call_at(self.tick_after(process.simulation.now_ns + 1), lambda: when_it_runs(process, look))

    def lose_devices(self, error: BaseException) -> None:
        """The devices are broken: the watchdog meets that if there is a work to ask them about."""
        if self._works and not self._failing:
            self.notice_device_error(error)

    def _fail(self, work: NcclWork, said: str, error: str, kind: str, place: Place) -> None:
        """A work has failed: say so, ask for dumps, sleep, and act on it."""
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
        else:  # it takes the work for done, and comes to the next
            self._works.pop(work, None)
            group.count_done(work)
            self._failing = False
            self._look()

    def _terminate(self, what: str) -> None:
        """The watchdog's thread ends by an exception, and takes the process with it unless a variable forbids that."""
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
