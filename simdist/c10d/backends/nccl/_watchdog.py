"""The watchdog of a group and the monitor of a process: what becomes of an operation that does not end (torch 2.13).

The watchdog looks every 100 ms. When a work is older than its timeout, or NCCL has told of an error, it says so, asks
all processes of the job to dump, sleeps for a minute and takes its process down. The monitor of each process looks
every second whether anybody has asked for a dump; it dumps, and some minutes later ends a process that has not been
shut down by then. Both are threads in torch, and timers here: they begin with the first thing that there is to do.

With TORCH_NCCL_BLOCKING_WAIT there is neither: waits on the host have the timeout themselves.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from simdist.c10d.backends.nccl._desync import desync_report, propagate
from simdist.c10d.backends.nccl._log import log
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._rank import RankNccl
    from simdist.c10d.backends.nccl._work import NcclWork

__all__ = ["Monitor", "Watchdog", "failed_lines"]

_EVERY_NS = 100_000_000
_CORRUPTED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU "
    "operations might run on corrupted/incomplete data."
)
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
_LIKELY = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
_NO_STACK = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it "
    "by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)


def failed_lines(handling: int) -> Sequence[str]:
    """What is said before a process goes down, or goes on."""
    return (_CORRUPTED, _DOWN) if handling in (1, 3) else (_CORRUPTED,)


def _when_it_runs(process: SimProcess, action: Callable[[], None]) -> None:
    """Do what a thread of a process does: now, or when the process goes on after a stop; never if it is gone."""
    if not process.running:
        return
    if any(task.paused for task in process.tasks):
        process.resume_listeners.append(lambda: _when_it_runs(process, action))
    else:
        action()


class Watchdog:
    """Watches the works of one rank's group. It is an `Expiring` of the simulation while there are any."""

    def __init__(self, group: Any, rank_nccl: RankNccl) -> None:
        self._group = group
        self._nccl = rank_nccl
        self._process = rank_nccl.process
        self._begin_ns = self._process.simulation.now_ns
        self._works: dict[NcclWork, None] = {}
        self._failing = False  # it has found something, and sleeps
        self.deadline_ns: int | None = None

    def tick_after(self, time_ns: int) -> int:
        """When it looks for the first time at or after `time_ns`."""
        return self._begin_ns - (self._begin_ns - time_ns) // _EVERY_NS * _EVERY_NS

    def watch(self, work: NcclWork) -> None:
        """A work was launched."""
        if self._nccl.environment.blocking_wait or self._failing or work.done:
            return
        self._works[work] = None
        due_ns = self.tick_after(work.issued_ns + work.timeout_ns)
        if self.deadline_ns is None or due_ns < self.deadline_ns:
            self._set(due_ns)

    def forget(self, work: NcclWork) -> None:
        """A work is over."""
        if self._works.pop(work, work) is None and not self._works:
            self._set(None)

    def stop(self) -> None:
        """The group is shut down."""
        self._works.clear()
        self._set(None)

    def _set(self, deadline_ns: int | None) -> None:
        simulation = self._process.simulation
        simulation.unwatch_deadline(self)
        self.deadline_ns = deadline_ns
        if deadline_ns is not None:
            simulation.watch_deadline(self)

    def expire(self) -> None:
        """A work may be older than its timeout."""
        self.deadline_ns = None
        _when_it_runs(self._process, self._look)

    def _look(self) -> None:
        now_ns = self._process.simulation.now_ns
        for work in self._works:
            if now_ns >= work.issued_ns + work.timeout_ns:
                elapsed_ms = (now_ns - work.issued_ns) // 1_000_000
                self.fail(work, work.timeout_text(elapsed_ms), "TIMEOUT", 693)
                return
        due = [self.tick_after(work.issued_ns + work.timeout_ns) for work in self._works]
        if due:
            self._set(min(due))

    def notice(self, work: NcclWork, text: str) -> None:
        """NCCL has told of an error in a work: the watchdog sees it when it next looks."""
        simulation = self._process.simulation

        def look() -> None:
            if not work.done and not self._failing:
                said = (
                    f"[Rank {self._nccl.process.rank}] Collective {work} raised the following async exception: {text}"
                )
                self.fail(work, said, "COMM_ERROR", 1944)

        simulation.call_at(self.tick_after(simulation.now_ns), lambda: _when_it_runs(self._process, look))

    def notice_device_error(self, error: BaseException) -> None:
        """A kernel has failed on the device: the watchdog meets that when it next asks the device."""
        process = self._process

        def look() -> None:
            self._terminate(f"{self._group._prefix()}Process group watchdog thread terminated with exception: {error}")

        process.simulation.call_at(self.tick_after(process.simulation.now_ns + 1), lambda: _when_it_runs(process, look))

    def fail(self, work: NcclWork, text: str, kind: str, line: int) -> None:
        """A work has failed: say so, ask for dumps, sleep, and act on it."""
        self._failing = True
        group, process, environment = self._group, self._process, self._nccl.environment
        self._set(None)
        group.set_error(kind)
        prefix = group._prefix()
        log(process, "E", text, line)
        if environment.desync and kind == "TIMEOUT":
            log(process, "E", f"Rank {group.rank()}{desync_report(group)}", 700)
        if environment.propagates:
            propagate(group, _when_it_runs)
        enqueued, completed = group.progress()
        log(
            process,
            "E",
            f"{prefix} failure detected by watchdog at work sequence id: {work.number} PG status: last enqueued work: "
            f"{enqueued}, last completed work: {completed}",
            2404,
        )
        log(process, "E", _stack_text(work), 750)
        if environment.dump_on_timeout and self._nccl.monitor is not None:
            self._nccl.monitor.signal(group)
        act_ns = process.simulation.now_ns + environment.pause_ns
        process.simulation.call_at(act_ns, lambda: _when_it_runs(process, lambda: self._act(text)))

    def _act(self, text: str) -> None:
        process, handling, group = self._process, self._nccl.environment.handling, self._group
        if group.closed:
            return
        for said in failed_lines(handling):
            log(process, "E", f"[Rank {process.rank}] {said}", 758)
        self._works.clear()
        if handling in (1, 2):
            group.abort_because(text)
        if handling not in (1, 3):
            self._failing = False
            return
        what = (
            f"{group._prefix()}Process group watchdog thread terminated with exception: {text}\nException raised from "
            "checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:693"
        )
        self._terminate(what)

    def _terminate(self, what: str) -> None:
        """The watchdog's thread ends by an exception, and takes the process with it unless it is told not to."""
        process = self._process
        log(process, "E", what, 2160)
        if not self._nccl.environment.rethrows:
            return
        process.add_output(
            "stderr", f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {what}\n"
        )
        process.kill(signal.SIGABRT)


def _stack_text(work: NcclWork) -> str:
    entry = work.entry
    if entry is None:
        return _NO_STACK
    lines = [
        f"#{place} {code.co_name} from {code.co_filename}:{line}" for place, (code, line) in enumerate(entry.frames)
    ]
    return "Stack trace of the failed collective: \n" + "\n".join(lines) + "\n"


class Monitor:
    """Dumps when anybody in the job asks for it. `peers` are the monitors of all processes that share a store."""

    def __init__(self, group: Any, rank_nccl: RankNccl, store: Any) -> None:
        self._group = group
        self._nccl = rank_nccl
        self._process = rank_nccl.process
        self._begin_ns = self._process.simulation.now_ns
        self._store = store
        self._asked = False
        self.peers: list[Monitor] = store.server.monitors
        self.peers.append(self)

    def signal(self, group: Any) -> None:
        """A watchdog of this process has found something."""
        if self._asked:
            return
        log(self._process, "E", f"{group._prefix()}First PG on this rank to signal dumping.", 2449)
        rank = self._process.rank
        root = self._store
        while hasattr(root, "underlying_store"):
            root = root.underlying_store
        if not root.server.gone:
            root.server.data["exception_dump"] = struct.pack("<i", rank)
            root.server.changed("exception_dump")
        for peer in self.peers:
            peer._hear(rank)

    def _hear(self, rank: int) -> None:
        if self._asked or not self._process.running or self._group.closed:
            return
        self._asked = True
        simulation = self._process.simulation
        every_ns = self._nccl.environment.check_ns
        passed = (simulation.now_ns - self._begin_ns) // every_ns + 1
        simulation.call_at(
            self._begin_ns + passed * every_ns, lambda: _when_it_runs(self._process, lambda: self._dump(rank))
        )

    def _dump(self, rank: int) -> None:
        process, environment, prefix = self._process, self._nccl.environment, self._group._prefix()
        if self._group.closed:
            return
        own = rank == process.rank
        file = "HeartbeatMonitor.cpp"
        if not own:
            observed = "Observed flight recorder dump signal from another rank via TCPStore."
            log(process, "E", f"{prefix}{observed}", 1682, file)
        enqueued, completed = self._group.progress()
        log(
            process,
            "E",
            f"{prefix}Received a dump signal due to a collective timeout from "
            f"{'this local rank' if own else f'rank {rank}'} and we will try our best to dump the debug info. Last "
            f"enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.{_LIKELY}",
            1743,
            file,
        )
        preparing = "ProcessGroupNCCL preparing to dump debug info. Include stack trace: "
        kind = f"{environment.dumps_stacks:d}, only active collectives: {environment.dumps_active_only:d}"
        log(process, "E", f"{prefix}{preparing}{kind}", 1533, file)
        now_ns = process.simulation.now_ns
        self._nccl.write_dump()
        process.simulation.call_at(now_ns + environment.heartbeat_ns, lambda: _when_it_runs(process, self._end))

    def _end(self) -> None:
        process, prefix = self._process, self._group._prefix()
        if self._group.closed:
            return
        reason = "due to collective timeout or exception."
        if not self._nccl.environment.monitored:
            text = (
                f"{prefix}ProcessGroupNCCL monitor thread is disabled, but would have terminated the process"
                f"after attempting to dump debug info, {reason}"
            )
            log(process, "E", text, 1811, "HeartbeatMonitor.cpp")
            return
        text = f"{prefix}Terminating the process after attempting to dump debug info, {reason}"
        log(process, "F", f"{prefix}{text}", 1571, "HeartbeatMonitor.cpp")
        process.kill(signal.SIGABRT)
