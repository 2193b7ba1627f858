"""Traces the first difference between two runs back to the line that caused it.

Both runs have a line trace per rank. At the line that made the first differing event, some names already have different
values. The line that gave them these values reads names too; and so on, until a line reads the same in both runs and
yet does something else. That line is shown: everything before is equal, everything after follows from it.

A program has many values that differ and do not matter (a temporary folder's name). They are not on this path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from simdist.determinism._compare import Difference
from simdist.determinism._describe import plain
from simdist.determinism._lines import GENERATORS, RETURNED, Step
from simdist.determinism._recording import MAIN, Recording
from simdist.determinism._source import statement_at
from simdist.determinism._suspects import suspect
from simdist.records import Issued

__all__ = ["Origin", "origin_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The step that began the difference, in both runs, and the steps through which it reached the event.

    `name` is the name whose value differs first. `from_outside` is True if the step only reads a value that nothing in
    the trace has written: it was different before, or something outside the program changed it.
    """

    rank: int
    one: Step
    other: Step
    way: tuple[Step, ...]
    name: str = ""
    from_outside: bool = False

    @property
    def values(self) -> tuple[str, str]:
        """The value of `name` in either run."""
        return tuple(  # type: ignore[return-value]  # two of them
            (step.before if self.from_outside else step.after | {}).get(self.name, "")
            for step in (self.one, self.other)
        )


def origin_of(one: Recording, other: Recording, difference: Difference) -> Origin | None:
    """Where the difference began; None if the traces do not show it."""
    found = []
    for rank, step in _criteria(one, difference):
        for key in (key for key in one.traces if key[1] == rank and key[0] in (difference.world, -1)):
            theirs = other.traces.get(key)
            if theirs is not None:
                origin = _Walk(one, other, key).start(step)
                if origin is not None:
                    found.append(origin)
    # If one rank's data differ, they cause the differences in what all others receive.
    return min(found, key=lambda origin: (origin.from_outside, not origin.way, origin.rank), default=None)


def _criteria(one: Recording, difference: Difference) -> Iterator[tuple[int, int]]:
    """The ranks to look at, and how many steps each had made when the difference appeared."""
    versions = [version for version in (difference.one, difference.other) if version.event is not None]
    ranks = list(dict.fromkeys(version.rank for version in versions if version.rank >= 0))
    if difference.what == "event" and ranks:
        for rank in ranks:
            step = max((v.step for v in versions if v.rank == rank), default=-1)
            yield rank, step if step >= 0 else 2**62
        return
    event = (difference.one.event or difference.other.event) or {}
    if difference.what == "event" and event.get("kind") == "complete":
        for noted in one.worlds[difference.world].events[: difference.index]:
            record = noted.record
            if not isinstance(record, Issued):
                continue
            if (record.op, record.group, record.seq) == (event["op"], event["group"], event["seq"]):
                yield record.rank, noted.step
        return
    if difference.what == "returned value":
        yield int(event["rank"]), 2**62
        return
    yield from ((key[1], 2**62) for key in one.traces)


class _Walk:
    """The search back through one pair of traces."""

    def __init__(self, one: Recording, other: Recording, key: tuple[int, int, int]) -> None:
        self._rank = key[1]
        self._one, self._other = one.traces[key].steps, other.traces[key].steps
        same = takewhile(lambda pair: pair[0].place == pair[1].place, zip(self._one, self._other, strict=False))
        self._common = sum(1 for _ in same)
        self._main = None if key == MAIN else _main_walk(one, other)
        self._visited: set[int] = set()

    def start(self, steps: int) -> Origin | None:
        """The origin of the difference that appeared after `steps` steps."""
        if self._common == 0:
            return None
        last = min(steps, len(self._one), len(self._other)) - 1
        if last < self._common:
            return self._back(max(0, last), ())
        return self._back(self._branch(), ())

    def _branch(self) -> int:
        """The step after which the runs took different paths."""
        following = [steps[self._common] for steps in (self._one, self._other) if self._common < len(steps)]
        for step in following:
            for index in range(self._common - 1, -1, -1):
                if self._one[index].frame == step.frame:
                    return index
            if 0 <= step.caller < self._common:
                return step.caller
        return self._common - 1

    def _back(self, index: int, way: tuple[Step, ...]) -> Origin | None:
        if index in self._visited:
            return None
        self._visited.add(index)
        one, other = self._one[index], self._other[index]
        way = (one, *way)
        if self._is_suspect(index):
            return self._origin(index, way)
        differing = [name for name in one.before if one.before[name] != other.before.get(name)]
        if any(name not in GENERATORS for name in differing):
            differing = [name for name in differing if name not in GENERATORS]
        else:  # only those that the line draws from
            differing = [name for name in differing if one.after.get(name) != one.before[name]]
        outside: Origin | None = None
        for name in differing:
            writer = self._writer(name, index)
            if writer is not None:
                origin = self._back(writer, way)
            elif name in self._parameters(index):
                origin = self._back(one.caller, way)
            elif self._main is not None and (place := self._main.last_writer(name)) is not None:
                origin = self._main._back(place, way)
            else:
                outside = outside or Origin(self._rank, one, other, way[1:], name, from_outside=True)
                continue
            if origin is not None:
                return origin
        if differing:
            return outside
        callee = self._callee(index)
        if callee is not None:
            origin = self._back(callee, way)
            if origin is not None:
                return origin
        return self._origin(index, way)

    def _origin(self, index: int, way: tuple[Step, ...]) -> Origin:
        one, other = self._one[index], self._other[index]
        changed = [name for name in one.after if one.after[name] != other.after.get(name, "")]
        changed.sort(key=lambda name: (name[0] == "(", one.before.get(name) != other.before.get(name)))
        return Origin(self._rank, one, other, way[1:], changed[0] if changed else "")

    def _is_suspect(self, index: int) -> bool:
        """True if the line reads only values that differ in each process anyway, and has a cause of its own."""
        one, other = self._one[index], self._other[index]
        differing = [name for name in one.before if one.before[name] != other.before.get(name)]
        if not differing or not all(plain(one.before[name]) == plain(other.before.get(name, "")) for name in differing):
            return False
        return suspect(statement_at(one.file, one.line), one.line) is not None

    def _writer(self, name: str, before: int) -> int | None:
        """The last step before this one that made the values of `name` differ between the runs."""
        reader = self._one[before]
        resumed: int | None = None
        for index in range(before - 1, -1, -1):
            one, other = self._one[index], self._other[index]
            if one.after.get(name) == other.after.get(name) or one.before.get(name) != other.before.get(name):
                continue
            if (
                one.frame == reader.frame
                or ":" in name
                or name in GENERATORS
                or (name[0] == "^" and one.file == reader.file)
            ):
                return index
            if resumed is None and (one.file, one.function) == (reader.file, reader.function):
                resumed = index  # a generator gets another number each time it is resumed
        return resumed

    def last_writer(self, name: str) -> int | None:
        """The last common step that made the values of `name` differ between the runs."""
        for index in range(self._common - 1, -1, -1):
            one, other = self._one[index], self._other[index]
            if one.after.get(name) != other.after.get(name) and one.before.get(name) == other.before.get(name):
                return index
        return None

    def _parameters(self, index: int) -> list[str]:
        """The names that the frame got from its caller, as it never wrote them itself."""
        step = self._one[index]
        local = [name for name in step.before if ":" not in name and name[0] not in "^("]
        return local if 0 <= step.caller < self._common else []

    def _callee(self, index: int) -> int | None:
        """The last step, in the calls made by this step, that returned something else; else the last that differs."""
        both = zip(self._one[: self._common], self._other, strict=False)
        made = [(at, one.after, other.after) for at, (one, other) in enumerate(both) if one.caller == index]
        returned = [at for at, one, other in made if one.get(RETURNED) != other.get(RETURNED)]
        return max(returned or [at for at, one, other in made if one != other], default=None)


def _main_walk(one: Recording, other: Recording) -> _Walk | None:
    return _Walk(one, other, MAIN) if MAIN in one.traces and MAIN in other.traces else None
