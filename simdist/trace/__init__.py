"""Event records by name, and exporters: a finished run's events as files that other tools read.

`_stream.py` makes events of a run's packed records. The classes of `simdist.records` define their data; the exporters
use `simdist.result` and take the events as data, so a new event kind shows up as a mark and breaks nothing:
`_chrome.py` writes Chrome trace JSON, which Perfetto opens; `_lines.py` writes one JSON object per event; `_reader.py`
reads both back. Pictures and tables need spans instead of events: a `Trace` (`_trace.py`) has them, `_figure.py` draws
it, `_streams.py` draws the streams of devices, `_waits.py` and `_graph.py` show which ranks wait for which,
`_flight_recorder.py` writes it for torch's analyser.

An event has `time_ns`, `kind`, `rank` (-1: none) and `data`, which holds, by kind:

| kind | data |
|---|---|
| start, exit, restart | life, pid, host; status, exit_code, life; life |
| child-start, child-exit | pid, name; pid, status, exit_code: of a process that a rank starts with multiprocessing |
| program-start, program-exit | name, where (line of the user); name, exit_code: of a program outside the simulation |
| group | group, ranks (global, in group order), desc: the members have met; rank -1 |
| issue | op, group, seq, nbytes, dtype, shape, peer (other end, or root, as a group rank; -1: none), async_op, tag |
| delay | duration_ns, op: a fault holds the rank up before it issues the operation |
| complete | op, group, seq, begin_ns (data began to flow), crc, peer (of a message); rank -1: for all that issued it |
| result | op, group, seq, crc: of all that the operation left in the rank's tensors |
| error | op, group, seq, error, message: the operation failed for that rank |
| sleep, step, store | duration_ns; step; op, key |
| output | stream, size, crc |
| state | parts: each the name of a tensor and a hash, as the program reports them |
| samples | epoch, samples: which the program uses in the present step |
| storage | effect ("write", "rename", ...), path (on the disk), offset, size (bytes written, or the new size), to |
| disk | path, text: after a loss of power it is not as its host saw it; rank -1 |
| late-write | a process of an earlier `life` has changed `path` after a restart |
| fault | fault (its kind), text, life |
| deadlock | cycle, text |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily
from simdist.result import Span
from simdist.trace._stream import EventStream, event_of, events_of

if TYPE_CHECKING:
    from simdist.trace._axis import short_duration
    from simdist.trace._chrome import chrome_trace, write_chrome_trace
    from simdist.trace._figure import save, timeline
    from simdist.trace._flight_recorder import flight_recorder_dumps, write_flight_recorder
    from simdist.trace._graph import wait_graph
    from simdist.trace._lines import event_line, write_events
    from simdist.trace._notes import notes_of, short_message
    from simdist.trace._reader import read_trace
    from simdist.trace._streams import StreamRun, stream_timeline
    from simdist.trace._trace import Trace, trace_of
    from simdist.trace._waits import Waiting, moment_of, waiting_at

__all__ = [
    "EventStream",
    "Span",
    "StreamRun",
    "Trace",
    "Waiting",
    "chrome_trace",
    "event_line",
    "event_of",
    "events_of",
    "flight_recorder_dumps",
    "moment_of",
    "notes_of",
    "read_trace",
    "save",
    "short_duration",
    "short_message",
    "stream_timeline",
    "timeline",
    "trace_of",
    "wait_graph",
    "waiting_at",
    "write_chrome_trace",
    "write_events",
    "write_flight_recorder",
]

# Loaded on first use: a run needs none of these.
_HOMES = {
    "StreamRun": "_streams",
    "Trace": "_trace",
    "Waiting": "_waits",
    "chrome_trace": "_chrome",
    "event_line": "_lines",
    "flight_recorder_dumps": "_flight_recorder",
    "moment_of": "_waits",
    "notes_of": "_notes",
    "read_trace": "_reader",
    "save": "_figure",
    "short_duration": "_axis",
    "short_message": "_notes",
    "stream_timeline": "_streams",
    "timeline": "_figure",
    "trace_of": "_trace",
    "wait_graph": "_graph",
    "waiting_at": "_waits",
    "write_chrome_trace": "_chrome",
    "write_events": "_lines",
    "write_flight_recorder": "_flight_recorder",
}

__getattr__ = lazily(__name__, _HOMES)
