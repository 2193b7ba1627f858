"""What is compared of two runs: every event of every world, with its line in the user's code."""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.determinism._lines import LineTrace
from simdist.frames import Line
from simdist.records import ProgramStarted, Record
from simdist.values import program_lines

__all__ = ["MAIN", "Noted", "Recording", "Seen", "WorldRecord"]

MAIN = (-1, -1, 0)
"""The thread that starts the worlds, among (world, rank, life)."""


@dataclass(slots=True)
class Noted:
    """An event with data that are not in the digest: its call site, and the checksums of whole payloads.

    `step` is the number of steps that the rank's line trace had when the event was made, -1 without a trace.
    """

    record: Record
    site: Line | None = None
    whole: tuple[int, ...] = ()
    step: int = -1
    is_warning: bool = False  # torch's C++ gives some once per process, so a later run has one less

    @property
    def compared(self) -> tuple[object, ...]:
        """The parts of the event that must be the same in both runs."""
        return self.record, self.whole


@dataclass(slots=True)
class WorldRecord:
    """One world of a run: its events, and how its ranks ended."""

    events: list[Noted] = field(default_factory=list)
    values: list[str] = field(default_factory=list)  # what each rank returned
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Something outside the program that it looked at: a file that exists or not, the names in a folder."""

    kind: str
    site: Line
    value: str


@dataclass(slots=True)
class Recording:
    """A run of any number of worlds. Plain data: it travels between processes.

    `error` is what the program raised outside any rank, `traces` the line traces by (world, rank, life), `threads` the
    names of threads that ran at the same time.
    """

    worlds: list[WorldRecord] = field(default_factory=list)
    seen: dict[int, list[Seen]] = field(default_factory=dict)  # by rank; -1: outside any
    traces: dict[tuple[int, int, int], LineTrace] = field(default_factory=dict)
    threads: tuple[str, ...] = ()
    error: str = ""
    hash_seed: str = ""

    @property
    def digests(self) -> tuple[str, ...]:
        """The digest of each world."""
        return tuple(world.digest for world in self.worlds)

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs outside the simulation that ranks started, each with its line."""
        records = (noted.record for world in self.worlds for noted in world.events)
        return program_lines((each.name, each.where, each.rank) for each in records if isinstance(each, ProgramStarted))
