"""The `[[faults]]` of a file: each table is checked alone, then all of them in their world.

A table with a bad key is still read. Its bad fields hold `_WRONG`, and nothing more is reported about these. Where a
key is unknown, all fields that the table leaves out count as bad, since the key may stand for any of them. A table
whose kind is unknown is read as each kind in turn; problems of a key that appear with every kind are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simdist import faults
from simdist.faults import KINDS, SHORT_KEYS, Fault, fields_of, file_key, ranks_in
from simdist.scenario._fault_kinds import KindError, built_fault, fault_kind, fault_section
from simdist.scenario._schema import Problem, check
from simdist.values import FILE, brief, found, guess

__all__ = ["FaultTables"]

_WRONG = object()  # no spec accepts it


@dataclass(frozen=True, slots=True)
class _Reading:
    """A table read as one kind of fault: the problems of its keys, the fault, and its wrong fields."""

    kind: type[Fault]
    table: Mapping[str, object]
    problems: list[Problem]
    fault: Fault | None
    wrong: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FaultTables:
    """The tables of a file in `folder`, and their world; `about` holds further arguments of `problems_among`."""

    tables: Sequence[object]
    folder: Path
    world_size: int | None
    last_life: int | None
    about: Mapping[str, Any]

    def read(self, problems: list[Problem]) -> tuple[Fault, ...]:
        """Return the faults; their problems are appended to `problems`, in the order of the tables."""
        reported: list[list[Problem]] = [[] for _ in self.tables]
        readings: dict[int, _Reading] = {}
        for index, table in enumerate(self.tables):
            if not isinstance(table, dict):
                reported[index] = [Problem((), f"expected a table, found {found(table)}")]
                continue
            keys: dict[str, Any] = {
                SHORT_KEYS.get(str(key), str(key)): value for key, value in table.items() if key != "kind"
            }
            reported[index] = [
                Problem((short,), f"{long} and {short} are one key; give one of them")
                for long, short in SHORT_KEYS.items()
                if long in table and short in table
            ]
            try:
                if "kind" not in table:
                    raise KindError(f"missing; the kinds are {', '.join(KINDS)}")
                kind = fault_kind(table["kind"], self.folder)
            except KindError as error:
                reported[index] += [Problem(("kind",), str(error)), *self._whatever_kind(table.get("kind"), keys)]
            else:
                readings[index] = reading = self._as(kind, keys)
                reported[index] += reading.problems
        for index, problem in self._in_their_world(readings):
            reported[index].append(problem)
        for index, (table, lines) in enumerate(zip(self.tables, reported, strict=True)):
            written = {SHORT_KEYS[key]: key for key in table if key in SHORT_KEYS} if isinstance(table, dict) else {}
            for line in lines:
                path = (written.get(str(line.path[0]), line.path[0]), *line.path[1:]) if line.path else ()
                problems.append(Problem(("faults", index, *path), line.text))
        return tuple(reading.fault for reading in readings.values() if reading.fault is not None)

    def _as(self, kind: type[Fault], table: Mapping[str, object]) -> _Reading:
        """Read a table as this kind of fault."""
        problems: list[Problem] = []
        section = check(fault_section(kind), dict(table), (), problems)
        fields = {file_key(name): name for name in fields_of(kind)}
        bad = {str(problem.path[0]) for problem in problems}
        unknown = bad - set(fields)
        wrong = frozenset(name for key, name in fields.items() if key in bad or (unknown and key not in table))
        try:
            if section is not None:
                return _Reading(kind, table, problems, built_fault(kind, section, self.folder))
            values: dict[str, Any] = {
                name: field.spec.check(table[file_key(name)], FILE)
                for name, field in fields_of(kind).items()
                if name not in wrong and file_key(name) in table
            }
            return _Reading(kind, table, problems, kind(**values | dict.fromkeys(wrong, _WRONG)), wrong)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's class with an __init__ of its own
            if section is not None:
                problems.append(Problem((), f"{kind.__name__}() raised {type(error).__name__}: {brief(str(error))}"))
            return _Reading(kind, table, problems, None)

    def _whatever_kind(self, said: object, table: Mapping[str, object]) -> Iterator[Problem]:
        """Yield the problems of a table of unknown kind: those of a key that appear in every kind with the key."""
        found: dict[str, list[Problem]] = {}
        known: list[str] = []
        for kind in KINDS.values():
            reading = self._as(kind, table)
            lines = [*reading.problems, *(problem for _, problem in self._in_their_world({0: reading}))]
            for key in (file_key(name) for name in fields_of(kind)):
                known.append(key)
                mine = [line for line in lines if line.path[:1] == (key,)]
                found[key] = [line for line in found.get(key, mine) if line in mine]
        for key in table:
            if key in found:
                yield from found[key]
            elif not (isinstance(said, str) and ":" in said):  # a user's class may have any key
                yield Problem((key,), f"unknown key{guess(key, known)}")

    def _in_their_world(self, readings: Mapping[int, _Reading]) -> Iterator[tuple[int, Problem]]:
        """Yield the problems of faults as a whole, and in their world, by the index of their tables."""
        built = {index: reading.fault for index, reading in readings.items() if reading.fault is not None}
        places = list(built)
        # A fault with problems of its own may still be the one that another comes after.
        tables = [table for table in self.tables if isinstance(table, dict)]
        names = [table["name"] for table in tables if isinstance(table.get("name"), str)]
        size = 2**63 if self.world_size is None else self.world_size  # while it is unknown, all ranks count as inside
        for problem in faults.problems_among(
            built.values(),
            size,
            self.last_life,
            **self.about,
            names=names,
            wrong={place: readings[index].wrong for place, index in enumerate(places)},
        ):
            index = places[problem.index]
            path = (*(file_key(str(part)) for part in problem.path[:1]), *problem.path[1:])
            yield index, Problem(path, _in_keys(problem.text, readings[index].kind))
        for index, reading in readings.items():  # a rank outside the world is reported even beside one that is no rank
            for name in sorted(reading.wrong):
                for rank in ranks_in(fields_of(reading.kind)[name].spec, reading.table.get(file_key(name))):
                    if not 0 <= rank < size:
                        text = f"rank {rank} is outside the world of {size} ranks"
                        yield index, Problem((file_key(name),), text)


def _in_keys(text: str, kind: type[Fault]) -> str:
    """Return a fault's text with the keys of a file in place of the names of its time fields."""
    times = "|".join(name for name in fields_of(kind) if name.endswith("_ns"))
    return re.sub(rf"\b({times})\b", lambda name: file_key(name[0]), text) if times else text
