"""The monitor of a group: it dumps on request, and ends a process that hangs (torch 2.13).

The monitor of a process's first group checks every second whether a watchdog of the job has asked for dumps, and reads
the process's pipe. Every monitor checks every eight minutes whether its group's watchdog still runs. It reports what it
finds, and some minutes later it ends the process, if the group has not been shut down by then. In torch it is a thread;
here it is a set of timers, which start with the first event that it has to look at.
"""

from __future__ import annotations

import functools
import os
import signal
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.c10d.backends.nccl._environment import DumpEnvironment
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl.watch._pipe import DumpPipe
from simdist.inside.torch import Place
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.watch._rank import RankNccl
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember
    from simdist.c10d.surface._store import SimStore

__all__ = ["Monitor", "Poller", "ask_for_dumps", "broadcast", "dump", "put", "when_it_runs"]

_KEY = "exception_dump"
_LIKELY = (
    "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of "
    "collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. Additionally, "
    "this can be caused by GIL deadlock or other reasons such as network errors or bugs in the communications library "
    "(e.g. NCCL), etc. "
)
_STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for {} seconds without making progress in monitoring enqueued collectives. "
    "This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be "
    "triggered by another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other "
    "deadlock-prone behaviors.If you suspect the watchdog is not actually stuck and a longer timeout would help, you "
    "can either increase the timeout (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat "
    "monitor (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch "
    "about the short timeout or false positive abort; otherwise, please attempt to debug the hang. "
)


def when_it_runs(process: SimProcess, action: Callable[[], None]) -> None:
    """Run an action of a process's thread: now, or when the stopped process resumes; never if the process is gone."""
    if not process.running:
        return
    if any(task.paused for task in process.tasks):
        process.resume_listeners.append(lambda: when_it_runs(process, action))
    else:
        action()


def ask_for_dumps(group: WatchedMember) -> None:
    """Ask all processes of the job for a dump, including this one; log this the first time on this rank."""
    nccl, store = group.nccl, group._store
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    server = store.server
    broadcast(group, store, _KEY, nccl.global_rank)
    if not nccl.dump_is_due:
        log(nccl.process, "E", f"{group._prefix()}First PG on this rank to signal dumping.", Place.DUMP_FIRST)
        nccl.dump_is_due = True
    if nccl.monitor is not None:
        nccl.monitor.notice()
    for monitor in server.monitors:
        monitor.notice()


def broadcast(group: WatchedMember, store: SimStore, signal: str, rank: int) -> None:
    """Set the name of a signal in a store to a rank's number, as a thread of torch does."""
    try:
        put(group.nccl.process, store, signal, struct.pack("<i", rank))
    except dist.DistNetworkError as error:
        text = f"{group._prefix()}Failed to broadcast signal {signal} through TCPStore. Error: {error}"
        log(group.nccl.process, "E", text, Place.SIGNAL_NOT_SENT)
    else:
        group.informer.say(f"Broadcasting signal {signal} to other ranks via TCPStore.", Place.SIGNAL_SENT)


def put(process: SimProcess, store: SimStore, key: str, value: bytes) -> None:
    """Set a key on behalf of a thread of torch; the program does not wait for it.

    Raises:
        DistNetworkError: the rank knows that the store is gone.
    """
    store.require_server(process, "")
    server, name = store.server, store._name(key)

    def arrive() -> None:
        server.data[name] = value
        server.changed(name)

    server.take(arrive)  # if the server has just gone, the value is lost silently


def dump(group: WatchedMember, *, frames: bool | None = None, retried: bool = False) -> bool:
    """Dump with stacks, without, or as the environment says (None); False if nothing is recorded."""
    nccl = group.nccl
    try:
        environment = DumpEnvironment.read(nccl.variables())
    except RuntimeError as error:
        _die(nccl.process, error)
        return True
    stacks = not retried and (environment.stacks if frames is None else frames)
    preparing = "ProcessGroupNCCL preparing to dump debug info. Include stack trace: "
    kind = f"{stacks:d}, only active collectives: {environment.active_only:d}"
    log(nccl.process, "E", f"{group._prefix()}{preparing}{kind}", Place.DUMP_PREPARED)
    written: bool = nccl.write_dump(group.informer.say, frames=stacks, active=environment.active_only)
    return written


def _die(process: SimProcess, error: RuntimeError) -> None:
    """End the process, as an exception in the monitor's thread does."""
    text = f"terminate called after throwing an instance of 'c10::Error'\n  what():  {error}\n"
    process.add_output("stderr", text)
    process.kill(signal.SIGABRT)


class Poller:
    """A periodic check that goes on as long as the simulation has other events."""

    _process: SimProcess

    def go_round(self, next_ns: int) -> None:
        """Schedule the next check, if the simulation has other events."""
        simulation = self._process.simulation
        others = (thing for _, thing in simulation.deadlines() if not isinstance(thing, Poller))
        if any(True for _ in simulation.timers()) or any(True for _ in others):
            simulation.move_deadline(self, next_ns)  # type: ignore[arg-type]  # subclasses expire


class Monitor(Poller):
    """The monitor of one group on one rank.

    It is an `Expiring` of the simulation while it has a pipe to read, or a store that no longer answers.
    """

    def __init__(self, group: WatchedMember, nccl: RankNccl) -> None:
        environment = group.environment
        self._group = group
        self._nccl = nccl
        self._process = nccl.process
        self._begin_ns = self._process.simulation.now_ns
        self._heartbeat_ns = environment.heartbeat_ns
        self._answers = group.uid == 0 and environment.dump_on_timeout  # it checks for requests to dump
        self._every_ns = max(environment.check_ns if self._answers else self._heartbeat_ns, 1_000_000)
        self._looks = False  # a check at its next tick is scheduled
        self._over = False  # it has stopped, or has found something and will end the process
        self._found_ns: int | None = None  # when it found something
        self._pipe: DumpPipe | None = None
        self.deadline_ns: int | None = None

    def begin(self, store: SimStore) -> None:
        """Start with a new group."""
        if self._answers:
            store.server.monitors.append(self)
        path = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
        if self._group.uid == 0 and path and self._nccl.recorder.limit:
            self._open(f"{path}{self._nccl.global_rank}.pipe")

    def retire(self) -> None:
        """Stop because the group is shut down."""
        if self._found_ns is not None:
            seconds = -(-(self._process.simulation.now_ns - self._found_ns) // 1_000_000_000)
            if 0 < seconds < self._heartbeat_ns // 1_000_000_000:
                self._group.informer.say(
                    f"slept for {seconds} seconds because we want to wait longer to verify there is indeed a watchdog "
                    "hang.",
                    Place.MONITOR_SLEPT,
                )
        self.stop()

    def stop(self) -> None:
        """Stop for good."""
        self._over = True
        self._process.simulation.move_deadline(self, None)
        if self._pipe is not None:
            self._pipe.close()

    def _next_ns(self) -> int:
        passed = (self._process.simulation.now_ns - self._begin_ns) // self._every_ns + 1
        moment_ns: int = self._begin_ns + passed * self._every_ns
        return moment_ns

    def _call_at(self, moment_ns: int, action: Callable[[], None]) -> None:
        self._process.simulation.call_at(moment_ns, lambda: when_it_runs(self._process, action))

    # -- requests to dump --------------------------------------------------------------------------------------------

    def notice(self) -> None:
        """Schedule a check for requests to dump, if this monitor makes such checks."""
        if self._answers and not self._over and not self._looks:
            self._looks = True
            self._call_at(self._next_ns(), self._look)

    def _look(self) -> None:
        self._looks = False
        store, nccl, prefix = self._group._store, self._nccl, self._group._prefix()
        if self._over:
            return
        whose = "this local rank"
        if not nccl.dump_is_due:
            try:
                store.require_server(self._process)
            except dist.DistNetworkError as error:
                failed = (
                    'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too '
                    "early), with error: "
                )
                if Place.MONITOR_HAS_NO_STORE.is_there:
                    log(self._process, "W", f"{prefix}{failed}{error}", Place.MONITOR_HAS_NO_STORE)
                self.go_round(self._next_ns())
                return
            value = store.server.data.get(_KEY)
            if value is None:
                return
            observed = "Observed flight recorder dump signal from another rank via TCPStore."
            log(self._process, "E", f"{prefix}{observed}", Place.MONITOR_SAW_SIGNAL)
            nccl.dump_is_due = True
            whose = f" rank {struct.unpack('<i', value)[0]}"  # torch prints two blanks here
        enqueued, completed = self._group.progress()
        said = (
            f"{prefix}Received a dump signal due to a collective timeout from {whose} and we will try our best to dump "
            f"the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.{_LIKELY}"
        )
        self._find(said, "collective timeout or exception")

    def _find(self, said: str, reason: str) -> None:
        """Stop the checks, report what was found, dump, and schedule the end of the process."""
        self._over = True
        self._found_ns = self._process.simulation.now_ns
        log(self._process, "E", said, Place.MONITOR_FOUND)
        if self._answers:
            said_well = "Finished flight recorder successfully. Output can be analyzed using the fr_trace script."
            if dump(self._group) or dump(self._group, retried=True):
                self._group.informer.say(said_well, Place.MONITOR_DUMPED)
        self._call_at(self._process.simulation.now_ns + self._heartbeat_ns, functools.partial(self._end, reason))

    def _end(self, reason: str) -> None:
        process, prefix = self._process, self._group._prefix()
        if self._group.closed:
            return
        if not self._group.environment.monitored:
            text = (
                f"{prefix}ProcessGroupNCCL monitor thread is disabled, but would have terminated the process"
                f"after attempting to dump debug info, due to {reason}."
            )
            log(process, "E", text, Place.MONITOR_SPARES)
            return
        text = f"{prefix}Terminating the process after attempting to dump debug info, due to {reason}."
        log(process, "F", f"{prefix}{text}", Place.MONITOR_TERMINATES)
        process.kill(signal.SIGABRT)

    # -- a watchdog that hangs ---------------------------------------------------------------------------------------

    def watchdog_stands_still(self, until_ns: int | None) -> None:
        """Note that the group's watchdog does nothing until `until_ns`; None: never again."""
        beat_ns, now_ns = self._heartbeat_ns, self._process.simulation.now_ns
        if beat_ns <= 0:
            return
        rounds = -(-(now_ns - self._begin_ns) // beat_ns)  # until it has seen the watchdog's last heartbeat
        found_ns = self._begin_ns + (rounds + 1) * beat_ns
        if until_ns is None or found_ns < until_ns:
            self._call_at(found_ns, self._find_stuck)

    def _find_stuck(self) -> None:
        if not self._over:
            self._nccl.dump_is_due = True
            seconds = self._heartbeat_ns // 1_000_000_000
            text = f"{self._group._prefix()}{_STUCK.format(seconds)}"
            self._find(text, "ProcessGroupNCCL watchdog hang")

    # -- the pipe ----------------------------------------------------------------------------------------------------

    def _open(self, path: str) -> None:
        try:
            self._pipe = DumpPipe(path)
        except RuntimeError as error:  # the monitor's thread fails
            self._call_at(self._begin_ns, functools.partial(_die, self._process, error))
            return
        self._group.informer.say(
            f"Pipe file {path} has been opened, write to it to trigger NCCL Debug Dump.",
            Place.PIPE_OPENED,
            prefixed=False,
        )
        self._process.simulation.move_deadline(self, self._next_ns())

    def expire(self) -> None:
        """Check the pipe and the store; called at the deadline."""
        self.deadline_ns = None
        when_it_runs(self._process, self._turn)

    def _turn(self) -> None:
        if self._answers and self._group._store.server.gone and not self._looks:
            self._look()
        if self._over:
            return
        if self._pipe is not None and self._pipe.asks():
            self._group.informer.say("Dump signal received through pipe, triggering FR dump.", Place.PIPE_READ)
            dump(self._group, frames=True)
        if self._pipe is not None:
            self.go_round(self._next_ns())  # if nothing else happens, no rank writes into the pipe
