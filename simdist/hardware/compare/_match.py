"""Torch's flight record beside simdist's own: do both have the same operations, and how long were these at work?

Two recorders that know nothing of each other watch a real rank. Where both have kept a group's operations they must
agree in order, kind and size; if they do not, one of them is wrong, and no comparison with a simulation means anything.
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

Key = tuple[str, str, int]  # operation, group, sequence number: what names an operation in the events of a life

# Torch's name of an operation -> ours, where they differ; ProcessGroupGloo.cpp and ProcessGroupNCCL.cpp of torch 2.13,
# and the names before it.
_OURS = {name: row.name for row in TABLE for name in row.all_recorded}
# What may have one event of ours for each tensor; Gloo calls the first of them all_gather.
_COALESCED = (row.recorded for name, row in METHODS.items() if name.endswith("_single_coalesced"))
_ONE_FOR_EACH_TENSOR = ("all_gather", *_COALESCED)
_NO_OPERATIONS = ("split", "new_window")
_MIXED = "coalesced"  # NCCL's entry for several calls that were launched together; of collectives it lists no more
_SIDES = ("torch", "simdist")
# Whose input is the caller's own tensor.
_SIZED = names_where(lambda row: row.payload == "flat" or (row.payload == "gathered" and not row.root))


@dataclass(frozen=True, slots=True)
class Match:
    """A flight record, and the operations of the journal that its entries belong to.

    `compared` counts the entries that were looked at. `disagreement` is empty if the two recorders agree, and else what
    either has where they first part.
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
        """It as JSON-ready data; of the entries only how many there are."""
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
        if not element or kind.startswith("Complex"):  # which NCCL takes for pairs of real numbers
            return True
        return entry.input_dtypes[0] == kind and math.prod(entry.input_sizes[0]) * element == self.nbytes

    def __str__(self) -> str:
        op, group, sequence = self.key
        return f"{op} #{sequence} in group {group!r}" + (f", {self.nbytes} bytes of {self.dtype}" if self.dtype else "")


def match(backend: str, records: Iterable[Packed], flight: FlightRecord) -> Match:
    """Find the operation of the journal that each entry belongs to; `records` are the events of the same life.

    Messages are compared up to the first that failed: whether torch recorded that one depends on where it failed.
    Nothing is compared where torch's recorder is off, or does not distinguish the groups.
    """
    # At debug level DETAIL, Gloo's groups lie in ProcessGroupWrappers: they have no names, and the wrappers' own calls
    # stand among the program's (torch 2.13).
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
    """What torch should have recorded, by group, messages apart."""
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
        if backend == "gloo" and op == "reduce_scatter":  # it sums, one entry of a list after another (torch 2.13)
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
    # Torch has overwritten older entries: the first that it kept belongs to some later operation of ours.
    latest = max(0, len(ours) - len(theirs))
    tried = (_walk(flight, ours, theirs, first, is_open=is_open) for first in range(latest, -1, -1))
    found = _walk(flight, ours, theirs, latest, is_open=is_open)
    return next((each for each in tried if each.disagreement is None), found)


def _walk(
    flight: FlightRecord, ours: Sequence[_Operation], theirs: Sequence[Entry], at: int, *, is_open: bool
) -> Match:
    """Go through both, from our operation `at` on, as far as they agree."""
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
    """How many of our operations from `at` on the entry stands for; none if it does not fit them."""
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
    """The events of a life, with the times of the device where torch's record has them.

    A `wait()` on NCCL returns when the kernel is queued; the operation completes when the kernel has ended. How long
    the kernel took is exact; when it ended torch notices late, so the end given here is the earliest that the kernels
    before it in its group allow. An operation that nobody waited for completes as well.
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
    """When each kernel began and ended."""
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
