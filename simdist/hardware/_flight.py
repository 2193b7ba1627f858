"""Flight records: the entries of torch's own recorder in a real rank, from the rank's process to the launcher.

At the end of its program a rank writes the record to a file; NCCL's watchdog does so when a timeout has passed, because
the process may die before it can. Both files are in torch's own format, one for each rank and life, named so that they
travel with the journals. Gloo's recorder has less than NCCL's: no messages, no times but that of the call, and the end
of an operation only as "retired" (torch 2.13, FlightRecorder.hpp version 2.10).
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from simdist.hardware._job import Job

__all__ = ["Entry", "FlightRecord", "read_record", "save_record", "watchdog_environment"]

_DUMPS = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}  # in builds that have the backend

Frame = tuple[str, int, str]  # file, line, function


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation as torch recorded it. Times are nanoseconds since the run began, None if torch does not say.

    `op` is torch's name without the backend, such as "_all_gather_base"; `sequence` counts the collectives, or the
    messages, of the group from 1. Starts and ends are the times at which a thread of torch's noticed them, up to 100 ms
    late; the duration is the device's own.
    """

    group: str
    op: str
    sequence: int
    is_message: bool
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int
    started_ns: int | None = None
    completed_ns: int | None = None
    duration_ns: int | None = None
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The content of one rank's recorder in one life, oldest entry first, and that of the file.

    `is_whole` is False if older operations have been overwritten, `at_end` if torch's watchdog wrote it while the
    program ran; `watchdog_wrote` is True if the watchdog wrote a record, this one or another. `is_on` is False if the
    program's environment switches the recorder off. `problem` says why the file could not be read, empty if it could.
    """

    rank: int
    life: int
    content: bytes
    entries: tuple[Entry, ...] = ()
    is_whole: bool = True
    at_end: bool = True
    watchdog_wrote: bool = False
    is_on: bool = True
    problem: str = ""


def watchdog_environment(job: Job, life: int) -> dict[str, str]:
    """Return where torch's watchdog writes the record of a rank in this life; torch appends the rank."""
    if job.backend != "nccl":
        return {}
    names = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")  # until torch 2.11; since
    return dict.fromkeys(names, str(_watchdog_path(Path(job.out), "", life)))


def save_record(job: Job, rank: int, life: int) -> None:
    """Write the record of this process to a file; a rank whose torch has no recorder leaves no file."""
    from simdist.inside.torch import c10d_bindings

    dump: Callable[[], bytes] | None = getattr(c10d_bindings, _DUMPS[job.backend], None)
    if dump is None or not job.record:
        return
    try:
        _own_path(Path(job.out), rank, life).write_bytes(dump())
    except Exception as error:  # whatever the error is, the rank has reached its own end
        sys.stderr.write(f"simdist: rank {rank} could not write its flight record: {error!r}\n")


def read_record(folder: Path, rank: int, life: int, origin_ns: int) -> FlightRecord | None:
    """Return the record of one rank in one life, None if it left none; `origin_ns` is when the run began.

    The rank's own file at its end is preferred to the watchdog's; a damaged file is preferred to none.
    """
    own, watchdogs = _own_path(folder, rank, life), _watchdog_path(folder, str(rank), life)
    found = [
        _read(FlightRecord(rank, life, path.read_bytes(), at_end=path is own), origin_ns)
        for path in (own, watchdogs)
        if path.exists()
    ]
    best = min(found, key=lambda record: bool(record.problem), default=None)
    return None if best is None else replace(best, watchdog_wrote=watchdogs.exists())


def _own_path(folder: Path, rank: int, life: int) -> Path:
    return folder / f"rank{rank}-life{life}.flight"


def _watchdog_path(folder: Path, rank: str, life: int) -> Path:
    return folder / f"rank-watchdog-life{life}-{rank}"


def _read(record: FlightRecord, origin_ns: int) -> FlightRecord:
    """Return the record with its content parsed."""
    try:
        dump = _PlainUnpickler(io.BytesIO(record.content)).load()
        listed = dump.get("entries", [])
        entries = tuple(_entry(each, origin_ns) for each in listed)
        is_whole = not listed or listed[0]["record_id"] == 0
        is_on = bool(listed or dump["pg_config"])
    except Exception as error:  # a file that is cut off, or of another version of torch
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return replace(record, problem=f"cannot be read: {words}")
    return replace(record, entries=entries, is_whole=is_whole, is_on=is_on)


class _PlainUnpickler(pickle.Unpickler):
    """Reads torch's files, which have numbers, texts, lists and dicts only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class.

        Raises:
            UnpicklingError: always.
        """
        raise pickle.UnpicklingError(f"{module}.{name} in a flight record")


def _entry(each: Mapping[str, Any], origin_ns: int) -> Entry:
    started, completed = each.get("time_discovered_started_ns"), each.get("time_discovered_completed_ns")
    duration_ms = each.get("duration_ms")
    is_message = bool(each.get("is_p2p", False))
    return Entry(
        group=str(each["process_group"][0]),
        op=str(each["profiling_name"]).partition(":")[2].partition(" ")[0],
        sequence=int(each["p2p_seq_id"] if is_message else each["collective_seq_id"]),
        is_message=is_message,
        input_sizes=_sizes(each["input_sizes"]),
        input_dtypes=tuple(each["input_dtypes"]),
        output_sizes=_sizes(each["output_sizes"]),
        output_dtypes=tuple(each["output_dtypes"]),
        state=str(each["state"]),
        retired=bool(each["retired"]),
        created_ns=each["time_created_ns"] - origin_ns,
        started_ns=None if started is None else started - origin_ns,
        completed_ns=None if completed is None else completed - origin_ns,
        duration_ns=None if duration_ms is None else round(duration_ms * 1e6),
        frames=tuple((f["filename"], int(f["line"]), f["name"]) for f in each.get("frames", ())),
    )


def _sizes(listed: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size) for size in listed)
