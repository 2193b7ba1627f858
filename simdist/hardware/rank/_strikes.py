"""The scenario's faults inside a real rank: they strike for real, at the same moments as in the simulation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from simdist.faults import OperationDelay, RankFault, Watch, Watches, draws_for
from simdist.hardware._board import BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal
from simdist.hardware.rank._struck import RealRank
from simdist.records import fault_reported, step_begun

__all__ = ["UNDER_WAY", "Strikes"]

UNDER_WAY = 16 << 20  # bytes; see simdist.c10d.engine._strikes

_SETTLED_S = 0.1  # from the last peer's call until its messages are surely under way
_FLYING_S = 0.02  # into a large operation
_DOOR_S = 5.0  # how long a rank that will die inside an operation waits there for its peers


class Strikes:
    """The faults of one rank: `before`, `inside` and `after` surround each operation, the others serve the program.

    `simdist.faults.Watches` decides when they strike, in virtual time, as in a simulation. A fault that strikes during
    an operation waits until all peers are inside it, and strikes before this rank's part of it has begun: its data is
    still in its own buffers, as in a simulation. If the operation is large, a part of it is under way.

    A fault may still keep another rank out of an operation. Until then this rank enters a collective with that rank
    only after that rank has entered it, or is gone: whether one of our messages lies unread in a process that dies
    decides between "closed" and "reset", and a race of microseconds must not decide that.
    """

    def __init__(
        self,
        job: Job,
        journal: Journal,
        board: BoardClient,
        rank: int,
        life: int,
        orders: int,
        listener: BoardClient | None = None,
    ) -> None:
        self._job = job
        self._journal = journal
        self._board = board
        self._listener = listener  # for waiting: a client waits for one answer at a time
        self._rank = rank
        self._life = life
        self._orders = orders
        self._watches: Watches[int] = Watches()  # by the fault's place in the job
        self._slow: dict[int, tuple[OperationDelay, Callable[[], float]]] = {}  # with the numbers that each draws
        self._reported: list[int] = []
        self._awaited: list[RankFault] = []
        self._doors = (
            False  # other ranks need to see where this one is: one of them is struck at an operation or a step
        )
        for index, fault in enumerate(job.faults):
            if isinstance(fault, OperationDelay) and fault.rank == rank:
                earlier = job.faults[:index]
                self._slow[index] = fault, draws_for(fault, earlier, seed=job.seed, life=life, rank=rank)
            if isinstance(fault, RankFault):
                self._take(index, fault)
        self._pending: dict[tuple[str, str], list[int]] = {}  # by when and operation, struck by this call
        self._after: dict[tuple[str, str, int], list[int]] = {}

    def _take(self, index: int, fault: RankFault) -> None:
        is_timed = fault.trigger.is_timed
        self._doors = self._doors or not is_timed
        if fault.life not in (self._life, None):
            return
        if fault.rank == self._rank:
            draw = draws_for(fault, self._job.faults[:index], seed=self._job.seed, life=self._life)
            self._watches.add(index, Watch(fault.trigger, draw))
        elif fault.may_keep_out and not is_timed:
            self._awaited.append(fault)

    def arm(self) -> None:
        """Start the clocks of the timed faults, and listen for the faults that others come after."""
        for index, watch in self._watches:
            if watch.alarm_ns is not None:
                self._start_alarm(index, watch)
        if self._listener is not None and any(watch.trigger.waits for _, watch in self._watches):
            threading.Thread(target=self._listen, args=(self._listener,), daemon=True).start()

    # -- alarms, and faults that come after others ---------------------------------------------------------------

    @property
    def _now_ns(self) -> int:
        """Virtual time: the run's time divided by its scale."""
        return round(self._journal.now_ns() / self._job.time_scale)

    def _start_alarm(self, index: int, watch: Watch) -> None:
        threading.Thread(target=self._follow_alarm, args=(index, watch), daemon=True).start()

    def _follow_alarm(self, index: int, watch: Watch) -> None:
        while watch.alarm_ns is not None:
            # The journal's origin is set when the run has begun.
            time.sleep(max(0.0, self._job.scaled_s(watch.alarm_ns) - self._journal.now_ns() / 1e9))
            if watch.alarm():
                self._strike(index)

    def _listen(self, listener: BoardClient) -> None:
        """Wait for strikes of the faults, also of other ranks, that this rank's faults come after."""
        names = sorted({str(self._job.faults[index].after) for index, watch in self._watches if watch.trigger.waits})
        while names:
            try:
                struck = listener.call("wait_struck", names, self._job.limit_s)
            except (EOFError, OSError):  # the run is over
                return
            if not struck:
                return
            for name, struck_ns in struck.items():
                names.remove(name)
                self._release(name, round(struck_ns / self._job.time_scale))

    def _release(self, name: str, struck_ns: int) -> None:
        for index, watch in self._watches:
            if self._job.faults[index].after == name and watch.alarm_ns is None:
                watch.released(struck_ns, self._now_ns)
                if watch.alarm_ns is not None:
                    self._start_alarm(index, watch)

    # -- actions of the program ----------------------------------------------------------------------------------

    def on_step(self, index: int) -> None:
        """Replaces `simdist.step`."""
        self._journal.record(step_begun, int(index))
        self._strike_all(self._watches.step(int(index)))

    def on_point(self, name: str) -> None:
        """Replaces `simdist.point`."""
        self._strike_all(self._watches.point(str(name)))

    def before(self, op: str, group: str) -> None:
        """Called before an operation is issued: be late, or be struck.

        Raises:
            Exception: the exception of a fault, in place of the operation.
        """
        due = self._watches.operation(op)
        self._be_late()
        when = self._of_rank(due[0]).when if due else "before"
        if when == "before":
            self._strike_all(due)
        else:
            self._pending.setdefault((when, op), []).extend(due)

    def inside(self, op: str, group: str, sequence: int, ranks: Sequence[int], peer: int, nbytes: int) -> None:
        """Called when the operation has been issued, but its data has not left."""
        after = self._pending.pop(("after", op), [])
        if after:
            self._after[op, group, sequence] = after
        during = self._pending.pop(("during", op), [])
        if not self._doors:
            return
        self._board.call("enter", self._door(group, op, sequence, self._rank))
        if peer >= 0:
            self._board.call("enter", self._door(group, "peer", ranks[peer], self._rank))
            doors = [self._door(group, "peer", self._rank, ranks[peer])]
        else:
            doors = [self._door(group, op, sequence, rank) for rank in ranks if rank != self._rank]
        for index in during:
            if nbytes >= UNDER_WAY:
                threading.Thread(target=self._strike_inside, args=(index, doors, _FLYING_S), daemon=True).start()
            else:
                self._strike_inside(index, doors, _SETTLED_S)
        if peer < 0:
            self._await(op, group, sequence, ranks)

    def _door(self, *what: object) -> tuple[object, ...]:
        return (self._life, *what)

    def _strike_inside(self, index: int, doors: Sequence[object], after_s: float) -> None:
        self._board.call("wait_entered", doors, _DOOR_S)
        time.sleep(after_s)
        self._strike(index)

    def _await(self, op: str, group: str, sequence: int, ranks: Sequence[int]) -> None:
        """Wait for ranks that may be struck before they arrive: until they enter too, or are gone."""
        for fault in list(self._awaited):
            if fault.rank not in ranks:
                continue
            door = self._door(group, op, sequence, fault.rank)
            came, gone = self._board.call("wait_entered_or_ended", door, self._life, fault.rank, _DOOR_S)
            if gone and not came:
                time.sleep(_SETTLED_S)  # until the end of its connections has been noticed
            if not came:
                self._awaited.remove(fault)

    def after(self, op: str, group: str, sequence: int) -> None:
        """Called when the operation is over for this rank."""
        self._strike_all(self._after.pop((op, group, sequence), []))

    # -- strikes -------------------------------------------------------------------------------------------------

    def _be_late(self) -> None:
        for index, (fault, draw) in self._slow.items():
            now_ns, drawn_ns = self._now_ns, fault.drawn_ns(draw)
            if fault.is_on(now_ns):
                if index not in self._reported:
                    self._reported.append(index)
                    self._report(index)
                time.sleep(self._job.scaled_s(fault.lateness_ns(now_ns - fault.start_ns) + drawn_ns))

    def _report(self, index: int) -> None:
        fault = self._job.faults[index]
        struck_ns = self._journal.now_ns()
        self._journal.record_at(struck_ns, fault_reported, fault.kind, fault.begins(), self._life)
        self._journal.note("strike", index, self._life, "", time_ns=struck_ns)
        if any(each.after == fault.name for each in self._job.faults):
            self._board.call("struck", fault.name, struck_ns)
            self._release(fault.name, round(struck_ns / self._job.time_scale))

    def _strike_all(self, indices: Sequence[int]) -> None:
        """Strike by one fault after the other; the last one's exception is raised.

        Raises:
            Exception: in the program, from a step, a point or an operation.
        """
        for index in indices:
            self._strike(index)
            error = self._of_rank(index).exception()
            if error is not None:
                raise error

    def _strike(self, index: int) -> None:
        self._report(index)
        rank = RealRank(self._job, self._journal, self._rank, self._life, self._orders, index)
        self._of_rank(index).strike(rank)

    def _of_rank(self, index: int) -> RankFault:
        fault = self._job.faults[index]
        assert isinstance(fault, RankFault)
        return fault
