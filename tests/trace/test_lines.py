from __future__ import annotations

import io
import json

from simdist.result import Event
from simdist.trace import event_line, write_events


def test_a_line_has_its_keys_in_one_order() -> None:
    one = Event(5, "issue", 0, {"op": "barrier", "group": "0"})
    other = Event(5, "issue", 0, {"group": "0", "op": "barrier"})

    assert event_line(one) == event_line(other)
    assert event_line(one) == '{"data": {"group": "0", "op": "barrier"}, "kind": "issue", "rank": 0, "time_ns": 5}'


def test_events_are_written_one_a_line() -> None:
    stream = io.StringIO()

    write_events([Event(0, "output", 1, {"stream": "stdout\n"}), Event(1, "exit", 1, {})], stream)

    lines = stream.getvalue().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["output", "exit"]
