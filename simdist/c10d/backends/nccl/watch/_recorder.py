"""A rank's flight recorder as ProcessGroupNCCL fills it: `torch._C._distributed_c10d._dump_nccl_trace` (torch 2.13).

All groups of a process share one ring buffer. An entry is made before its call is launched. A dump sees that the call
is over, and so does the watchdog, which then retires the entry. `simdist.records` documents the format.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from simdist.inside.torch import NCCL
from simdist.records import SCALAR_TYPES, flight_dump, flight_entry, flight_group, flight_json

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember

__all__ = ["Entry", "NcclRecorder", "Outcome"]

_LIBRARY = str(NCCL)
Stack = Sequence[tuple[CodeType, int]]


@dataclass(slots=True, eq=False)
class Entry:
    """A recorded call. `work` has its further progress; it is None for a call inside a block.

    When the work is over, only its `outcome` is kept, because a work holds tensors.
    """

    group: WatchedMember  # in which the call was made
    record_id: int
    numbers: tuple[int, int, int]  # collectives, messages and operations in the group so far, including this one
    name: str
    inputs: list[list[int]]
    outputs: list[list[int]]
    dtype: str
    created_ns: int
    timeout_ns: int
    is_message: bool
    frames: Stack
    work: NcclWork | None = None
    outcome: Outcome | None = None

    def close(self, work: NcclWork) -> None:
        """Keep the outcome of the finished work, and drop the work."""
        timed = work.timed and work.begun_ns is not None
        self.outcome = Outcome(
            work.ended_ns, work.aborted, work.begun_ns if timed else None, work._get_duration() if timed else None
        )
        self.work = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a work ended; also its begin and duration, if they were measured."""

    ended_ns: int
    aborted: bool
    begun_ns: int | None
    duration_ms: float | None


class NcclRecorder:
    """The last `limit` calls of one rank; with 0 it records nothing."""

    def __init__(self, limit: int, calendar_ns: Callable[[int], int]) -> None:
        self.limit = limit
        self._calendar_ns = calendar_ns
        self._ring: deque[Entry] = deque(maxlen=max(1, limit))
        self._next = 0
        self._config: dict[str, dict[str, str]] = {}
        self._groups: list[WatchedMember] = []

    def enter(self, group: WatchedMember) -> None:
        """Add a new group."""
        self._groups.append(group)

    def configure(self, group: WatchedMember, ranks: Sequence[int]) -> None:
        """Add a new communicator of a group."""
        self._config[group.group_name] = flight_group(group.group_name, group.group_desc, ranks)

    def add(self, group: WatchedMember, *call: Any) -> Entry | None:
        """Record a call. `call` has the fields of an `Entry` after `record_id`."""
        if not self.limit:
            return None
        made = Entry(group, self._next, *call)
        self._next += 1
        self._ring.append(made)
        return made

    def reset(self) -> None:
        """Forget all entries, and count from 0 again."""
        self._ring.clear()
        self._next = 0

    def dump(
        self, now_ns: int, *, collectives: bool = True, frames: bool = True, active: bool = False
    ) -> dict[str, Any]:
        """Return the record as torch unpickles it; with `active`, only entries that are not over."""
        entries = None
        if collectives:
            entries = [
                self._said(entry, now_ns, frames=frames)
                for entry in self._ring
                if not (active and entry.outcome is not None)
            ]
        status = {str(group.uid): group.status() for group in self._groups}
        return flight_dump(self._config, status, entries, library=_LIBRARY)

    def dump_bytes(self, now_ns: int, **what: bool) -> bytes:
        """Return the record as torch pickles it."""
        return pickle.dumps(self.dump(now_ns, **what), protocol=2)

    def dump_json(self, now_ns: int, *, collectives: bool = True, active: bool = False) -> str:
        """Return the record in JSON, without frames and with the numbers of groups as text."""
        return flight_json(self.dump(now_ns, collectives=collectives, frames=False, active=active))

    def _said(self, entry: Entry, now_ns: int, *, frames: bool) -> dict[str, Any]:
        work, outcome, group = entry.work, entry.outcome, entry.group
        done = outcome is not None and not outcome.aborted
        seen_ns, retired = None, False
        if outcome is not None and done:
            retired_ns = group.watchdog.tick_after(outcome.ended_ns)
            retired = retired_ns <= now_ns
            seen_ns = self._calendar_ns(min(retired_ns, now_ns))
        collectives, messages, operations = entry.numbers
        first_ns = duration_ms = begun_ns = None
        if outcome is not None:
            first_ns, duration_ms = outcome.begun_ns, outcome.duration_ms if retired else None
        elif work is not None and work.timed and work.has_begun(now_ns):
            first_ns = work.begin_ns()
        if first_ns is not None:
            begun_ns = self._calendar_ns(min(group.watchdog.tick_after(first_ns), now_ns))
        return flight_entry(
            record_id=entry.record_id,
            pg_id=group.uid,
            process_group=(group.group_name, group.group_desc),
            thread=("python", str(group._member.process.pid)),
            collective_seq_id=collectives,
            p2p_seq_id=messages,
            op_id=operations,
            profiling_name=f"nccl:{entry.name}",
            input_sizes=entry.inputs,
            output_sizes=entry.outputs,
            scalar_type=SCALAR_TYPES.get(entry.dtype, ""),
            time_created_ns=self._calendar_ns(entry.created_ns),
            state="completed" if done else "scheduled" if begun_ns is None else "started",
            started_ns=begun_ns,
            completed_ns=seen_ns,
            duration_ms=duration_ms,
            retired=retired,
            timeout_ns=entry.timeout_ns,
            is_p2p=entry.is_message,
            frames=[(code.co_filename, line, code.co_name) for code, line in entry.frames] if frames else None,
        )
