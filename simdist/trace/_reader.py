"""Reads the files of `simdist run --trace` or `--events`.

The file may have any content: every value is checked before it is used, so that the result is a trace that all of
simdist can show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simdist.errors import TraceError
from simdist.records import specs
from simdist.result import Event, Span
from simdist.trace._trace import Trace, trace_of_events
from simdist.values import (
    JSON,
    LONGEST_NS,
    Dialect,
    Duration,
    Finding,
    Number,
    OneOf,
    Spec,
    Text,
    Unfit,
    Whole,
    brief,
    place,
    plain,
    shortened,
)

__all__ = ["read_trace"]

_RANK = re.compile(r"rank (\d{1,9})(?: async \d+)?", re.ASCII)
_MOST_RANK = 2**31 - 1
_SHOWN = 5  # problems
_TIME, _NUMBER, _TEXT = Duration(), Whole(), Text()
_EVENT_RANK = Whole(least=-1, most=_MOST_RANK)


@dataclass(frozen=True, slots=True)
class _Microseconds(Spec):
    """A time as Chrome writes it, converted to nanoseconds."""

    def check(self, value: object, dialect: Dialect = JSON) -> int:
        time_us = value if isinstance(value, int) and not isinstance(value, bool) else Number().check(value, dialect)
        if not 0 <= time_us < LONGEST_NS // 1000:
            raise Unfit([Finding((), f"{brief(value)} µs is no virtual time: it is negative, or beyond 292 years")])
        return round(time_us * 1000)


_MICROSECONDS = _Microseconds()
_VALUES: dict[str, Spec] = {**specs(), "end": OneOf(("complete", "error", "cut off"))}  # the last: of a Chrome slice
_INSTANT: dict[str, Spec] = {"name": _TEXT, "cat": _TEXT, "pid": _NUMBER, "tid": _NUMBER, "ts": _MICROSECONDS}
_SLICE = _INSTANT | {"dur": _MICROSECONDS}


def read_trace(path: Path) -> Trace:
    """Return the trace in a Chrome trace or a file of event lines, distinguished by the content.

    Raises:
        TraceError: there is no such file, or it is neither of the two.
    """
    name = shortened(plain(str(path), ""), 200)
    try:
        if path.is_char_device():  # some never end
            raise TraceError(name, "cannot be read: it is a device")
        text = path.read_text("utf-8")
    except OSError as error:
        raise TraceError(name, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(name, "is not text; expected what `simdist run --trace` or `--events` writes") from None
    except ValueError as error:  # of the path: a NUL character
        raise TraceError(name, f"cannot be read: {error}") from None
    reader = _Reader()
    try:
        if text.lstrip().startswith('{"traceEvents"'):
            trace = reader.chrome(reader.json(text, ""))
        else:
            trace = reader.lines(text)
    except _StopError:
        trace = None
    if trace is None or reader.problems:
        shown = "; ".join(reader.problems[:_SHOWN])
        more = f"; and {len(reader.problems) - _SHOWN} more" if len(reader.problems) > _SHOWN else ""
        raise TraceError(
            name,
            f"is not a trace of simdist ({shown}{more}); expected what `simdist run --trace` or `--events` writes",
        )
    return trace


class _StopError(Exception):
    """Reading can't go on."""


class _Reader:
    """Reads one file, and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def json(self, text: str, where: str) -> Any:
        """Return the value of a JSON text.

        Raises:
            _StopError: it is no JSON; the reason is among the problems.
        """
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error}"
        except ValueError:  # Python makes no numbers with so many digits
            reason = "not JSON that can be read: a number of thousands of digits"
        except RecursionError:
            reason = "nested too deep"
        self.problems.append(f"{where}{reason}")
        raise _StopError

    def lines(self, text: str) -> Trace:
        """Return the trace in lines of events."""
        events = []
        for number, line in enumerate(text.splitlines(), start=1):
            record = self.json(line, f"line {number}: ")
            event = self._event(record, f"line {number}: ")
            if event is not None:
                events.append(event)
        if not events and not self.problems:
            self.problems.append("it holds no events")
        if self.problems:
            raise _StopError
        return trace_of_events(events, max(event.time_ns for event in events))

    def _event(self, record: Any, where: str) -> Event | None:
        wanted: dict[str, Spec] = {"time_ns": _TIME, "kind": _TEXT, "rank": _EVENT_RANK}
        values = self._values(record, wanted, where)
        data = self._data(record, "data", where)
        return (
            None if values is None or data is None else Event(values["time_ns"], values["kind"], values["rank"], data)
        )

    def chrome(self, trace: Any) -> Trace:
        """Return the trace in Chrome's format."""
        records = trace.get("traceEvents")
        if not isinstance(records, list):
            self._add("traceEvents", "expected a list")
            raise _StopError
        other = self._values(trace.get("otherData"), {"virtual_time_ns": _TIME, "seed": _NUMBER}, "otherData.")
        tracks = self._tracks(records)
        begun: dict[tuple[int, int, int], int] = {}
        read: list[tuple[str, str, dict[str, Any], int]] = []
        for index, record in enumerate(records):
            where = f"traceEvents[{index}]."
            phase = record.get("ph") if isinstance(record, dict) else None
            if phase not in ("X", "i"):
                continue
            values = self._values(record, _SLICE if phase == "X" else _INSTANT, where)
            if values is None:
                continue
            track = values["pid"], values["tid"]
            if phase == "X" and values["cat"] == "transfer":
                begun[*track, values["ts"] + values["dur"]] = values["ts"]
            elif phase == "i" or values["cat"] in ("issue", "sleep", "delay"):
                data = self._data(record, "args", where)
                if track not in tracks:
                    self._add(where, f"its track {track} has no name")
                elif data is not None:
                    read.append((phase, where, values | {"args": data}, tracks[track]))
        spans, marks = [], []
        for phase, where, values, rank in read:
            if phase == "i":
                marks.append(Event(values["ts"], values["cat"], rank, values["args"]))
            elif rank < 0 or "end" not in values["args"]:
                self._add(where, "is on no rank's track" if rank < 0 else "its args have no end")
            else:
                spans.append(_span(values, rank, begun))
        if other is None or self.problems:
            raise _StopError
        return Trace(tuple(spans), tuple(marks), 0, other["virtual_time_ns"], other["seed"])

    def _tracks(self, records: list[Any]) -> dict[tuple[int, int], int]:
        """Return the rank of each track; -1 for tracks of none."""
        tracks = {}
        for index, record in enumerate(records):
            where = f"traceEvents[{index}]."
            if not isinstance(record, dict):
                self._add(where, f"expected a table, found {JSON.found(record)}")
            elif record.get("ph") == "M" and record.get("name") == "thread_name":
                ids = self._values(record, {"pid": _NUMBER, "tid": _NUMBER}, where)
                named = self._values(record.get("args"), {"name": _TEXT}, f"{where}args.")
                if ids is not None and named is not None:
                    found = _RANK.fullmatch(named["name"])
                    tracks[ids["pid"], ids["tid"]] = int(found[1]) if found else -1
        return tracks

    def _values(self, record: Any, wanted: Mapping[str, Spec], where: str) -> dict[str, Any] | None:
        """Return the values of a record under these keys, checked; None if one is missing or wrong."""
        if not isinstance(record, dict):
            self._add(where, f"expected a table, found {JSON.found(record)}")
            return None
        values: dict[str, Any] = {}
        for name, spec in wanted.items():
            if name not in record:
                self._add(f"{where}{name}", "missing")
            else:
                self._take(values, name, spec, record[name], where, (name,))
        return values if len(values) == len(wanted) else None

    def _data(self, record: Any, name: str, where: str) -> dict[str, Any] | None:
        """Return the table under `name`, each value with a known name checked."""
        if not isinstance(record, dict):
            return None
        raw = record.get(name)
        if not isinstance(raw, dict):
            self._add(f"{where}{name}", f"expected a table, found {JSON.found(raw)}" if name in record else "missing")
            return None
        data: dict[str, Any] = {}
        for key, value in raw.items():
            if key in _VALUES:
                self._take(data, key, _VALUES[key], value, where, (name, key))
            else:
                data[key] = value
        return data if len(data) == len(raw) else None

    def _take(self, into: dict[str, Any], key: str, spec: Spec, value: Any, where: str, path: tuple[str, ...]) -> None:
        try:
            checked = spec.check(value, JSON)
        except Unfit as unfit:
            for finding in unfit.findings:
                self._add(f"{where}{place((*path, *finding.path))}", finding.text)
        else:
            into[key] = list(checked) if isinstance(checked, tuple) else checked  # as events have them

    def _add(self, where: str, text: str) -> None:
        self.problems.append(f"{where.rstrip('. :')}: {text}")


def _span(record: Mapping[str, Any], rank: int, begun: Mapping[tuple[int, int, int], int]) -> Span:
    start, end = record["ts"], record["ts"] + record["dur"]
    arguments = dict(record["args"])
    how, message = arguments.pop("end"), arguments.pop("message", None) or ""
    begin = begun.get((record["pid"], record["tid"], end)) if how == "complete" else None
    if how == "complete" and begin is None:
        begin = end  # its data took no time
    issue = Event(start, record["cat"], rank, {"op": record["name"]} | arguments)
    return Span(rank, start, end, record["name"], issue, how, begin if issue.kind == "issue" else None, message)
