"""Makes a `RunResult`, as a simulated run gives it, from the journals of a real run."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from simdist.hardware._flight import read_record
from simdist.hardware._job import Job
from simdist.hardware._journal import JournalLine, Life, read_life, read_lives
from simdist.hardware.compare._match import Match, match, with_device_times
from simdist.records import Ended, Issued, NewGroup, Packed, Restarted, Started, restarted, unpacked
from simdist.records import ended as make_ended
from simdist.result import FaultResult, RankResult, RunResult, Status
from simdist.trace import EventStream

__all__ = ["matches_of", "outcome_of"]

_FIRST = {Restarted.kind: 0, NewGroup.kind: 1}  # the order of events of one instant


def matches_of(job: Job) -> tuple[Match, ...]:
    """Match torch's record of each rank and life that left one with its journal."""
    found = []
    for rank, life in read_lives(Path(job.out)):
        journal = read_life(Path(job.out), rank, life)
        record = read_record(Path(job.out), rank, life, journal.origin_ns)
        if record is not None:
            found.append(match(job.backend, journal.records, record))
    return tuple(found)


def outcome_of(job: Job, replay: str, matches: Sequence[Match] = ()) -> RunResult:
    """Read the files of the ranks of `job`; operations have the times of the device where `matches` have them.

    Times are nanoseconds of real time since the ranks began; the digest is empty, because no two real runs are equal.
    """
    folder = Path(job.out)
    lives = read_lives(folder)
    last = dict(lives)  # in order: the last life stays
    journals = [read_life(folder, rank, life) for rank, life in lives]
    recorded = {(each.record.rank, each.record.life): each for each in matches}
    events: list[Packed] = []
    ranks = []
    operations = dict.fromkeys(range(job.world_size), 0)
    groups: dict[tuple[int, NewGroup], int] = {}  # by life: when the first member reported it
    for journal in journals:
        key = journal.rank, journal.life
        kept = []
        for packed in journal.records:
            record = unpacked(packed)
            operations[journal.rank] += isinstance(record, Issued)
            if isinstance(record, NewGroup):  # each member reports it; the world's is the first, as in a simulation
                reported = replace(record, time_ns=0, rank=-1)
                first = groups.setdefault((journal.life, reported), record.time_ns)
                groups[journal.life, reported] = min(record.time_ns, first)
            else:
                kept.append(packed)
        kept += _death(journal)
        events += with_device_times(kept, recorded[key]) if key in recorded else kept
        if journal.life == last[journal.rank]:
            ranks.append(_rank_result(folder, journal))
    events += [replace(reported, time_ns=time_ns).packed for (_, reported), time_ns in groups.items()]
    world = read_life(folder, -1, 0)  # events of no rank in particular
    events += world.records
    restarts = max(last.values(), default=0)
    starts = [unpacked(packed) for journal in journals if journal.life for packed in journal.records]
    for life in range(1, restarts + 1):
        begun = [record.time_ns for record in starts if isinstance(record, Started) and record.life == life]
        if begun:
            events.append(restarted(min(begun), -1, life))
    events.sort(key=lambda record: (record[0], _FIRST.get(record[1], 2)))
    missing = [rank for rank in range(job.world_size) if rank not in last]
    ranks += [RankResult(rank, "hung", None, waiting="never started", lives=0) for rank in missing]
    results = tuple(_with_operations(result, operations) for result in sorted(ranks, key=lambda each: each.rank))
    end_ns = max((record[0] for record in events), default=0)
    strikes = [(record[0], journal.rank, *record[3:]) for journal in (*journals, world) for record in journal.strikes]
    faults = tuple(_fault_result(job, index, sorted(strikes)) for index in range(len(job.faults)))
    return RunResult(
        "", end_ns, restarts, results, EventStream(events), job.seed, replay, backend=job.backend, faults=faults
    )


def _fault_result(job: Job, index: int, strikes: Sequence[JournalLine]) -> FaultResult:
    fault = job.faults[index]
    mine = [(time_ns, rank, life, how) for time_ns, rank, struck, life, how in strikes if struck == index]
    return FaultResult(
        call=repr(fault),
        called=fault.called,
        kind=fault.kind,
        rank=-1 if fault.target is None else fault.target,
        required=not fault.optional,
        struck_ns=tuple(time_ns for time_ns, _, _, how in mine if not how),
        ended=tuple(dict.fromkeys((rank, life, how) for _, rank, life, how in mine if how)),
    )


def _death(journal: Life) -> list[Packed]:
    """Return the end of a process that did not live to report it."""
    ended = journal.ended
    if (
        ended is None
        or ended[3] is None
        or not journal.origin_ns
        or any(packed[1] == Ended.kind for packed in journal.records)
    ):
        return []
    status = "killed" if ended[3] < 0 else "exited"
    return [make_ended(ended[0] - journal.origin_ns, journal.rank, status, ended[3], journal.life)]


def _rank_result(folder: Path, journal: Life) -> RankResult:
    rank, life, ended = journal.rank, journal.life, journal.ended
    records = [unpacked(packed) for packed in journal.records]
    name = f"rank{rank}-life{life}"
    code = None if ended is None else ended[3]
    exits = [record for record in records if isinstance(record, Ended)]
    issued = [record for record in records if isinstance(record, Issued)]
    if ended is not None and ended[4] and exits:
        code = exits[-1].exit_code  # the launcher stopped it while it ended
    status: Status = "hung"
    value, error = None, None
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        said, bases, text, data = pickle.loads((folder / f"{name}.pickle").read_bytes())
        content = _content(bases, text, data)
        value, error = (content, None) if said == "returned" else (None, content if said == "raised" else None)
    if code is not None:
        status = "killed" if code < 0 else cast("Status", exits[-1].status) if exits else "exited"
    if status in ("killed", "hung"):
        value = error = None
    waiting = f"{issued[-1].op} #{issued[-1].seq} in group {issued[-1].group!r}" if issued else ""
    times = [record.time_ns for record in records]
    return RankResult(
        rank=rank,
        status=status,
        value=value,
        exception=error,
        exit_code=code,
        stdout=_text(folder / f"{name}.out"),
        stderr=_text(folder / f"{name}.err"),
        ended_ns=max(times, default=0),
        lives=life + 1,
        waiting=waiting if status == "hung" else "",
        last_operation=waiting,
    )


def _with_operations(result: RankResult, operations: dict[int, int]) -> RankResult:
    return replace(result, operations=operations[result.rank])


def _content(bases: list[str], text: str, data: bytes) -> Any:
    """Return the value or exception; a stand-in of the same name and text if it could not be pickled."""
    if data:
        try:
            return pickle.loads(data)
        except Exception:  # a class that only the rank could import
            pass
    made: type = Exception
    for name in reversed(bases[: bases.index("Exception")] if "Exception" in bases else bases[:1]):
        made = type(name, (made,), {})
    return made(text) if "Exception" in bases else text


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""
