"""A run as Chrome trace JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing.

One process per host, one track per rank. Operations that overlap on a rank get further tracks below the rank's own,
"async 1" and so on, rather than Chrome's async events: those would not stay next to the rank, and no arrow can end on
them. Inside an operation, "waits for peers" ends and "transfer" begins when its last participant arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from simdist.result import Event, RunResult, Span, spans_of
from simdist.trace._messages import Groups, messages
from simdist.trace._trace import IN_SPANS
from simdist.trace._tracks import Track, Tracks

__all__ = ["chrome_trace", "write_chrome_trace"]

Record = dict[str, object]


def write_chrome_trace(result: RunResult, stream: TextIO) -> None:
    """Write the run as Chrome trace JSON, one record a line; equal runs give equal bytes."""
    trace: dict[str, Any] = chrome_trace(result)
    lines = [json.dumps(record, separators=(",", ":")) for record in trace["traceEvents"]]
    rest = {key: value for key, value in trace.items() if key != "traceEvents"}
    stream.write('{"traceEvents":[\n' + ",\n".join(lines) + "\n]," + json.dumps(rest)[1:] + "\n")


def chrome_trace(result: RunResult) -> Record:
    """Return the run in the form that Chrome's trace viewers read, as JSON-ready data."""
    spans = spans_of(result.events, result.virtual_time_ns)
    tracks = Tracks(result.events, spans)
    timed: list[tuple[int, Record]] = []
    for index, span in enumerate(spans):
        timed += _span_records(span, tracks.of_span(index))
    timed += _arrows(spans, messages(spans, Groups(result.events)), tracks)
    timed += [(event.time_ns, _instant(event, tracks)) for event in result.events if event.kind not in IN_SPANS]
    timed.sort(key=lambda item: item[0])  # stable: an operation stays ahead of its parts
    return {
        "traceEvents": [*tracks.metadata(), *(record for _, record in timed)],
        "displayTimeUnit": "ns",
        "otherData": {"digest": result.digest, "seed": result.seed, "virtual_time_ns": result.virtual_time_ns},
    }


def _span_records(span: Span, track: Track) -> Iterator[tuple[int, Record]]:
    """Yield the operation, and in it the wait for its peers and the transfer."""
    arguments = {key: value for key, value in span.issue.data.items() if key != "op" or not span.is_operation}
    arguments |= {"end": span.end} | ({"message": span.message} if span.message else {})
    arguments |= {} if span.peer is None else {"peer": span.peer}
    yield _slice(span.name, span.issue.kind, span.start_ns, span.end_ns, track, arguments)
    if not span.is_operation:
        return
    # An operation that failed, or was cut off, waited to its end.
    begin_ns = span.end_ns if span.begin_ns is None else span.begin_ns
    if begin_ns > span.start_ns:
        yield _slice("waits for peers", "wait", span.start_ns, begin_ns, track, {})
    if span.end_ns > begin_ns:
        yield _slice("transfer", "transfer", begin_ns, span.end_ns, track, {})


def _slice(name: str, category: str, start_ns: int, end_ns: int, track: Track, arguments: Record) -> tuple[int, Record]:
    record = {"name": name, "cat": category, "ph": "X", "ts": _us(start_ns), "dur": _us(end_ns - start_ns)}
    return start_ns, record | track.ids() | {"args": arguments}


def _arrows(spans: Sequence[Span], pairs: Sequence[tuple[int, int]], tracks: Tracks) -> Iterator[tuple[int, Record]]:
    """Yield an arrow from each send to the recv that took its data."""
    for number, (send, recv) in enumerate(pairs, start=1):
        for phase, index in (("s", send), ("f", recv)):
            span = spans[index]
            time_ns = span.start_ns if phase == "s" or span.begin_ns is None else span.begin_ns
            record: Record = {"name": "message", "cat": "message", "ph": phase, "id": number, "ts": _us(time_ns)}
            yield time_ns, record | ({"bp": "e"} if phase == "f" else {}) | tracks.of_span(index).ids()


def _instant(event: Event, tracks: Tracks) -> Record:
    shown = {"fault": "fault", "step": "step", "store": "op", "output": "stream"}.get(event.kind)
    name = event.kind if shown is None else f"{event.kind} {event.data.get(shown, '')}".rstrip()
    wide = "g" if event.rank < 0 else "t"
    record = {"name": name, "cat": event.kind, "ph": "i", "s": wide, "ts": _us(event.time_ns)}
    return record | tracks.of_rank(event.rank).ids() | {"args": dict(event.data)}


def _us(time_ns: int) -> int | float:
    """Return microseconds; exact, as long as the time is below 104 days."""
    return time_ns // 1000 if time_ns % 1000 == 0 else time_ns / 1000
