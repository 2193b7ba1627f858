"""Pictures and tables of long runs: the work grows with the events, not with their square."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from simdist.cli import main
from simdist.result import Event
from simdist.trace import Trace, timeline, write_events
from simdist.trace._trace import trace_of_events

RANKS = 4


def _events(steps: int) -> list[Event]:
    """Return steps of sleep and all_reduce with 4 x 4 events each; every fiftieth has an error and a restart."""
    events = [Event(0, "start", rank, {"life": 0, "pid": rank, "host": "0"}) for rank in range(RANKS)]
    now = 0
    for step in range(steps):
        issue = {"op": "all_reduce", "group": "0", "seq": step, "nbytes": 4, "dtype": "float32", "shape": [1]}
        done = {"op": "all_reduce", "group": "0", "seq": step, "begin_ns": now + 1_500_000, "crc": 0}
        events += [Event(now, "step", rank, {"step": step}) for rank in range(RANKS)]
        events += [Event(now, "sleep", rank, {"duration_ns": 1_000_000}) for rank in range(RANKS)]
        events += [Event(now + 1_000_000, "issue", rank, issue) for rank in range(RANKS)]
        if step % 50 == 49:
            failed = {"op": "all_reduce", "group": "0", "seq": step, "error": "RuntimeError", "message": f"no. {step}"}
            fault = {"fault": "hang", "text": "rank 1 hangs", "life": 0}
            events += [Event(now + 1_200_000, "fault", 1, fault)]
            events += [Event(now + 2_000_000, "error", rank, failed) for rank in range(RANKS)]
            events += [Event(now + 2_000_000, "restart", -1, {"life": step // 50 + 1})]
        else:
            events += [Event(now + 2_000_000, "complete", rank, done) for rank in range(RANKS)]
        now += 2_000_000
    return events


def _trace(steps: int) -> Trace:
    events = _events(steps)
    return trace_of_events(events, events[-1].time_ns)


def _calls(function: Callable[[], object]) -> int:
    """Count the calls of Python functions, including every item that a generator yields."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()  # a collection calls functions (`gc.callbacks`)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def test_drawing_four_times_as_many_events_takes_four_times_as_many_calls() -> None:
    short, long = _trace(50), _trace(200)
    timeline(short)  # imports modules, reads fonts, measures texts

    assert _calls(lambda: timeline(long)) < 4.5 * _calls(lambda: timeline(short))


def test_showing_four_times_as_many_events_takes_four_times_as_many_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for steps in (1, 30, 120):
        with (tmp_path / "run.events").open("w") as stream:
            write_events(_events(steps), stream)
        calls.append(_calls(lambda: main(["show", str(tmp_path / "run.events")], standalone_mode=False)))

    assert calls[2] < 4.5 * calls[1]
    assert f"{RANKS * 2 * 120} operations" in capsys.readouterr().out


def test_a_long_run_is_drawn_with_as_many_bars_as_the_picture_has_columns() -> None:
    figure = timeline(_trace(800))

    bars = sum(np.shape(patch.get_path().vertices)[0] // 5 for patch in figure.axes[0].patches)
    assert bars < 4000  # for 9,600 parts
