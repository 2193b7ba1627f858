"""Events as lines of JSON: for comparing two runs, and for tools such as jq."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO

from simdist.result import Event

__all__ = ["event_line", "write_events"]


def event_line(event: Event) -> str:
    """Return the event as one line of JSON, its keys always in the same order."""
    record = {"time_ns": event.time_ns, "kind": event.kind, "rank": event.rank, "data": dict(event.data)}
    return json.dumps(record, sort_keys=True, ensure_ascii=True, default=repr)


def write_events(events: Iterable[Event], stream: TextIO) -> None:
    """Write each event as a line of JSON."""
    for event in events:
        stream.write(event_line(event) + "\n")
