"""Ctrl-C in the middle of a search: the command reports what was found until then."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main
from simdist.cli._progress import LiveLine
from simdist.scenario import load

PROGRAMS = Path(__file__).parents[1] / "searches"


def _interrupted(
    monkeypatch: pytest.MonkeyPatch, folder: Path, command: str, target: str, ranks: int, after: int, *words: str
) -> Result:
    """Run a command that is interrupted after `after` runs."""
    path = folder / "scenario.toml"
    path.write_text(f"world_size = {ranks}\n[workload]\ntarget = \"programs:{target}\"\nfolder = '{PROGRAMS}'\n")

    def interrupt(line: LiveLine, text: str) -> None:
        if text.startswith(f"{after} "):
            raise KeyboardInterrupt

    monkeypatch.setattr(LiveLine, "say", interrupt)
    return CliRunner().invoke(main, [command, str(path), "--workers", "1", *words])


def _report(folder: Path) -> list[str]:
    return ["--json", str(folder / "r.json"), "--junit", str(folder / "r.xml")]


def test_a_search_of_schedules_writes_and_prints_its_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--runs", "200", "--write", str(tmp_path / "found"), *_report(tmp_path)]
    result = _interrupted(monkeypatch, tmp_path, "explore", "lost_update", 3, 18, *words)

    assert result.exit_code == 130
    heading, first, second, *rest = result.output.splitlines()
    assert (heading, first, second[:13]) == ("scenario", "interrupted; found until then:", "18 schedules,")
    assert any(line.startswith("found: ") and "3 updates" in line for line in rest)
    assert rest[-1] == "interrupted"
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["ok"], data["interrupted"], data["runs"]) == (False, True, 18)
    assert load(str(tmp_path / "found" / "scenario_1.toml")).world_size == 3


def test_a_systematic_search_prints_its_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _interrupted(monkeypatch, tmp_path, "explore", "lost_update", 2, 3, "--systematic")

    assert result.exit_code == 130
    assert "interrupted; found until then:\n3 schedules," in result.output


def test_nothing_found_is_no_success_in_junit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _interrupted(monkeypatch, tmp_path, "explore", "all_together", 2, 5, *_report(tmp_path))

    assert result.exit_code == 130
    (case,) = ElementTree.parse(tmp_path / "r.xml").iter("testcase")
    assert case.get("name") == "interrupted; found until then:"
    assert case.find("failure") is not None


def test_a_search_of_faults_prints_its_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--family", "exception", "--minutes", "60", "--no-shrink", *_report(tmp_path)]
    result = _interrupted(monkeypatch, tmp_path, "fuzz", "gives_up", 2, 10, *words)

    assert result.exit_code == 130
    assert "interrupted; found until then:\n10 runs: " in result.output
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["interrupted"], data["runs"], len(data["bugs"])) == (True, 10, result.output.count("found: "))
    assert data["bugs"]


def test_runs_of_many_seeds_print_those_that_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--seed", "10", "--seeds", "30", *_report(tmp_path)]
    result = _interrupted(monkeypatch, tmp_path, "run", "unlucky", 2, 6, *words)

    assert result.exit_code == 130
    assert "interrupted; found until then:\n6 runs: 5 passed, 1 failed" in result.output
    assert "1 of 6 runs: seed 14" in result.output
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["ok"], data["interrupted"], len(data["results"])) == (False, True, 6)


def test_an_interruption_before_the_first_run_has_nothing_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(program: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simdist.searches._search.Trial", interrupt)
    result = _interrupted(monkeypatch, tmp_path, "explore", "all_together", 2, 5, *_report(tmp_path))

    assert (result.exit_code, result.output) == (130, "interrupted\n")
    assert not (tmp_path / "r.json").exists()
