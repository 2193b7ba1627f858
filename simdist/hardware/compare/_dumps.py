"""A real run's flight records as files for torch's own analyser, `torchfrtrace`: one for each rank, of its last life.

NCCL's are handed out as they are. Gloo's lack information that the analyser needs (the ranks of a group, whether an
operation is over, messages), and a rank that was killed left none. So over Gloo each dump is made of simdist's records,
as for a simulated run, with the code lines that torch recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdist.frames import is_our_file
from simdist.hardware._flight import Frame
from simdist.trace import trace_of, write_flight_recorder

if TYPE_CHECKING:
    from simdist.hardware.compare._replay import RealReport

__all__ = ["write_dumps"]

_PREFIX = "nccl_trace_rank_"  # the analyser's own


def write_dumps(report: RealReport, folder: Path) -> list[str]:
    """Write them into `folder`, made if missing; return a line for each rank that has none, with the reason."""
    if report.backend == "gloo":
        write_flight_recorder(trace_of(report.result), folder, _frames(report))
        return []
    folder.mkdir(parents=True, exist_ok=True)
    records = {
        match.record.rank: match.record for match in report.matches if match.record.life == report.result.restarts
    }
    lines = []
    for rank in report.result.ranks:
        record = records.get(rank.rank)
        if record is None:
            lines.append(f"rank {rank.rank}: no dump; it left no flight record ({rank.status})")
        elif record.problem:
            lines.append(f"rank {rank.rank}: no dump; its flight record {record.problem}")
        else:
            (folder / f"{_PREFIX}{rank.rank}").write_bytes(record.content)
    return lines


def _frames(report: RealReport) -> dict[tuple[int, int, str, str, str], Sequence[Frame]]:
    """Return the code lines of each operation that torch has recorded; without simdist's own lines."""
    entries = {(match.record.rank, match.record.life): dict(match.pairs) for match in report.matches}
    lives: dict[int, int] = {}
    frames: dict[tuple[int, int, str, str, str], Sequence[Frame]] = {}
    for event in report.result.events:
        data: Mapping[str, Any] = event.data
        if event.kind == "start":
            lives[event.rank] = int(data["life"])
        elif event.kind == "issue":
            op, group, sequence = (data[name] for name in ("op", "group", "seq"))
            entry = entries.get((event.rank, lives.get(event.rank, 0)), {}).get((op, group, sequence))
            if entry is not None:
                lines = [frame for frame in entry.frames if not _leads_to_the_program(frame[0])]
                frames[event.time_ns, event.rank, str(group), str(op), str(sequence)] = lines
    return frames


def _leads_to_the_program(file: str) -> bool:
    return is_our_file(file) or file.startswith("<frozen runpy")
