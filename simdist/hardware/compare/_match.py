"""Compares torch's flight record with simdist's own: whether both have the same operations, and how long these ran.

Two independent recorders watch a real rank. Where both have kept a group's operations they must agree in order, kind
and size; if they do not, one of them is wrong, and a comparison with a simulation means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from simdist.c10d.calls import MESSAGES, METHODS, TABLE, names_where
from simdist.hardware._flight import Entry, FlightRecord
from simdist.records import (
    ELEMENT_BYTES,
    SCALAR_TYPES,
    Completed,
    Failed,
    Issued,
    NewGroup,
    Packed,
    completed,
    unpacked,
)
from simdist.values import Json

__all__ = ["Match", "match", "with_device_times"]

Key = tuple[str, str, int]  # operation, group, sequence number: identifies an operation in the events of a life

# Torch's name of an operation -> ours, where they differ; ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp of torch 2.13,
# and the names before it.
_OURS = {name: row.name for row in TABLE for name in row.all_recorded}
# Entries that may stand for one event of ours per tensor; Gloo calls the first of them all_gather.
_COALESCED = (row.recorded for name, row in METHODS.items() if name.endswith("_single_coalesced"))
_ONE_FOR_EACH_TENSOR = ("all_gather", *_COALESCED)
_NO_OPERATIONS = ("split", "new_window")
_MIXED = "coalesced"  # NCCL's entry for several calls that were launched together; it lists no collectives after it
_SIDES = ("torch", "simdist")
# Operations whose input is the caller's own tensor.
_SIZED = names_where(lambda row: row.payload == "flat" or (row.payload == "gathered" and not row.root))


@dataclass(frozen=True, slots=True)
class Match:
    """A flight record, and the operations of the journal that its entries belong to.

    `compared` counts the entries that were compared. `disagreement` is None if the two recorders agree; else it has
    what each of them has at the first difference.
    """

    record: FlightRecord
    pairs: tuple[tuple[Key, Entry], ...] = ()
    compared: int = 0
    disagreement: tuple[str, str] | None = None

    def __str__(self) -> str:
        who = f"rank {self.record.rank}" + (f" in life {self.record.life}" if self.record.life else "")
        if self.record.problem:
            return f"{who}: torch's flight record {self.record.problem}"
        if self.disagreement is None:
            return f"{who}: torch's flight recorder and simdist agree in {self.compared} entries"
        torch, simdist = self.disagreement
        return f"{who}: torch's flight recorder saw {torch}, simdist recorded {simdist}"

    def summary(self) -> dict[str, Json]:
        """Return the match as JSON-ready data; of the entries only their number."""
        record = self.record
        return {
            "rank": record.rank,
            "life": record.life,
            "by": "rank" if record.at_end else "watchdog",
            "problem": record.problem,
            "compared": self.compared,
            "disagreement": None if self.disagreement is None else dict(zip(_SIDES, self.disagreement, strict=True)),
            "entries": len(record.entries),
        }


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of the journal, as an entry of torch's would show it."""

    key: Key
    name: str
    nbytes: int
    dtype: str
    failed: bool

    def fits(self, entry: Entry) -> bool:
        """True if the entry may be this operation."""
        if _OURS.get(entry.op, entry.op) != self.name:
            return False
        if self.key[0] not in _SIZED or len(entry.input_sizes) != 1:
            return True
        kind, element = SCALAR_TYPES.get(self.dtype, ""), ELEMENT_BYTES.get(self.dtype, 0)
        if not element or kind.startswith("Complex"):  # NCCL takes complex numbers for pairs of real ones
            return True
        return entry.input_dtypes[0] == kind and math.prod(entry.input_sizes[0]) * element == self.nbytes

    def __str__(self) -> str:
        op, group, sequence = self.key
        return f"{op} #{sequence} in group {group!r}" + (f", {self.nbytes} bytes of {self.dtype}" if self.dtype else "")


def match(backend: str, records: Iterable[Packed], flight: FlightRecord) -> Match:
    """Find the operation of the journal for each entry; `records` are the events of the same life.

    Messages are compared up to the first that failed: whether torch recorded that one depends on where it failed.
    Nothing is compared where torch's recorder is off, or does not distinguish the groups.
    """
    # At debug level DETAIL, Gloo's groups are inside ProcessGroupWrappers: they have no names, and the wrappers' own
    # calls are among the program's (torch 2.13).
    if flight.problem or not flight.is_on or not all(entry.group for entry in flight.entries):
        return Match(flight)
    ours = _operations(backend, records)
    theirs: dict[tuple[str, bool], list[Entry]] = {}
    for entry in flight.entries:
        if entry.op not in _NO_OPERATIONS and not (entry.op == _MIXED and entry.is_message):
            theirs.setdefault((entry.group, entry.is_message), []).append(entry)
    found = Match(flight)
    for channel in sorted(ours.keys() | theirs.keys()):
        one = _channel(flight, ours.get(channel, []), theirs.get(channel, []), channel)
        found = replace(
            found,
            pairs=found.pairs + one.pairs,
            compared=found.compared + one.compared,
            disagreement=found.disagreement or one.disagreement,
        )
    return found


def _operations(backend: str, records: Iterable[Packed]) -> dict[tuple[str, bool], list[_Operation]]:
    """Return the operations that torch should have recorded, by group, messages apart."""
    found: dict[tuple[str, bool], list[_Operation]] = {}
    sizes: dict[str, int] = {}
    reported = [unpacked(record) for record in records]
    failed = {_key(record) for record in reported if isinstance(record, Failed)}
    for record in reported:
        if isinstance(record, NewGroup):
            sizes[record.group] = len(record.ranks)
        if not isinstance(record, Issued) or record.op == "monitored_barrier":
            continue
        op, group, nbytes, dtype = record.op, record.group, record.nbytes, record.dtype
        is_message = op in MESSAGES
        if backend == "gloo" and is_message:
            continue
        name, count = op, 1
        if backend == "gloo" and op == "reduce_scatter":  # it reduces one entry of a list after another (torch 2.13)
            name, count = "all_reduce", sizes.get(group, 1) if _is_listed(nbytes, dtype, record.shape) else 1
        one = _Operation(_key(record), name, nbytes, dtype, _key(record) in failed)
        found.setdefault((group, is_message), []).extend([one] * count)
    return found


def _key(record: Issued | Completed | Failed) -> Key:
    return record.op, record.group, record.seq


def _is_listed(nbytes: int, dtype: str, shape: Sequence[int]) -> bool:
    """True if a reduce_scatter took a list of tensors, not one tensor of which each rank gets a part."""
    element = ELEMENT_BYTES.get(dtype, 0)
    return math.prod(shape) * element != nbytes


def _channel(
    flight: FlightRecord, ours: Sequence[_Operation], theirs: Sequence[Entry], channel: tuple[str, bool]
) -> Match:
    is_open = not flight.at_end  # the program went on after the record was written
    cut = next((index for index, one in enumerate(ours) if one.failed and channel[1]), None)
    if cut is not None:
        ours, theirs, is_open = ours[:cut], theirs[:cut] if flight.is_whole else [], True
    mixed = next((index for index, entry in enumerate(theirs) if entry.op == _MIXED), None)
    if mixed is not None:
        theirs, is_open = theirs[:mixed], True
    if flight.is_whole or not theirs:
        return _walk(flight, ours, theirs, 0, is_open=is_open or not flight.is_whole)
    # Torch has overwritten older entries: the first that it kept belongs to a later operation of ours.
    latest = max(0, len(ours) - len(theirs))
    tried = (_walk(flight, ours, theirs, first, is_open=is_open) for first in range(latest, -1, -1))
    found = _walk(flight, ours, theirs, latest, is_open=is_open)
    return next((each for each in tried if each.disagreement is None), found)


def _walk(
    flight: FlightRecord, ours: Sequence[_Operation], theirs: Sequence[Entry], at: int, *, is_open: bool
) -> Match:
    """Compare both, from our operation `at` on, as far as they agree."""
    pairs: list[tuple[Key, Entry]] = []
    for index, entry in enumerate(theirs):
        count = _covered(entry, ours, at)
        if not count:
            words = (_words(entry), str(ours[at]) if at < len(ours) else "nothing")
            return Match(flight, tuple(pairs), index, words)
        pairs += [(operation.key, entry) for operation in ours[at : at + count]]
        at += count
    missing = None if is_open or at == len(ours) else ("nothing", str(ours[at]))
    return Match(flight, tuple(pairs), len(theirs), missing)


def _covered(entry: Entry, ours: Sequence[_Operation], at: int) -> int:
    """Return for how many of our operations from `at` on the entry stands; 0 if it does not fit them."""
    if entry.op in _ONE_FOR_EACH_TENSOR and len(entry.input_sizes) > 1:
        parts = zip(entry.input_sizes, entry.input_dtypes, strict=False)
        single = [replace(entry, input_sizes=(size,), input_dtypes=(dtype,)) for size, dtype in parts]
        these = ours[at : at + len(single)]
        if len(these) == len(single) and all(map(_Operation.fits, these, single)):
            return len(single)
    return int(at < len(ours) and ours[at].fits(entry))


def _words(entry: Entry) -> str:
    sizes = ", ".join(
        f"{dtype}{list(size)}" for size, dtype in zip(entry.input_sizes, entry.input_dtypes, strict=False)
    )
    kind = "message" if entry.is_message else "collective"
    return f"{entry.op} as {kind} {entry.sequence} of group {entry.group!r}" + (f" of {sizes}" if sizes else "")


def with_device_times(records: Sequence[Packed], found: Match) -> list[Packed]:
    """Return the events of a life, with the times of the device where torch's record has them.

    A `wait()` on NCCL returns when the kernel is queued; the operation completes when the kernel has ended. The
    kernel's duration is exact. Torch notices its end late, so the end given here is the earliest that the kernels
    before it in its group allow. An operation without a wait completes as well.
    """
    times = _device_times(found.pairs)
    over: set[Key] = set()
    reported = []
    for packed in records:
        record = unpacked(packed)
        if isinstance(record, Completed | Failed):
            over.add(_key(record))
        if isinstance(record, Completed) and _key(record) in times:
            begin, end = times[_key(record)]
            reported.append(replace(record, time_ns=end, begin_ns=begin).packed)
        else:
            reported.append(packed)
    rank = found.record.rank
    unwaited = [completed(end, rank, *key, begin, 0) for key, (begin, end) in times.items() if key not in over]
    return reported + unwaited


def _device_times(pairs: Iterable[tuple[Key, Entry]]) -> dict[Key, tuple[int, int]]:
    """Return when each kernel began and ended."""
    times: dict[Key, tuple[int, int]] = {}
    free_ns: dict[str, int] = {}  # messages of a group have a stream for each peer, collectives share one
    last: tuple[Entry, Key] | None = None
    for key, entry in pairs:
        if entry.duration_ns is None:
            continue
        if last is not None and last[0] is entry:  # one kernel for both
            times[key] = times[last[1]]
            continue
        last = entry, key
        begin = entry.created_ns if entry.is_message else max(entry.created_ns, free_ns.get(entry.group, 0))
        end = begin + entry.duration_ns
        if entry.completed_ns is not None and entry.completed_ns < end:
            begin, end = entry.completed_ns - entry.duration_ns, entry.completed_ns
        if not entry.is_message:
            free_ns[entry.group] = end
        times[key] = (max(begin, entry.created_ns), end)
    return times
