"""The outcome of a check, and how it reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from simdist.determinism._causes import Cause
from simdist.determinism._compare import Difference, Version
from simdist.determinism._source import source_line
from simdist.trace import short_duration
from simdist.values import Shown

__all__ = ["DeterminismReport"]

_WIDE = 36


@dataclass(frozen=True, slots=True)
class DeterminismReport(Shown):
    """How a run compares with its repetition in a fresh process under `hash_seed`.

    Example:
        >>> report = simdist.check_determinism(train, world_size=4)
        >>> assert report.ok, str(report)
    """

    target: str
    digests: tuple[str, ...]  # of each world that ran
    other_digests: tuple[str, ...]
    hash_seed: str
    difference: Difference | None = None
    cause: Cause | None = None
    programs: tuple[str, ...] = ()  # outside the simulation that ranks started; no seed decides what they answer

    @property
    def ok(self) -> bool:
        """True if both runs are the same, event for event."""
        return self.difference is None

    @property
    def where(self) -> str:
        """The place of the first difference, in few words."""
        if self.difference is None:
            return ""
        world = f" of world {self.difference.world}" if len(self.digests) > 1 else ""
        if self.difference.what == "event":
            return f"event {self.difference.index}{world}"
        return f"the {self.difference.what}{world}"

    def __str__(self) -> str:
        fresh = f"in a fresh process with PYTHONHASHSEED={self.hash_seed}"
        if self.difference is None:
            return "\n".join([f"{self.target}: the same {fresh}", *self.program_lines()])
        return "\n".join([f"{self.target}: not the same {fresh}, from {self.where} on", *self.lines()])

    def lines(self) -> list[str]:
        """The first difference, side by side, and its likely cause; nothing if there is none."""
        if self.difference is None:
            return []
        rows = self.rows()
        width = max(len(row[1]) for row in rows)
        column = max(len("this process"), min(_WIDE, max(len(row[2]) for row in rows)))
        lines = [f"    {'':{width}}  {'this process':{column}}  fresh process"]
        for mark, key, one, other in rows:
            lines.append(f"  {mark} {key:{width}}  {_cut(one):{column}}  {_cut(other)}")
        sites = dict.fromkeys(version.site for version in (self.difference.one, self.difference.other))
        code = [
            f"      {at[0].rpartition('/')[2]}:{at[1]}  {source_line(at[0], at[1])}" for at in sites if at is not None
        ]
        return [*lines, *code, *self._cause_lines(), *self.program_lines()]

    def program_lines(self) -> list[str]:
        """Lines on the programs that ran outside, whose output may vary between runs; nothing if there are none."""
        if not self.programs:
            return []
        return ["no seed decides what programs outside the simulation do:", *(f"  {line}" for line in self.programs)]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The first differing event field by field: a star if the field differs, its name, and both versions."""
        assert self.difference is not None
        one, other = _flat(self.difference.one), _flat(self.difference.other)
        return [
            ("*" if one.get(key) != other.get(key) else " ", key, one.get(key, "-"), other.get(key, "-"))
            for key in dict.fromkeys([*one, *other])
        ]

    def _cause_lines(self) -> list[str]:
        cause = self.cause
        if cause is None:
            return ["likely cause: not found; it did not show again when the program was traced"]
        on = f", on rank {cause.rank}" if cause.rank >= 0 else ""
        lines = [f"likely cause: {cause.kind}", f"  {cause.file}:{cause.line}{on}", f"      {cause.source}"]
        if any(cause.values):
            what = f"`{cause.name}`" if cause.name and cause.name[0] != "(" else "it"
            lines += [
                f"  {what} is  {cause.values[0] or '(nothing)'}",
                f"  {'and':>{len(what)}} is  {cause.values[1] or '(nothing)'}",
            ]
        if len(cause.way) > 1:
            steps = [f"{file.rpartition('/')[2]}:{line}" for file, line in cause.way]
            shown = steps if len(steps) <= 6 else [*steps[:3], "...", *steps[-2:]]
            lines.append(f"  from there to the event: {' -> '.join(shown)}")
        return [*lines, f"  what helps: {cause.advice}"]


def _flat(version: Version) -> dict[str, str]:
    if version.event is None:
        return {"kind": "the run has ended"}
    event: dict[str, Any] = dict(version.event)
    if "time_ns" in event:
        event["time"] = short_duration(event.pop("time_ns"))
    found = {key: value if isinstance(value, str) else json.dumps(value) for key, value in event.items()}
    if version.site is not None:
        file, line, function = version.site
        found["called"] = f"{file.rpartition('/')[2]}:{line} in {function}"
    return found


def _cut(text: str) -> str:
    text = text.splitlines()[0] if text else text
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."
