"""`simdist fuzz` and `simdist replay` on a scenario."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main
from simdist.faults import Crash
from simdist.scenario import load
from simdist.searches import Attempt, token_of

pytestmark = pytest.mark.usefixtures("no_looks")

_PROGRAM = """
import torch
import torch.distributed as dist


def train(careful, steps):
    dist.init_process_group("gloo")
    total = torch.ones(1)
    for _ in range(steps):
        try:
            dist.all_reduce(total)
        except RuntimeError:
            if careful:
                raise
            return -1
    return int(total)
"""


def _write(folder: Path, *, careful: bool) -> str:
    (folder / "program.py").write_text(_PROGRAM)
    path = folder / "scenario.toml"
    kwargs = f"{{ careful = {str(careful).lower()}, steps = 3 }}"
    path.write_text(f'world_size = 3\n[workload]\ntarget = "program:train"\nkwargs = {kwargs}\n')
    return str(path)


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_failures_that_faults_explain_are_no_finding(tmp_path: Path) -> None:
    result = _run("fuzz", _write(tmp_path, careful=True), "--runs", "12")

    assert result.exit_code == 0, result.output
    assert re.search(r"12 runs: \d+ passed, \d+ failed as their faults explain, 0 found", result.output)


def test_a_finding_is_written_and_replays_by_its_token_until_it_is_mended(tmp_path: Path) -> None:
    words = ("--json", str(tmp_path / "report.json"), "--junit", str(tmp_path / "found.xml"))
    result = _run(
        *("fuzz", _write(tmp_path, careful=False), "--family", "exception", "--runs", "20"),
        *(*words, "--write", str(tmp_path / "out")),
    )
    (bug,) = json.loads((tmp_path / "report.json").read_text())["bugs"]
    failing = _run("replay", bug["token"])
    mended = _run("replay", bug["token"], "--file", _write(tmp_path, careful=True))

    assert result.exit_code == 1, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["scenario_1.toml", "test_scenario_1.py"]
    assert (bug["kind"], len(bug["faults"]), bug["minimal"]) == ("wrong", 1, True)
    assert failing.exit_code == 1
    assert "found: rank" in failing.output
    assert mended.exit_code == 0
    assert "fails as its faults explain" in mended.output
    (suite,) = ElementTree.parse(tmp_path / "found.xml").getroot()
    (case,) = suite
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("simdist fuzz", "1", "1")
    assert case.get("classname") == "scenario"
    assert str(case.get("name")).startswith("rank 0 returned another result than without faults")
    assert case[0].get("message") == case.get("name")
    assert "fault: Raise(" in str(case[0].text)
    assert "replay: simdist replay sd1-" in str(case[0].text)


_POLLS = """
import torch.distributed as dist

import simdist


def wait():
    store = dist.TCPStore("127.0.0.1", 29600, 2, is_master=dist.get_node_local_rank() == 0)
    simdist.step(0)
    if dist.get_node_local_rank():
        store.add("done", 1)
    while not store.add("done", 0):
        pass
    if dist.get_node_local_rank():
        store.set("over", "")
    store.wait(["over"])
"""


def test_a_run_without_an_end_is_ended_when_it_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdist.programs._attempt._EVENTS", 300)
    (tmp_path / "program.py").write_text(_POLLS)
    path = tmp_path / "scenario.toml"
    path.write_text('world_size = 2\n[workload]\ntarget = "program:wait"\n')
    token = token_of(load(str(path)), Attempt(faults=(Crash(rank=1, at_step=0),)))

    result = _run("replay", token)

    assert result.exit_code == 0, result.output
    assert "fails as its faults explain: the run has no end: there were more than" in result.output


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    result = _run("fuzz", _write(tmp_path, careful=True), "--family", "chrash", "--set", "sead=1")

    assert result.exit_code == 2
    assert "2 problems" in result.output
    assert "families: 'chrash' is none; did you mean 'crash'?" in result.output


def test_what_is_no_token_is_bad_input() -> None:
    result = _run("replay", "sd1-xyz")

    assert result.exit_code == 2
    assert "is no token; expected what simdist fuzz prints" in result.output


def test_a_search_that_finds_nothing_is_a_test_that_passes(tmp_path: Path) -> None:
    result = _run("fuzz", _write(tmp_path, careful=True), "--runs", "5", "--junit", str(tmp_path / "found.xml"))

    (suite,) = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert result.exit_code == 0, result.output
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert [(case.get("name"), list(case)) for case in suite] == [("scenario", [])]


@pytest.mark.real
@pytest.mark.parametrize("family", ["exception", "crash"])
def test_workers_find_what_one_process_finds(tmp_path: Path, family: str) -> None:
    words = [_write(tmp_path, careful=False), "--family", family, "--runs", "60"]
    reports = []
    for workers in ("1", "2"):
        path = tmp_path / workers
        result = _run(
            "fuzz", *words, "--workers", workers, "--json", str(path), "--database", str(tmp_path / f"d{path.name}")
        )
        reports.append((result.exit_code, result.output.splitlines()[:-1], path.read_text()))

    assert reports[0] == reports[1]


@pytest.mark.real
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_a_search_that_is_ended(tmp_path: Path, by: signal.Signals) -> None:
    words = ["--minutes", "10", "--workers", "2", "--no-shrink", "--database", str(tmp_path / "kept")]
    command = [sys.executable, "-m", "simdist", "fuzz", _write(tmp_path, careful=False), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and not (tmp_path / "kept").exists():
            time.sleep(0.02)
        process.send_signal(by)

        said, _ = process.communicate(timeout=30)  # workers have the same output open

    assert process.returncode == (-by if by is signal.SIGKILL else 128 + by)
    assert "leaked" not in said or by is signal.SIGKILL
