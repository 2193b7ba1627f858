"""A rank's flight recorder: its latest collectives, as `torch._C._distributed_c10d._dump_fr_trace` returns them.

Gloo's groups record every collective when it is queued, messages not at all, and never learn when one starts, so that a
finished one is "retired" and still "scheduled" (torch 2.13; see `simdist.records` for the format). The recorder keeps
as many as TORCH_FR_BUFFER_SIZE says when the rank makes its first group. Only a rank that sets it gets stack frames:
walking the stack at each call would slow every other run down.

This is the only watcher that the engine calls directly, without the bus. The bus belongs to the world, but each rank
has a recorder of its own, always on like Gloo's: the bus would have to build, and sort by rank, events that no other
listener wants.
"""

from __future__ import annotations

import functools
import pickle
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from simdist.c10d.calls import MESSAGES
from simdist.c10d.calls._member import Queued
from simdist.errors import SimdistError
from simdist.frames import is_ours
from simdist.inside.torch import c10d_bindings
from simdist.process import Patches, SimProcess, current_process, variable_of
from simdist.records import SCALAR_TYPES, flight_dump, flight_entry, flight_group, flight_json, flight_status

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.surface._identity import GroupBackend

__all__ = ["FlightRecord", "flight_record_of", "install"]

_USUAL_LIMIT = 2000
_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")

_Recorded = tuple[Any, ...]  # the fields of a `Queued`, then the frames, if any
Frame = tuple[str, int, str]  # file, line, function


@dataclass(slots=True)
class _Former:
    """The recorded data of a group that was destroyed, or that the program may drop at any time."""

    _member: Member
    _size: int
    _name: str
    _description: str
    _backend_name: str

    def name(self) -> str:
        """The backend's name."""
        return self._backend_name


def _as_recorded(group: GroupBackend | _Former) -> _Former:
    return _Former(group._member, group._size, group._name, group._description, group.name())


def _forget(record: weakref.ref[FlightRecord], number: int) -> None:
    known = record()
    if known is not None:
        known.forget(number)


class FlightRecord:
    """The last `limit` collectives of one rank; with `frames`, also the stack of each call.

    It receives the fields of a `Queued` as a tuple of numbers, keeps the tuple, and makes entries only for a dump.
    Python's garbage collector visits such a tuple once, and not for as long as it is kept.
    """

    def __init__(self, limit: int, *, frames: bool) -> None:
        self._ring: deque[_Recorded] = deque(maxlen=limit)
        self._groups: list[GroupBackend | _Former] = []
        self._made: list[
            tuple[str, list[int]]
        ] = []  # name and ranks of each group as it was made, before both are recorded
        self._add = self._add_with_frames if frames else self._ring.append

    def enter(self, group: GroupBackend, *, held: bool = True) -> None:
        """Record a new group, and the calls in it from now on; not `held`: the program may drop the group."""
        number = len(self._groups)
        if held:
            self._groups.append(group)
        else:
            group.recorded_as = _as_recorded(group)
            self._groups.append(group.recorded_as)
        self._made.append((group._name, group.options.global_ranks_in_group))
        group._member.place = number
        group.on_leave = functools.partial(_forget, weakref.ref(self), number)  # no cycle: it would keep groups alive
        if self._ring.maxlen:
            group._member.on_queued = self._add

    def forget(self, number: int) -> None:
        """Drop a destroyed group and its store; the record keeps the group's data."""
        self._groups[number] = _as_recorded(self._groups[number])

    def dump(self, *, collectives: bool = True, frames: bool = True) -> dict[str, Any]:
        """The record as torch unpickles it. Active entries only would be the same record: none counts as completed."""
        return flight_dump(self._config(), self._statuses(), self._entries(frames=frames) if collectives else None)

    def dump_json(self, *, collectives: bool = True) -> str:
        """The record as torch writes it in JSON: without frames, and with group numbers as text."""
        return flight_json(self.dump(collectives=collectives, frames=False))

    def _config(self) -> dict[str, dict[str, str]]:
        found = {}
        for number, (name, given) in enumerate(self._made if self._ring.maxlen else ()):
            ranks = given or (list(range(self._groups[0]._size)) if number == 0 else [])
            found[name] = flight_group(name, "", ranks)
        return found

    def _add_with_frames(self, recorded: _Recorded) -> None:
        self._ring.append((*recorded, tuple(_frames_from(sys._getframe(1)))))

    def _entries(self, *, frames: bool) -> list[dict[str, Any]]:
        found = [one for recorded in self._ring for one in self._expanded(recorded, frames=frames)]
        made = sum(group._member.sequence + group._member.parts for group in self._groups)
        for record_id, one in enumerate(found, made - len(found)):
            one["record_id"] = record_id
        return found[-self._ring.maxlen :] if self._ring.maxlen else []

    def _expanded(self, recorded: _Recorded, *, frames: bool) -> Iterator[dict[str, Any]]:
        queued, stack = Queued(*recorded[: len(Queued._fields)]), recorded[len(Queued._fields) :]
        group = self._groups[queued.place]
        member = group._member
        operation = member.communicator.operations[queued.operation]
        settled = not any(work.sequence == queued.sequence for work in member.pending if work.name not in MESSAGES)
        inputs, outputs = operation.tensors(member.rank, group._size)
        # A reduce_scatter of a list is one all-reduce for each entry; it counts for as many, and this is the last.
        parts = [([shape], [shape]) for shape in inputs] if operation.is_list_of_reductions else [(inputs, outputs)]
        kind = "all_reduce" if operation.name == "reduce_scatter" else operation.name
        for number, (given, filled) in enumerate(parts, queued.number + 1 - len(parts)):
            yield flight_entry(
                record_id=0,  # known when all are there
                pg_id=queued.place,
                process_group=(group._name, group._description),
                thread=("python", str(member.process.pid)),
                collective_seq_id=number - queued.messages,
                op_id=number,
                profiling_name=f"{group.name()}:{kind}",
                input_sizes=given,
                output_sizes=filled,
                scalar_type=SCALAR_TYPES[operation.dtype_name] if operation.dtype_name else "",
                time_created_ns=queued.now_ns,
                retired=settled,
                timeout_ns=queued.timeout_ns,
                frames=(stack[0] if stack else ()) if frames else None,
            )

    def _statuses(self) -> dict[str, dict[str, int]]:
        last: dict[int, list[int]] = {}
        for recorded in self._ring:
            for one in self._expanded(recorded, frames=False):
                enqueued_completed = last.setdefault(one["pg_id"], [-1, -1])
                enqueued_completed[0] = one["op_id"]
                if one["retired"]:
                    enqueued_completed[1] = one["op_id"]
        return {str(group): flight_status(*numbers) for group, numbers in sorted(last.items())}


def flight_record_of(process: SimProcess) -> FlightRecord:
    """Return the recorder of a rank, made on the first call.

    Raises:
        SimdistError: the environment sets a size that is no number; torch hangs then.
    """
    state = process.torch_state
    if state.flight_record is None:
        limit = _USUAL_LIMIT
        for name in _NAMES:
            said = variable_of(process, name)
            if said is None:
                continue
            if not said.strip().lstrip("+-").isdigit():
                raise SimdistError(f"{name} is {said!r}; expected a whole number")
            limit = max(0, int(said))
            break
        state.flight_record = FlightRecord(limit, frames=said is not None)
    record: FlightRecord = state.flight_record
    return record


def install(patches: Patches) -> None:
    """Make torch's dump functions return a rank's own record."""
    patches.wrap(c10d_bindings, "_dump_fr_trace", _dump)
    patches.wrap(c10d_bindings, "_dump_fr_trace_json", _dump_json)


def _dump(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def dump(
        includeCollectives: bool | None = None,
        includeStackTraces: bool | None = None,
        onlyActive: bool | None = None,
    ) -> bytes:
        process = current_process()
        if process is None:
            return original(includeCollectives, includeStackTraces, onlyActive)
        collectives, frames = includeCollectives is not False, includeStackTraces is not False
        found = flight_record_of(process).dump(collectives=collectives, frames=frames)
        return pickle.dumps(found, protocol=2)

    return dump


def _dump_json(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def dump(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:
        process = current_process()
        if process is None:
            return original(includeCollectives, onlyActive)
        return flight_record_of(process).dump_json(collectives=includeCollectives is not False).encode()

    return dump


def _frames_from(frame: FrameType | None) -> Iterator[Frame]:
    """The stack from the innermost frame outwards, without simdist's own."""
    while frame is not None:
        if not is_ours(frame):
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
