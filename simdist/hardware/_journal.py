"""A rank's events on disk, one file for each life: everything written survives the death of the writer."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from simdist.records import Issued, Packed

__all__ = ["Journal", "JournalLine", "Life", "path_of", "read_events", "read_life", "read_lives"]

_Fields = ParamSpec("_Fields")

JournalLine = tuple[Any, ...]
"""A line of a journal: a record as it is packed, or a note for readers in the same form."""


@dataclass(frozen=True, slots=True)
class Life:
    """The journal of one rank in one life: its events, without refused calls; `strikes` are those of faults.

    `origin_ns` is when the run began, by the system's clock; `ended` the note of the rank's parent about how the
    process ended, None if there is none.
    """

    rank: int
    life: int
    records: Sequence[Packed]
    origin_ns: int
    ended: JournalLine | None
    strikes: tuple[JournalLine, ...] = ()


class Journal:
    """Appends records, packed as a simulation's log holds them, to the rank's file.

    Rank -1 stands for the world: for events of no rank in particular.

    Each event is one write to a file opened for appending: events of several threads do not mix, and none is lost when
    the process is killed. Times are counted from `origin_ns`, a value of the system's clock.
    """

    def __init__(self, folder: Path, rank: int, life: int) -> None:
        self._file = os.open(path_of(folder, rank, life), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._rank = rank
        self.origin_ns = time.time_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return time.time_ns() - self.origin_ns

    def record(
        self,
        make: Callable[Concatenate[int, int, _Fields], Packed],
        *fields: _Fields.args,
        **named: _Fields.kwargs,
    ) -> None:
        """Write a record of the rank about the present moment; `make` is a function of `simdist.records`."""
        self.record_at(self.now_ns(), make, *fields, **named)

    def record_at(
        self,
        time_ns: int,
        make: Callable[Concatenate[int, int, _Fields], Packed],
        *fields: _Fields.args,
        **named: _Fields.kwargs,
    ) -> None:
        """Write a record of the rank about the moment `time_ns`."""
        self._write(make(time_ns, self._rank, *fields, **named))

    def note(self, kind: str, *values: object, time_ns: int | None = None) -> None:
        """Write a note for readers of the journal, which is no event of the run."""
        self._write((self.now_ns() if time_ns is None else time_ns, kind, self._rank, *values))

    def _write(self, packed: Packed) -> None:
        os.write(self._file, (json.dumps(packed) + "\n").encode())


def path_of(folder: Path, rank: int, life: int) -> Path:
    """Return the file of one rank in one life."""
    return folder / f"rank{rank}-life{life}.jsonl"


def read_lives(folder: Path) -> list[tuple[int, int]]:
    """Return which ranks left a journal in which lives, as (rank, life) in order."""
    found = [re.fullmatch(r"rank(\d+)-life(\d+)\.jsonl", path.name) for path in folder.iterdir()]
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def read_events(folder: Path, rank: int, life: int) -> Iterator[JournalLine]:
    """Yield the events of one rank in one life; a line that its writer could not finish is left out."""
    path = path_of(folder, rank, life)
    text = path.read_text("utf-8") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            values: list[Any] = json.loads(line)
            yield tuple(tuple(value) if isinstance(value, list) else value for value in values)


def read_life(folder: Path, rank: int, life: int) -> Life:
    """Return the journal of one rank in one life."""
    kept: list[JournalLine] = []
    strikes: list[JournalLine] = []
    ended, origin_ns = None, 0
    for record in read_events(folder, rank, life):
        if record[1] == "ended":
            ended = record
        elif record[1] == "origin":
            origin_ns = record[3]
        elif record[1] == "strike":
            strikes.append(record)
        elif record[1] == "refused":
            key = record[3:6]
            kept = [other for other in kept if not (other[1] == Issued.kind and other[3:6] == key)]
        else:
            kept.append(record)
    return Life(rank, life, kept, origin_ns, ended, tuple(strikes))
