"""The scenario's faults inside a real rank: what strikes it is real, when it strikes is as in the simulation."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from simdist.faults import Crash, Fault, Raise, RankFault, SlowRank, begin_text, kind_of
from simdist.hardware._board import BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal

__all__ = ["UNDER_WAY", "Strikes"]

UNDER_WAY = 16 << 20  # bytes; see simdist.c10d._collective

_SETTLED_S = 0.1  # from the last peer's call until its messages are certainly under way
_FLYING_S = 0.02  # into a large operation
_DOOR_S = 5.0  # how long a rank that is to die inside an operation waits for its peers there


@dataclass(slots=True)
class _Armed:
    """A fault of this rank in this life, and how far its trigger has come; see `simdist.faults`."""

    fault: RankFault
    matched: int = 0
    in_step: bool = False
    spent: bool = False


class Strikes:
    """The faults of one rank: `before`, `inside` and `after` surround each operation, `on_step` is for the program.

    A fault that strikes during an operation waits until all peers are inside it, and strikes before this rank's part
    of it has begun: its data is still in its own buffers, as in a simulation. If the operation is large, a part of it
    is under way.

    While a crash or an exception of another rank is still to come, a collective that both take part in is entered when
    that rank has entered it too, or is gone: whether a message of ours lies unread in a process that dies decides
    between "closed" and "reset", and a race of microseconds must not decide that.
    """

    def __init__(self, job: Job, journal: Journal, board: BoardClient, rank: int, life: int, orders: int) -> None:
        self._job = job
        self._journal = journal
        self._board = board
        self._rank = rank
        self._life = life
        self._orders = orders
        mine = [f for f in job.faults if isinstance(f, RankFault) and f.rank == rank and f.life in (life, None)]
        self._armed = [_Armed(fault) for fault in mine]
        self._slow = [fault for fault in job.faults if isinstance(fault, SlowRank) and fault.rank == rank]
        self._told: list[SlowRank] = []
        others = [f for f in job.faults if isinstance(f, Crash | Raise) and f.rank != rank and f.life in (life, None)]
        self._awaited = [fault for fault in others if fault.at_ns is None]
        self._pending: dict[tuple[str, str], list[RankFault]] = {}  # by when and operation, struck by this call
        self._after: dict[tuple[str, str, int], list[RankFault]] = {}
        # Others have to know that this rank is inside only if somebody is to be struck at an operation or a step.
        self._doors = any(isinstance(f, RankFault) and f.at_ns is None for f in job.faults)

    def arm(self) -> None:
        """Start the clocks of the faults that strike at a time."""
        for armed in self._armed:
            fault = armed.fault
            if fault.at_ns is not None:
                threading.Thread(target=self._strike_at, args=(fault, fault.at_ns), daemon=True).start()

    def _strike_at(self, fault: RankFault, at_ns: int) -> None:
        # The journal's origin is set when the run has begun.
        time.sleep(max(0.0, self._job.scaled_s(at_ns) - self._journal.now_ns() / 1e9))
        self._strike(fault)

    def on_step(self, index: int) -> None:
        """Stand in for `simdist.step`."""
        self._journal.add("step", int(index))
        for armed in self._armed:
            if armed.spent or armed.fault.at_step is None:
                continue
            armed.in_step = index == armed.fault.at_step
            armed.matched = 0
            if armed.in_step and not armed.fault.on_operation:
                armed.spent = True
                self._strike(armed.fault)

    def before(self, op: str, group: str) -> None:
        """An operation is about to be issued: be late, or be struck.

        Raises:
            Exception: that of a fault, in place of the operation.
        """
        due: list[RankFault] = []
        for armed in self._armed:
            fault = armed.fault
            if armed.spent or not fault.on_operation or (fault.at_step is not None and not armed.in_step):
                continue
            if fault.operations is not None and op not in fault.operations:
                continue
            armed.matched += 1
            if armed.matched >= (fault.nth or 1) and (not due or due[0].when == fault.when):
                armed.spent = True
                due.append(fault)
        self._be_late()
        for fault in due:
            if fault.when == "before":
                self._strike(fault)
            else:
                self._pending.setdefault((fault.when, op), []).append(fault)

    def inside(self, op: str, group: str, sequence: int, ranks: Sequence[int], peer: int, nbytes: int) -> None:
        """The operation has been issued, but its data has not left."""
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
        for fault in during:
            if nbytes >= UNDER_WAY:
                threading.Thread(target=self._strike_inside, args=(fault, doors, _FLYING_S), daemon=True).start()
            else:
                self._strike_inside(fault, doors, _SETTLED_S)
        if peer < 0:
            self._await(op, group, sequence, ranks)

    def _door(self, *what: Any) -> tuple[Any, ...]:
        return (self._life, *what)

    def _strike_inside(self, fault: RankFault, doors: Sequence[Any], after_s: float) -> None:
        self._board.call("wait_entered", doors, _DOOR_S)
        time.sleep(after_s)
        self._strike(fault)

    def _await(self, op: str, group: str, sequence: int, ranks: Sequence[int]) -> None:
        """Wait for those whose crash is still to come: they enter too, or they are gone."""
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
        """The operation is over for this rank."""
        for fault in self._after.pop((op, group, sequence), []):
            self._strike(fault)

    def _be_late(self) -> None:
        now_ns = self._journal.now_ns()
        for fault in self._slow:
            end = None if fault.until_ns is None else self._job.scaled_s(fault.until_ns) * 1e9
            if self._job.scaled_s(fault.start_ns) * 1e9 <= now_ns and (end is None or now_ns < end):
                if fault not in self._told:
                    self._told.append(fault)
                    self._tell(fault)
                time.sleep(self._job.scaled_s(fault.delay_ns))

    def _tell(self, fault: Fault) -> None:
        self._journal.add("fault", kind_of(fault), begin_text(fault), self._life)

    def _strike(self, fault: RankFault) -> None:
        self._tell(fault)
        if isinstance(fault, Crash):
            self._die(fault)
        if isinstance(fault, Raise):
            raise fault.make()
        seconds = "never" if fault.duration_ns is None else str(self._job.scaled_s(fault.duration_ns))
        os.write(self._orders, f"{seconds}\n".encode())  # who is stopped can't wake himself
        os.kill(os.getpid(), signal.SIGSTOP)

    def _die(self, fault: Crash) -> NoReturn:
        if fault.exit_code is None:
            number = signal.Signals[fault.signal]
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            os.kill(os.getpid(), number)
            time.sleep(1.0)  # until it is delivered
        os._exit(fault.exit_code if fault.exit_code is not None else 1)
