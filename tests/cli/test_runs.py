from __future__ import annotations

import calendar
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simdist.cli import _run, main

Job = Callable[..., str]
Simdist = Callable[..., Result]


def without_real_time(text: str) -> list[str]:
    lines = text.splitlines()
    assert re.fullmatch(r"real time    \d+\.\d\d s", lines[-1])
    return lines[:-1]


def test_a_run_that_meets_its_expectations_ends_with_0(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("total", "[expect]\nequal_values = true"))

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("file: a test\n2 ranks, gloo, seed 0, no faults\n")
    assert "✓  equal_values  values equal on ranks 0, 1" in result.stdout
    assert result.stderr == ""


def test_a_run_that_misses_one_ends_with_1(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("total", "[expect]\nmin_values = {total = 3}"))

    assert result.exit_code == 1
    assert "✗  min_values  total is 2.0, expected >= 3" in result.stdout


def test_an_interrupt_is_reported_in_one_line(job: Job, simdist: Simdist, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "run_file", interrupted)

    result = simdist("run", job("total"))

    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_set_reaches_the_workload(job: Job, simdist: Simdist) -> None:
    file = job("total", "[expect]\nmin_values = {total = 6}\nmax_values = {total = 6}")

    result = simdist("run", file, "--set", "world_size=3", "--set", "workload.kwargs.value=2.0", "--seed", 5)

    assert result.exit_code == 0, result.output
    replay = f"replay       simdist run {file} --seed 5 --set world_size=3 --set workload.kwargs.value=2.0"
    assert replay in result.stdout.splitlines()


def test_two_runs_print_the_same_but_for_the_real_time(job: Job, simdist: Simdist) -> None:
    file = job("fails")

    first, second = simdist("run", file), simdist("run", file)

    assert without_real_time(first.stdout) == without_real_time(second.stdout)


def test_a_failing_rank_shows_its_exception_its_place_and_its_stderr(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("fails"))

    assert result.exit_code == 1
    assert "  rank 1, first to fail, at 3 ms, job.py:22: raised ValueError: bad batch [7]\n" in result.stdout
    assert "      stderr | about to fail\n" in result.stdout
    assert "  last stderr of rank 1:\n      [rank1]: Traceback" in result.stdout
    assert "✗  outcomes  rank 1 raised ValueError, expected returned" in result.stdout


def test_show_output_prints_each_line_with_rank_and_virtual_time(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("fails"), "--show-output")

    assert "[rank 0 3 ms] fine\n" in result.stdout
    assert "[rank 1 3 ms stderr] about to fail\n" in result.stdout


def test_json_has_the_result_and_the_verdicts(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    file, out = job("total", "[expect]\nrestarts = 0"), tmp_path / "out.json"

    simdist("run", file, "--json", out, "--seed", 3)

    summary = json.loads(out.read_text())
    assert (summary["scenario"], summary["title"], summary["seed"], summary["ok"]) == (file, "a test", 3, True)
    assert [rank["value"] for rank in summary["ranks"]] == [{"total": 2.0}] * 2
    assert summary["expectations"] == [
        {"name": "outcomes", "ok": True, "evidence": "ranks 0, 1 returned"},
        {"name": "restarts", "ok": True, "evidence": "0"},
        {"name": "deadlock", "ok": True, "evidence": "none"},
    ]
    assert re.fullmatch("[0-9a-f]{32,}", summary["digest"])


def test_the_trace_has_a_track_for_each_rank_and_its_operations(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"

    simdist("run", job("total"), "--trace", out)

    records = json.loads(out.read_text())["traceEvents"]
    assert [r["args"]["name"] for r in records if r["name"] == "thread_name" and r["pid"] > 0] == ["rank 0", "rank 1"]
    assert [r["name"] for r in records if r.get("cat") == "issue"].count("all_reduce") == 2


def test_outputs_are_byte_identical_over_repeated_runs(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    file, names = job("total"), ("a", "b")

    for name in names:
        simdist("run", file, "--json", tmp_path / f"{name}.json", "--trace", tmp_path / f"{name}.trace")

    for ending in ("json", "trace"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_each_run_has_a_fresh_folder_that_is_gone_after_it(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    workload = 'args = ["{tmp}"]'

    for _ in range(2):
        result = simdist(
            "run", job("touches", workload=workload), "--set", "world_size=1", "--json", tmp_path / "o.json"
        )

        assert result.exit_code == 0, result.output
        assert json.loads((tmp_path / "o.json").read_text())["ranks"][0]["value"] == ["out.txt"]


def test_a_run_names_what_ranks_leave_in_state_that_all_of_them_share(job: Job) -> None:
    result = CliRunner().invoke(main, ["run", job("begins_weeks_on_sunday")])
    calendar.setfirstweekday(calendar.MONDAY)

    assert result.exit_code == 0, result.output
    assert "\nleft in shared state\n  calendar.c._firstweekday: set\n" in result.stdout


def test_a_run_names_programs_that_take_the_time_that_the_file_says(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("asks_a_program"), "--set", 'program_time="5ms"')

    assert result.exit_code == 0, result.output
    said = r"\n\nprograms outside the simulation\n  echo, started at job\.py:\d+ by ranks 0, 1\n\nexpectations"
    assert re.search(said, result.stdout)
    assert "virtual time 5 ms" in result.stdout


@pytest.mark.usefixtures("warm_processes")
def test_a_run_that_repeats_itself_passes_the_determinism_check(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    result = simdist("run", job("total"), "--check-determinism", "--set", "seed=4", "--json", out)

    assert result.exit_code == 0, result.output
    assert "✓  determinism  the same digest in a fresh process with PYTHONHASHSEED=" in result.stdout
    summary = json.loads(out.read_text())
    assert summary["determinism"]["ok"]
    assert summary["determinism"]["digest"] == summary["digest"]


@pytest.mark.real  # an interpreter that has imported nothing yet
def test_files_on_a_simulated_disk_pass_the_determinism_check(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("touches", "[disk]", workload='args = ["{tmp}"]'), "--check-determinism")

    assert result.exit_code == 0, result.output


@pytest.mark.real  # starts interpreters
@pytest.mark.usefixtures("warm_processes")
def test_a_run_that_depends_on_the_hash_seed_shows_the_first_difference(job: Job, simdist: Simdist) -> None:
    result = simdist("run", job("draws_from_the_hash"), "--check-determinism")

    assert result.exit_code == 1
    assert re.search(
        r"✗  determinism  another digest in a fresh process with PYTHONHASHSEED=\d, from event \d+ on", result.stdout
    )
    assert re.search(r"^     +this process +fresh process$", result.stdout, re.MULTILINE)
    assert re.search(r"^  \* +(duration_ns|time) ", result.stdout, re.MULTILINE)
