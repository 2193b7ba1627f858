from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Job = Callable[..., str]
Simdist = Callable[..., Result]
SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.fixture
def straggler(simdist: Simdist, tmp_path: Path) -> Path:
    """The trace of a run in which rank 3 is late."""
    simdist("run", SCENARIOS / "straggler.toml", "--set", "workload.kwargs.steps=2", "--trace", tmp_path / "run.json")
    return tmp_path / "run.json"


def test_a_trace_is_shown_as_a_table(straggler: Path, simdist: Simdist) -> None:
    result = simdist("show", straggler)

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "ranks 0-3, 0 ns to 31.402048 ms, 18 operations",
        "",
        "  0 ns  rank 3 starts each operation 5 ms late",
        "",
        "at            rank  what           with               waits        takes  end",
        "0 ns             3  fault          slow_rank",
        "200 us         0-3  sleep                                          10 ms",
        "10.2 ms        0-3  all_reduce #0  float32[1024]       5 ms  5.601024 ms",
        "10.2 ms          3  delay          before all_reduce                5 ms",
        "15.801024 ms   0-3  sleep                                          10 ms",
        "25.801024 ms   0-3  all_reduce #1  float32[1024]       5 ms  5.601024 ms",
        "25.801024 ms     3  delay          before all_reduce                5 ms",
    ]


def test_filters_choose_ranks_and_times(straggler: Path, simdist: Simdist) -> None:
    lines = simdist("show", straggler, "--rank", "0-1", "--rank", "3", "--from", "20ms", "--to", "26ms").stdout

    assert lines.splitlines()[0] == "ranks 0, 1, 3, 20 ms to 26 ms, 6 operations"
    assert [line.split()[2:4] for line in lines.splitlines()[3:]] == [
        ["0,1,3", "sleep"],
        ["0,1", "all_reduce"],
        ["3", "delay"],
    ]


def test_lines_are_limited_and_the_rest_is_counted(straggler: Path, simdist: Simdist) -> None:
    assert simdist("show", straggler, "--lines", "2").stdout.splitlines()[-1] == "and 5 more; --lines 0 shows all"


def test_event_lines_show_the_same(simdist: Simdist, tmp_path: Path) -> None:
    simdist("run", SCENARIOS / "deadlock.toml", "--trace", tmp_path / "run.json", "--events", tmp_path / "run.jsonl")

    chrome, lines = (simdist("show", tmp_path / name).stdout for name in ("run.json", "run.jsonl"))

    assert chrome == lines
    assert (
        "200 us     0  recv #0   from 1, float32[4]          1800.001 s  1800.001 s  RuntimeError" in lines.splitlines()
    )


def test_every_problem_of_the_options_is_in_one_message(straggler: Path, simdist: Simdist) -> None:
    result = simdist(
        "show",
        straggler,
        "--rank",
        "7",
        "--rank",
        "x",
        "--group",
        "dp",
        "--from",
        "3s",
        "--to",
        "3ks",
        "--timeline",
        "a.pdf",
    )

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"{straggler}: 5 problems",
        "  --rank 7: the trace has ranks 0-3",
        "  --rank x: expected a rank such as 3, or a range such as 0-2",
        "  --group dp: no such group; the trace has '0', 'default_pg'",
        "  --to: '3ks' is no duration; write '3ms', '1.5s', '250us', '30min', '2h'",
        "  --timeline a.pdf: expected a file that ends in .svg or .png",
    ]


def test_a_bad_file_is_reported_in_one_line(job: Job, simdist: Simdist) -> None:
    file = job("total")

    result = simdist("show", file)

    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"{file}: is not a trace of simdist (line 1: not JSON: Expecting value")


def test_a_saved_trace_is_drawn_as_the_run_itself(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    simdist("run", job("total"), "--trace", tmp_path / "file.json", "--timeline", tmp_path / "run.svg")
    title = b"file: a test"

    result = simdist("show", tmp_path / "file.json", "--timeline", tmp_path / "saved.svg")

    assert (result.exit_code, result.stdout) == (0, "")
    run, saved = ((tmp_path / name).read_bytes() for name in ("run.svg", "saved.svg"))
    assert len(run) > len(saved) > 10_000  # the title is longer
    assert title not in saved


def test_a_run_is_drawn_and_dumped(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    result = simdist("run", job("total"), "--timeline", tmp_path / "run.png", "--flight-recorder", tmp_path / "dumps")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(file.name for file in (tmp_path / "dumps").iterdir()) == ["nccl_trace_rank_0", "nccl_trace_rank_1"]


def test_bad_outputs_are_reported_before_anything_runs(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = simdist("run", job("total"), "--timeline", tmp_path / "run.gif", "--flight-recorder", tmp_path / "file")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[1:] == [
        f"  --timeline {tmp_path}/run.gif: expected a file that ends in .svg or .png",
        f"  --flight-recorder {tmp_path}/file: is a file; expected a folder",
    ]


def test_without_matplotlib_the_extra_is_named(job: Job, simdist: Simdist, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing: Any = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", missing)

    result = simdist("run", job("total"), "--timeline", "run.svg")

    assert result.exit_code == 2
    assert "--timeline: needs matplotlib, which is not installed: pip install 'simdist[plot]'" in result.stderr


def test_who_waits_for_whom_is_drawn_from_a_run_and_its_trace(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    first = simdist("run", job("total"), "--trace", tmp_path / "file.json", "--graph", tmp_path / "run.svg")

    second = simdist("show", tmp_path / "file.json", "--graph", tmp_path / "saved.png", "--at", "300us")

    assert (first.exit_code, second.exit_code, second.stdout) == (0, 0, "")
    assert (tmp_path / "run.svg").stat().st_size > 10_000
    assert (tmp_path / "saved.png").read_bytes().startswith(b"\x89PNG")


def test_the_time_of_a_graph_needs_the_graph(straggler: Path, simdist: Simdist) -> None:
    result = simdist("show", straggler, "--at", "3ms")

    assert result.exit_code == 2
    assert "--at: it is about --graph; add that" in result.stderr


def test_streams_need_a_compute_model(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    result = simdist("run", job("total"), "--streams", tmp_path / "run.svg")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--streams: kernels take no time without a compute model" in result.stderr
