from __future__ import annotations

import json
from pathlib import Path

import pytest

from simdist.errors import TraceError
from simdist.result import RunResult
from simdist.trace import Trace, read_trace, trace_of, write_chrome_trace, write_events
from simdist.trace._messages import messages
from tests.trace import runs


def written(result: RunResult, folder: Path) -> tuple[Trace, Trace]:
    """Return the run as read back from both kinds of file."""
    with (folder / "run.json").open("w") as stream:
        write_chrome_trace(result, stream)
    with (folder / "run.jsonl").open("w") as stream:
        write_events(result.events, stream)
    return read_trace(folder / "run.json"), read_trace(folder / "run.jsonl")


def essence(trace: Trace) -> list[tuple[object, ...]]:
    return [
        (s.rank, s.start_ns, s.end_ns, s.name, s.end, s.begin_ns, s.message, trace.groups.peer(s)) for s in trace.spans
    ]


@pytest.mark.parametrize("run", [runs.pipeline, runs.crashed, runs.stuck], ids=lambda run: run.__name__)
def test_what_was_written_comes_back(run: object, tmp_path: Path) -> None:
    result = run()  # type: ignore[operator]

    chrome, lines = written(result, tmp_path)

    expected = trace_of(result)
    for trace in (chrome, lines):
        assert essence(trace) == essence(expected)
        assert [(m.time_ns, m.kind, m.rank, m.data) for m in trace.marks] == [
            (m.time_ns, m.kind, m.rank, m.data) for m in expected.marks
        ]
        assert trace.end_ns == expected.end_ns
    assert (chrome.seed, lines.seed) == (0, None)


def test_a_message_in_a_sub_group_joins_the_right_ranks() -> None:
    trace = trace_of(runs.pipeline())

    ((send, recv),) = messages(trace.spans, trace.groups)

    assert (trace.spans[send].rank, trace.spans[recv].rank) == (1, 2)


def test_a_receive_from_anyone_knows_in_the_end_from_whom() -> None:
    trace = trace_of(runs.pipeline())

    (recv,) = [span for span in trace.spans if span.name == "recv"]

    assert recv.issue.data["peer"] == -1
    assert trace.groups.peer(recv) == 1


def test_a_part_is_chosen_by_ranks_group_and_time() -> None:
    trace = trace_of(runs.pipeline())

    assert {span.rank for span in trace.only(ranks=[1]).spans} == {1}
    assert {span.name for span in trace.only(groups=["pair"]).spans} == {"send", "recv", "sleep"}
    late = trace.only(from_ns=2_300_000)
    assert {span.name for span in late.spans} >= {"all_reduce"}
    assert "sleep" not in {span.name for span in late.spans if span.end_ns < 2_300_000}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it holds no events"),
        ("nonsense", "line 1: not JSON: Expecting value"),
        (
            '{"a": 1}\n',
            "line 1: time_ns: missing; line 1: kind: missing; line 1: rank: missing; line 1: data: missing)",
        ),
        ('{"traceEvents": [', "not JSON: Expecting value"),
        (
            '{"traceEvents": [{"ph": "X"}], "otherData": {}}',
            "otherData.virtual_time_ns: missing; otherData.seed: missing; traceEvents[0].name: missing; ",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_reported_in_one_line(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)

    with pytest.raises(TraceError) as caught:
        read_trace(file)

    assert str(caught.value).startswith(f"{file}: is not a trace of simdist ({problem}")
    assert "\n" not in str(caught.value)


def test_a_trace_of_another_tool_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"traceEvents": []}))

    with pytest.raises(TraceError, match="otherData: expected a table, found null"):
        read_trace(file)


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot be read"), (b"\xff\xfe\x00", "is not text")])
def test_a_file_that_cannot_be_read_is_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(TraceError, match=problem):
        read_trace(file)
