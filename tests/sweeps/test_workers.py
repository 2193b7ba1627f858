"""Crashes that are tried in parallel: what they report to each other, and where their files are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from simdist.programs import _scratch as scratch
from simdist.result import Event
from simdist.scenario import Plan, load
from simdist.sweeps import Case, Crashes, Tries, sweep_plan
from simdist.sweeps._points import Watcher


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    program = "from pathlib import Path\n\ndef train(folder):\n    Path(folder, 'a').write_text('a')\n"
    (tmp_path / "kept.py").write_text(program)
    path = tmp_path / "kept.toml"
    path.write_text('world_size = 1\n[workload]\ntarget = "kept:train"\nargs = ["{tmp}"]\n[disk]\n', encoding="utf-8")
    return load(str(path))


def test_a_second_life_that_another_process_has_seen_is_not_run_again(plan: Plan) -> None:
    one, other = Crashes.of_plan(plan), Crashes.of_plan(plan)
    with one.ready():
        watcher = Watcher(1)
        one.watch(watcher)
        other.watch(Watcher(0))
        case = Case(watcher.points[-1], "rank")
        first = one.do(case)
        other.learn(one.learnt())
        again = other.strike(case)

    assert len(one.learnt()) == 1
    assert again.result is None  # it was ended when that life began
    assert again.begun == first.begun


@pytest.mark.parametrize(("size", "expected"), [(1_000, True), (10**9, False)])
def test_runs_that_write_little_have_their_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, expected: bool
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(scratch, "_MEMORY", str(tmp_path))
    monkeypatch.setattr(scratch, "_SPARE", 0)
    events = [Event(0, "storage", 0, {"effect": "write", "size": size})]

    assert scratch.scratch_folder(events) == (str(tmp_path) if expected else None)


def test_temporary_files_are_where_a_program_wants_them(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert scratch.scratch_folder([]) is None
    assert not sweep_plan(plan, Tries(strikes=["rank"]), workers=1).wrong
