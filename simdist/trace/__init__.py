"""Event records by name, and exporters: a finished run's events as files that other tools read.

`_stream.py` gives the values of the kernel's flat records their names. The exporters rest on `simdist.result` alone and
take the events as data, so an event kind that is new shows up as a mark and breaks nothing: `_chrome.py` writes Chrome
trace JSON, which Perfetto opens; `_lines.py` one JSON object per event.

An event has `time_ns`, `kind`, `rank` (-1: none) and `data`, which holds, by kind:

| kind | data |
|---|---|
| start, exit, restart | life, pid, host; status, exit_code, life; life |
| issue | op, group, seq, nbytes, dtype, shape, peer (-1: none), async_op: a rank calls an operation |
| complete | op, group, seq, begin_ns (data began to flow), crc; rank -1: for every member that issued (group, seq) |
| error | op, group, seq, error, message: the operation failed for that rank |
| sleep, step, store | duration_ns; step; op, key |
| output | stream, size, crc |
| fault | fault (its kind), text, life |
| deadlock | cycle, text |
"""

from simdist.trace._chrome import chrome_trace, write_chrome_trace
from simdist.trace._lines import event_line, write_events

__all__ = ["chrome_trace", "event_line", "write_chrome_trace", "write_events"]
