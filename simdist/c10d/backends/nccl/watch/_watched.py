"""One rank's ProcessGroupNCCL: the interface for its watchdog, monitor and recorder, and its end.

A group ends by an error, by destroy, by abort, or at the end of the program.

Circle of imports: a group owns its works, watchdog and monitor, and each of these gets the others from its group.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch

from simdist.c10d.backends.nccl._errors import async_error
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.backends.nccl.watch._monitor import ask_for_dumps, dump
from simdist.c10d.surface._identity import GroupBackend
from simdist.inside.torch import Place, c10d_bindings
from simdist.records import flight_status

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._environment import Environment
    from simdist.c10d.backends.nccl._timing import Hook
    from simdist.c10d.backends.nccl.watch._information import Informer
    from simdist.c10d.backends.nccl.watch._monitor import Monitor
    from simdist.c10d.backends.nccl.watch._rank import RankNccl
    from simdist.c10d.backends.nccl.watch._remote_errors import RemoteErrors
    from simdist.c10d.backends.nccl.watch._watchdog import Watchdog
    from simdist.c10d.calls._futures import SimFuture
    from simdist.c10d.calls._member import Member
    from simdist.c10d.engine._streamed import Connection, StreamCommunicator

__all__ = ["WatchedMember"]


class WatchedMember(GroupBackend):
    """A rank's end of a group: what its watchdog, monitor and recorder read, and its shutdown."""

    _communicator: StreamCommunicator
    _nccl: RankNccl
    _connections: dict[str, Connection]  # by device, or by the two ranks
    watchdog: Watchdog
    monitor: Monitor | None
    informer: Informer
    hook: Hook | None  # called for each finished work
    closed: bool  # it was shut down, or the program has aborted it
    errors: dict[Connection, str]  # errors of communicators that NCCL has reported, with torch's texts
    dead: dict[Connection, str]  # aborted communicators, and the reason, if one was given
    _is_joined: bool  # the end of its watchdog was waited for
    _error: str  # the first error of the group
    environment: Environment
    remote_errors: RemoteErrors | None
    timing: bool  # the durations of works are measured
    shelf: list[list[torch.Tensor]]  # tensors of finished works; the next call releases them
    _uid: int
    _begun: list[NcclWork]  # collectives among which the last one that has begun is found
    _ended_ns: int  # when the last work ended
    _enqueued: int  # the number of the last call
    _completed: int  # the number of the last finished call
    _extra_ns: int  # added to every work's timeout
    _extra_taken_ns: int  # the part of it that launched works give back when they end
    results: dict[NcclWork, list[SimFuture]]  # futures of the results of works

    @property
    def nccl(self) -> RankNccl:
        """The state that NCCL keeps for the rank's process."""
        return self._nccl

    @property
    def member(self) -> Member:
        """The rank's end of the group."""
        return self._member

    @property
    def uid(self) -> int:
        """The number of the group among those of its process."""
        return self._uid

    def _prefix(self) -> str:
        described = self._description not in ("", "undefined")
        about = f"({self._description})" if described else ""
        return f"[PG ID {self.uid} PG GUID {self._name}{about} Rank {self.rank()}] "

    def _warn(self, level: str, text: str, place: Place) -> None:
        """Write a line with the group's prefix to torch's log."""
        log(self._member.process, level, f"{self._prefix()}{text}", place)

    def keep_begun(self, work: NcclWork) -> None:
        """Remember a launched collective, in a group with timing, for `last_begun`."""
        if self.timing:
            now_ns = self._communicator.simulation.now_ns
            over = [each for each in self._begun if each.done]
            self._begun = [*over[-1:], *(each for each in self._begun if not each.done), work]
            assert now_ns >= work.issued_ns

    def last_begun(self) -> tuple[int, str, bool] | None:
        """Return the last collective whose kernel has begun: its number, its name, and whether it is over."""
        now_ns = self._communicator.simulation.now_ns
        begun = [work for work in self._begun if work.has_begun(now_ns)]
        return (begun[-1].number, begun[-1].op_type, begun[-1].done) if begun else None

    # -- for the watchdog ----------------------------------------------------------------------------------------

    def progress(self) -> tuple[int, int]:
        """Return the numbers of the last launched work and of the last finished one; -1 for none."""
        return self._enqueued, self._completed

    def status(self) -> dict[str, int]:
        """Return the same for the flight record, with the last collective that has begun."""
        begun = self.last_begun()
        return flight_status(*self.progress(), -1 if begun is None else begun[0])

    def count_done(self, work: NcclWork) -> None:
        """Count a work as done, as the watchdog does."""
        if not self.environment.blocking_wait:
            self._completed = work.number

    def on_done(self, work: NcclWork) -> None:
        """Note that a work is over."""
        self.watchdog.forget(work)
        self._ended_ns = max(self._ended_ns, work.ended_ns)
        if not work.aborted:
            self._extra_ns -= work.extra_ns
            self._extra_taken_ns -= work.extra_ns
            self.count_done(work)
            if self.hook is not None:
                self.hook.over(work)
        if work in self.results and not self.watchdog.watches(work):
            self.settle_results_later(work)

    # -- its end ------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Wait for the queued works, and end the communicators."""
        inform = self.informer
        inform.say("Starting to destroy process group, flushing operations.", Place.DESTROY_BEGUN)
        if not self.closed:
            self._drain()
        inform.say("Operations flushed, joining watchdog thread.", Place.DESTROY_FLUSHED)
        self._join_watchdog()
        self._close()
        inform.say("Watchdog joined, destroying NCCL communicators.", Place.DESTROY_WATCHED)
        inform.say("Destroy complete.", Place.DESTROY_ENDED)

    def let_end(self, until_ns: int) -> None:
        """Wait for the launched works, but no longer than until `until_ns`."""
        simulation = self._communicator.simulation
        for work in list(self._member.pending):
            while not work.done and simulation.now_ns < until_ns:
                if not simulation.park(work, until_ns):
                    return

    def abort(self) -> None:
        """End the communicators at once: streams are free, and works in flight leave garbage."""
        self.dump_extra()
        self.informer.say("Launching ProcessGroupNCCL abort asynchronously.", Place.ABORT_LAUNCHED)
        self.release()
        self._close()
        self.informer.say("ProcessGroupNCCL aborts successfully.", Place.ABORTED)

    def leave(self) -> None:
        """Destroy the group's C++ object, after torch has forgotten the group."""
        super().leave()
        if self.closed:
            self.informer.say("ProcessGroupNCCL destructor entered.", Place.DESTRUCTOR)
            self.end_threads()

    def end_threads(self) -> None:
        """End the group's threads, as its destructor does."""
        self._join_watchdog()
        self.informer.monitor_joined()

    def _join_watchdog(self) -> None:
        if not self._is_joined:
            self.watchdog.flush()
            self.watchdog.join()
            self.informer.joined()
        self._is_joined = True

    def dump_extra(self) -> None:
        """Dump and ask all others to, if TORCH_NCCL_EXTRA_DUMP_ON_EXEC is set and no dump was requested yet."""
        nccl = self._nccl
        if nccl.dump_is_due or not nccl.variables().truth(False, "TORCH_NCCL_EXTRA_DUMP_ON_EXEC"):
            return
        nccl.dump_is_due = True
        self.informer.say("Sending extra dumping signal", Place.DUMP_EXTRA)
        ask_for_dumps(self)
        dump(self, frames=False)

    def _close(self) -> None:
        self.closed = True
        self.watchdog.flush()
        self.watchdog.stop()
        if self.monitor is not None:
            self.monitor.retire()

    # -- what goes wrong -----------------------------------------------------------------------------------------

    def get_error(self) -> object:
        """Return the first error of the group, as torch's `ErrorType`."""
        return c10d_bindings.ErrorType.__members__[self._error]

    def error_kind(self) -> str:
        """Return the name of the first error of the group."""
        return self._error

    def set_error(self, kind: str, work: NcclWork | None = None) -> None:
        """Set the group's error, if it has none yet, and the result of a failed work."""
        if self._error == "SUCCESS":
            self._error = kind
        if work is not None:
            self.settle_results(work, kind)

    def settle_results(self, work: NcclWork, kind: str) -> None:
        """Complete the futures of a work's result."""
        result = int(c10d_bindings.WorkResult.__members__[kind])
        for future in self.results.pop(work, ()):
            work.process.deliver(functools.partial(future.set_result, result))

    def settle_results_later(self, work: NcclWork) -> None:
        """Complete the result futures of a finished work when the watchdog sees its end; never without a watchdog."""
        if self.environment.blocking_wait:
            return
        seen_ns = max(self.watchdog.tick_after(work.ended_ns), self._communicator.simulation.now_ns)
        self._communicator.simulation.call_at(seen_ns, lambda: self.settle_results(work, "SUCCESS"))

    def report_error(self, connection: Connection, text: str) -> None:
        """Note an error of a communicator that NCCL reports; waits see it now, the watchdog at its next look."""
        self.errors.setdefault(connection, text)
        self._member.process.wake()
        self.watchdog.notice()

    def abort_connections(self, connections: Iterable[Connection] = (), reason: str = "") -> None:
        """Abort some communicators, or all, without a call of the program.

        An aborted communicator has an error, which the watchdog finds in all works whose end it has not seen.
        """
        found = [each for each in connections or self._connections.values() if each not in self.dead]
        with self.watchdog.keep_works():
            self.release(found)
        for connection in found:
            self.dead[connection] = reason
            if reason:
                self.errors[connection] = f"NCCL communicator encountered error set by ProcessGroupNCCL: {reason}"
            self.report_error(connection, async_error("ncclSystemError", self._nccl.last_warning))

    def release(self, connections: Collection[Connection] | None = None) -> None:
        """End the works in flight, on some communicators or all: streams are free, and the data is garbage.

        Collectives that all ranks have called still finish: an abort takes a real process longer than that.
        """
        now_ns = self._communicator.simulation.now_ns
        connections = list(self._connections.values()) if connections is None else connections
        for work in list(self._member.pending):
            if isinstance(work, NcclWork) and work.connection in connections:
                wholes = [part.whole for part in work.calls]
                work.aborted = any(whole is None or whole.is_endless for whole in wholes)
        for connection in connections:
            connection.release(self.rank(), now_ns)
            connection.leave(self.rank(), at_once=False)

    def _drain(self) -> None:
        for work in list(self._member.pending):
            if isinstance(work, NcclWork):
                work.streams.wait_for(work.end, heeds_errors=False)
        if self.hook is not None:
            self.hook.flush()
