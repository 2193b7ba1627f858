"""Reading back what `simdist run --trace` or `--events` has written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from simdist.errors import TraceError
from simdist.result import Event
from simdist.trace._spans import Span
from simdist.trace._trace import Trace, trace_of_events

__all__ = ["read_trace"]

_RANK = re.compile(r"rank (\d+)(?: async \d+)?")


def read_trace(path: Path) -> Trace:
    """The trace in a Chrome trace or a file of event lines, told apart by what is in it.

    Raises:
        TraceError: there is no such file, or it holds neither of the two.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise TraceError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(str(path), "is not text; expected what `simdist run --trace` or `--events` writes") from None
    try:
        if text.lstrip().startswith('{"traceEvents"'):
            return _from_chrome(json.loads(text))
        return _from_lines(text)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise TraceError(
            str(path), f"is no trace of simdist ({what}); expected what `simdist run --trace` or `--events` writes"
        ) from None


def _from_lines(text: str) -> Trace:
    events = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
            event = Event(int(record["time_ns"]), str(record["kind"]), int(record["rank"]), dict(record["data"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number}: {type(error).__name__}: {error}") from None
        events.append(event)
    if not events:
        raise ValueError("it holds no events")
    return trace_of_events(events, max(event.time_ns for event in events))


def _from_chrome(trace: dict[str, Any]) -> Trace:
    records = trace["traceEvents"]
    other = trace["otherData"]
    ranks: dict[tuple[int, int], int] = {}
    for record in records:
        if record["ph"] == "M" and record["name"] == "thread_name":
            found = _RANK.fullmatch(record["args"]["name"])
            ranks[record["pid"], record["tid"]] = int(found[1]) if found else -1
    begun = {
        (record["pid"], record["tid"], _ns(record["ts"] + record["dur"])): _ns(record["ts"])
        for record in records
        if record["ph"] == "X" and record["cat"] == "transfer"
    }
    spans, marks = [], []
    for record in records:
        if record["ph"] == "X" and record["cat"] in ("issue", "sleep", "delay"):
            spans.append(_span(record, ranks[record["pid"], record["tid"]], begun))
        elif record["ph"] == "i":
            marks.append(Event(_ns(record["ts"]), record["cat"], ranks[record["pid"], record["tid"]], record["args"]))
    return Trace(tuple(spans), tuple(marks), 0, int(other["virtual_time_ns"]), int(other["seed"]))


def _span(record: dict[str, Any], rank: int, begun: dict[tuple[int, int, int], int]) -> Span:
    start, end = _ns(record["ts"]), _ns(record["ts"] + record["dur"])
    arguments = dict(record["args"])
    how, message = arguments.pop("end"), arguments.pop("message", "")
    begin = begun.get((record["pid"], record["tid"], end)) if how == "complete" else None
    if how == "complete" and begin is None:
        begin = end  # its data took no time
    issue = Event(start, record["cat"], rank, {"op": record["name"]} | arguments)
    return Span(rank, start, end, record["name"], issue, how, begin if issue.kind == "issue" else None, message)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
