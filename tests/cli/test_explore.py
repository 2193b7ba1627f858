"""`simdist explore` on a scenario."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main

pytestmark = pytest.mark.usefixtures("no_looks")

_PROGRAM = """
import torch
import torch.distributed as dist


def first_come(wanted=0):
    dist.init_process_group("gloo")
    if dist.get_rank():
        dist.send(torch.tensor([float(dist.get_rank())]), 0)
        return None
    message, other = torch.zeros(1), torch.zeros(1)
    dist.recv(message)
    dist.recv(other)
    if wanted and int(message) != wanted:
        raise ValueError("out of order")
    return int(message)
"""


def _explore(folder: Path, *words: str, wanted: int = 0) -> Result:
    (folder / "program.py").write_text(_PROGRAM)
    path = folder / "scenario.toml"
    path.write_text(f'world_size = 3\n[workload]\ntarget = "program:first_come"\nkwargs = {{ wanted = {wanted} }}\n')
    return CliRunner().invoke(main, ["explore", str(path), *words])


def test_outcomes_are_counted_and_nothing_is_found(tmp_path: Path) -> None:
    result = _explore(tmp_path, "--runs", "8")

    assert result.exit_code == 0, result.output
    assert "8 schedules, 2 outcomes" in result.output
    assert "rank 0 returned 1; ranks 1, 2 returned None" in result.output


def test_an_outcome_that_depends_on_the_schedule_can_be_a_failure(tmp_path: Path) -> None:
    result = _explore(tmp_path, "--runs", "8", "--one-outcome", "--until-found")

    assert result.exit_code == 1, result.output
    assert "found: the outcome depends on the schedule" in result.output


def test_a_failure_replays_by_its_command_and_is_a_test_of_junit(tmp_path: Path) -> None:
    written = ("--json", str(tmp_path / "report.json"), "--junit", str(tmp_path / "found.xml"))

    result = _explore(tmp_path, "--runs", "8", *written, wanted=1)

    assert result.exit_code == 1, result.output
    (failure,) = json.loads((tmp_path / "report.json").read_text())["failures"]
    assert "ValueError: out of order" in failure["cause"]
    again = CliRunner().invoke(main, shlex.split(failure["replay"])[1:])
    assert again.exit_code == 1
    assert "out of order" in again.output
    (suite,) = ElementTree.parse(tmp_path / "found.xml").getroot()
    (case,) = suite
    assert (suite.get("name"), suite.get("failures")) == ("simdist explore", "1")
    assert str(case.get("name")).startswith("rank 0 raised ValueError: out of order (program.py")
    assert "of 8 schedules, first number" in str(case[0].text)
    assert "replay: simdist run" in str(case[0].text)


def test_a_systematic_search_reports_what_it_has_had(tmp_path: Path) -> None:
    result = _explore(tmp_path, "--systematic")

    assert result.exit_code == 0, result.output
    assert "6 schedules, 2 outcomes" in result.output
    assert "every order that can differ was tried" in result.output


def test_a_failure_of_a_systematic_search_is_a_token_a_scenario_and_a_test(tmp_path: Path) -> None:
    words = ("--systematic", "--json", str(tmp_path / "report.json"), "--write", str(tmp_path / "out"))

    result = _explore(tmp_path, *words, wanted=1)
    (failure,) = json.loads((tmp_path / "report.json").read_text())["failures"]
    again = CliRunner().invoke(main, ["replay", failure["token"]])
    written = CliRunner().invoke(main, ["run", str(tmp_path / "out" / "scenario_1.toml")])

    assert result.exit_code == 1, result.output
    assert failure["shrunk"]["choices"] == 1
    assert f"replay: simdist replay {failure['token']}" in result.output
    for each in (again, written):
        assert each.exit_code == 1, each.output
        assert "out of order" in each.output
    assert "simdist explore" in (tmp_path / "out" / "test_scenario_1.py").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--schedules", "3"), "--schedules: a systematic search draws none"),
        (("--workers", "2"), "--workers: a systematic search tries one order after the other"),
    ],
    ids=["schedules", "workers"],
)
def test_a_systematic_search_draws_no_schedules_and_has_one_worker(
    tmp_path: Path, words: tuple[str, str], text: str
) -> None:
    result = _explore(tmp_path, "--systematic", *words)

    assert result.exit_code == 2
    assert text in result.output


def test_an_outcome_that_depends_on_the_schedule_is_reported_with_all(tmp_path: Path) -> None:
    _explore(tmp_path, "--runs", "8", "--one-outcome", "--junit", str(tmp_path / "found.xml"))

    ((case,),) = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert case.get("name") == "the outcome depends on the schedule"
    assert "8 schedules, 2 outcomes" in str(case[0].text)


@pytest.mark.real
def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    reports = []
    for workers in ("1", "2"):
        path = tmp_path / workers
        result = _explore(tmp_path, "--runs", "60", "--workers", workers, "--json", str(path), wanted=1)
        reports.append((result.exit_code, result.output.splitlines()[:-1], path.read_text()))

    assert reports[0] == reports[1]
    assert reports[0][0] == 1


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    result = _explore(tmp_path, "--set", "world_sise=3", "--json", str(tmp_path))

    assert result.exit_code == 2
    assert "2 problems" in result.output
    assert "world_sise: unknown key; did you mean 'world_size'?" in result.output
