from __future__ import annotations

import io
import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simdist.result import Event, RunResult
from simdist.trace import chrome_trace, write_chrome_trace


def run_of(*events: Event, end_ns: int | None = None) -> RunResult:
    end = max((event.time_ns for event in events), default=0) if end_ns is None else end_ns
    return RunResult("digest", end, 0, (), events)


def issue(time_ns: int, rank: int, op: str = "all_reduce", seq: int = 0, **data: Any) -> Event:
    whole = {"op": op, "group": "0", "seq": seq, "nbytes": 4, "dtype": "float32", "shape": [1], "peer": -1}
    return Event(time_ns, "issue", rank, whole | {"async_op": False} | data)


def complete(time_ns: int, rank: int, begin_ns: int, op: str = "all_reduce", seq: int = 0) -> Event:
    return Event(time_ns, "complete", rank, {"op": op, "group": "0", "seq": seq, "begin_ns": begin_ns, "crc": 1})


def records(result: RunResult, phase: str) -> list[dict[str, Any]]:
    trace: dict[str, Any] = chrome_trace(result)
    return [record for record in trace["traceEvents"] if record["ph"] == phase]


def slices(result: RunResult) -> list[tuple[str, int, float, float]]:
    return [(r["name"], r["tid"], r["ts"], r["dur"]) for r in records(result, "X")]


def test_an_operation_is_split_into_the_wait_for_peers_and_the_transfer() -> None:
    run = run_of(issue(1_000, 0), issue(4_500, 1), complete(6_000, -1, begin_ns=4_500))

    assert slices(run) == [
        ("all_reduce", 1, 1, 5),
        ("waits for peers", 1, 1, 3.5),
        ("transfer", 1, 4.5, 1.5),
        ("all_reduce", 2, 4.5, 1.5),
        ("transfer", 2, 4.5, 1.5),
    ]


def test_a_completion_for_one_rank_leaves_the_others_inside() -> None:
    run = run_of(issue(0, 0, "reduce"), issue(0, 1, "reduce"), complete(2_000, 1, 0, "reduce"), end_ns=9_000)

    ends = {r["tid"]: (r["dur"], r["args"]["end"]) for r in records(run, "X") if r["name"] == "reduce"}

    assert ends == {1: (9, "cut off"), 2: (2, "complete")}


def test_an_error_ends_the_operation_with_its_message() -> None:
    error = Event(3_000, "error", 0, {"op": "recv", "group": "0", "seq": 0, "error": "RuntimeError", "message": "late"})

    (whole, wait) = records(run_of(issue(0, 0, "recv"), error), "X")

    assert (whole["args"]["end"], whole["args"]["message"]) == ("error", "RuntimeError: late")
    assert (wait["name"], wait["dur"]) == ("waits for peers", 3)


def test_operations_that_overlap_get_tracks_of_their_own() -> None:
    run = run_of(
        issue(0, 0, seq=0, async_op=True),
        issue(0, 0, seq=1, async_op=True),
        issue(0, 0, "barrier", seq=2),
        complete(3_000, -1, 0, seq=0),
        complete(4_000, -1, 0, "barrier", seq=2),
        issue(5_000, 0, seq=3, async_op=True),
        complete(6_000, -1, 5_000, seq=3),
        complete(7_000, -1, 0, seq=1),
    )

    names = {r["tid"]: r["args"]["name"] for r in records(run, "M") if r["name"] == "thread_name"}
    placed = [(r["args"]["seq"], names[r["tid"]]) for r in records(run, "X") if "seq" in r["args"]]

    assert placed == [(0, "rank 0 async 1"), (1, "rank 0 async 2"), (2, "rank 0"), (3, "rank 0 async 1")]


def test_a_send_points_to_the_recv_that_took_its_data() -> None:
    run = run_of(
        issue(0, 1, "recv", peer=0),
        issue(2_000, 0, "send", peer=1),
        complete(3_000, 0, 2_000, "send"),
        complete(3_000, 1, 2_000, "recv"),
    )

    arrows = [(r["ph"], r["id"], r["tid"], r["ts"]) for r in records(run, "s") + records(run, "f")]

    assert arrows == [("s", 1, 1, 2), ("f", 1, 2, 2)]


def test_a_send_that_never_arrived_has_no_arrow() -> None:
    run = run_of(issue(0, 0, "send", peer=1), Event(5_000, "exit", 0, {"status": "killed"}))

    assert records(run, "s") == []


def test_a_sleep_ends_early_when_its_rank_dies() -> None:
    run = run_of(Event(1_000, "sleep", 0, {"duration_ns": 9_000}), Event(3_000, "exit", 0, {"status": "killed"}))

    assert slices(run) == [("sleep", 1, 1, 2)]


def test_a_restart_ends_what_the_first_life_left_open() -> None:
    run = run_of(
        issue(0, 0),
        Event(2_000, "restart", -1, {"life": 1}),
        issue(5_000, 0),
        complete(6_000, -1, 5_000),
    )

    spans = [(r["ts"], r["dur"], r["args"]["end"]) for r in records(run, "X") if r["name"] == "all_reduce"]

    assert spans == [(0, 2, "cut off"), (5, 1, "complete")]


def test_marks_stand_where_they_happened() -> None:
    run = run_of(
        Event(0, "start", 0, {"life": 0, "pid": 7, "host": "host0"}),
        Event(1, "step", 0, {"step": 3}),
        Event(2, "fault", 0, {"fault": "crash", "text": "rank 0 dies", "life": 0}),
        Event(3, "restart", -1, {"life": 1}),
        Event(4, "deadlock", -1, {"cycle": ["a"], "text": "a"}),
        Event(5, "something_new", 0, {"x": [1]}),
    )

    marks = [(r["name"], r["s"], r["pid"], r["tid"], r["ts"]) for r in records(run, "i")]

    assert marks == [
        ("start", "t", 1, 1, 0),
        ("step 3", "t", 1, 1, 0.001),
        ("fault crash", "t", 1, 1, 0.002),
        ("restart", "g", 0, 0, 0.003),
        ("deadlock", "g", 0, 0, 0.004),
        ("something_new", "t", 1, 1, 0.005),
    ]


def test_each_host_is_a_process_and_each_rank_a_named_track() -> None:
    starts = [Event(0, "start", rank, {"life": 0, "pid": rank, "host": f"host{rank // 2}"}) for rank in range(4)]

    named = [
        (r["name"], r["pid"], r.get("tid"), r["args"]["name"])
        for r in records(run_of(*starts), "M")
        if "name" in r["args"]
    ]

    assert named == [
        ("process_name", 1, None, "host0"),
        ("process_name", 2, None, "host1"),
        ("thread_name", 1, 1, "rank 0"),
        ("thread_name", 1, 2, "rank 1"),
        ("thread_name", 2, 3, "rank 2"),
        ("thread_name", 2, 4, "rank 3"),
    ]


EVENTS = st.lists(
    st.one_of(
        st.builds(
            lambda gap, rank, seq, async_op: (gap, issue(0, rank, seq=seq, async_op=async_op)),
            *(st.integers(0, 3000), st.integers(0, 2), st.integers(0, 3), st.booleans()),
        ),
        st.builds(
            lambda gap, rank, seq, begin: (gap, complete(0, rank, begin, seq=seq)),
            *(st.integers(0, 3000), st.integers(-1, 2), st.integers(0, 3), st.integers(0, 9000)),
        ),
        st.builds(
            lambda gap, rank, kind: (gap, Event(0, kind, rank, {"duration_ns": 500})),
            *(st.integers(0, 3000), st.integers(0, 2), st.sampled_from(["exit", "start", "sleep", "fault", "novel"])),
        ),
        st.builds(lambda gap: (gap, Event(0, "restart", -1, {"life": 1})), st.integers(0, 3000)),
    ),
    max_size=40,
)


def timed(steps: Iterable[tuple[int, Event]]) -> list[Event]:
    now, events = 0, []
    for gap, event in steps:
        now += gap
        events.append(Event(now, event.kind, event.rank, event.data))
    return events


@given(EVENTS)
def test_on_every_track_time_grows_and_slices_nest(steps: list[tuple[int, Event]]) -> None:
    stream = io.StringIO()

    write_chrome_trace(run_of(*timed(steps)), stream)

    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for record in json.loads(stream.getvalue())["traceEvents"]:
        if record["ph"] != "M":
            tracks.setdefault((record["pid"], record["tid"]), []).append(record)
    for track in tracks.values():
        assert all(one["ts"] <= other["ts"] for one, other in pairwise(track))
        open_until: list[int] = []
        for record in (record for record in track if record["ph"] == "X"):
            start, end = round(record["ts"] * 1000), round((record["ts"] + record["dur"]) * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert record["dur"] >= 0
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_equal_runs_give_equal_bytes() -> None:
    texts = []
    for _ in range(2):
        stream = io.StringIO()
        write_chrome_trace(run_of(issue(1, 0), issue(5, 1), complete(7, -1, 5)), stream)
        texts.append(stream.getvalue())

    assert texts[0] == texts[1]
    assert json.loads(texts[0])["otherData"] == {"digest": "digest", "seed": 0, "virtual_time_ns": 7}


def test_an_empty_run_is_a_valid_trace() -> None:
    stream = io.StringIO()

    write_chrome_trace(run_of(), stream)

    assert json.loads(stream.getvalue())["traceEvents"] == []
