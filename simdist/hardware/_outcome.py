"""From the journals of a real run to the `RunResult` that a simulated one gives."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

from simdist.hardware._job import Job
from simdist.hardware._journal import read_events, read_lives
from simdist.result import RankResult, RunResult, Status
from simdist.trace._stream import EventStream

__all__ = ["outcome_of"]

Record = tuple[Any, ...]


def outcome_of(job: Job, replay: str) -> RunResult:
    """Read what the ranks of `job` have written.

    Times are nanoseconds of real time since the ranks began; the digest is empty, because no two real runs are equal.
    """
    folder = Path(job.out)
    lives = read_lives(folder)
    last = dict(lives)  # in order: the last one stays
    journals = {(rank, life): list(read_events(folder, rank, life)) for rank, life in lives}
    origin_ns = min((record[0] for records in journals.values() for record in records), default=0)
    events: list[Record] = []
    ranks = []
    operations = dict.fromkeys(range(job.world_size), 0)
    for (rank, life), records in journals.items():
        kept, ended = _settled(records)
        operations[rank] += sum(record[1] == "issue" for record in kept)
        events += kept
        if life == last[rank]:
            ranks.append(_rank_result(folder, rank, life, kept, ended, origin_ns))
    events += read_events(folder, -1, 0)  # what befell no rank in particular
    restarts = max(last.values(), default=0)
    starts = [records for (_, life), records in journals.items() if life]
    for life in range(1, restarts + 1):
        begun = [r[0] for records in starts for r in records if r[1] == "start" and r[3] == life]
        if begun:
            events.append((min(begun), "restart", -1, life))
    events.sort(key=lambda record: (record[0], record[1] != "restart"))
    missing = [rank for rank in range(job.world_size) if rank not in last]
    ranks += [RankResult(rank, "hung", waiting="never started", lives=0) for rank in missing]
    results = tuple(_with_operations(result, operations) for result in sorted(ranks, key=lambda each: each.rank))
    end_ns = max((record[0] for record in events), default=0)
    return RunResult("", end_ns, restarts, results, EventStream(events), job.seed, replay)


def _settled(records: list[Record]) -> tuple[list[Record], Record | None]:
    """The events of one life without calls that were refused, and how the process ended according to its parent."""
    kept: list[Record] = []
    ended = None
    for record in records:
        if record[1] == "ended":
            ended = record
        elif record[1] == "refused":
            key = record[3:6]
            kept = [other for other in kept if not (other[1] == "issue" and other[3:6] == key)]
        else:
            kept.append(record)
    return kept, ended


def _rank_result(
    folder: Path, rank: int, life: int, records: list[Record], ended: Record | None, origin_ns: int
) -> RankResult:
    name = f"rank{rank}-life{life}"
    code = None if ended is None else ended[3]
    exits = [record for record in records if record[1] == "exit"]
    issued = [record for record in records if record[1] == "issue"]
    if ended is not None and ended[4] and exits:
        code = exits[-1][4]  # the launcher stopped it on its way out
    status: Status = "hung"
    value, error = None, None
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        said, bases, text, data = pickle.loads((folder / f"{name}.pickle").read_bytes())
        content = _content(bases, text, data)
        value, error = (content, None) if said == "returned" else (None, content if said == "raised" else None)
    if code is not None:
        status = "killed" if code < 0 else exits[-1][3] if exits else "exited"
    if status in ("killed", "hung"):
        value = error = None
    waiting = f"{issued[-1][3]} #{issued[-1][5]} in group {issued[-1][4]!r}" if issued else ""
    times = [record[0] for record in records]
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
    from dataclasses import replace

    return replace(result, operations=operations[result.rank])


def _content(bases: list[str], text: str, data: bytes) -> Any:
    """The value or exception; a stand-in of the same name and text if it would not pickle."""
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
