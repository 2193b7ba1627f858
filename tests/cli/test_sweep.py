"""`simdist sweep` on a scenario: the table, the accounts of failures, and runs that replay them."""

from __future__ import annotations

import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main
from simdist.cli._progress import LiveLine
from simdist.faults import Crash
from simdist.scenario import load, run_scenario

pytestmark = pytest.mark.usefixtures("no_looks")

_PROGRAM = """
from pathlib import Path


def save(folder, *, safe, times=1):
    for time in range(times):
        path = Path(folder) / f"value{time or ''}"
        if not path.exists():
            target = path.with_suffix(".tmp") if safe else path
            target.write_text("5")
            if safe:
                target.replace(path)
        value = int(path.read_text())
    return value
"""


def _write(folder: Path, *, safe: bool = False, disk: str = "[disk]") -> str:
    (folder / "program.py").write_text(_PROGRAM)
    path = folder / "scenario.toml"
    workload = f'{{ target = "program:save", args = ["{{tmp}}"], kwargs = {{ safe = {str(safe).lower()} }} }}'
    path.write_text(f"world_size = 1\nworkload = {workload}\n{disk}\n[expect]\nsame_as_without_faults = true\n")
    return str(path)


def _sweep(*words: str) -> Result:
    return CliRunner().invoke(main, ["sweep", *words, "--workers", "1"])


def test_a_program_that_comes_back_passes(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path, safe=True), "--strike", "rank")

    assert result.exit_code == 0, result.output
    assert "3 points at which a crash could strike, 4 crashes tried" in result.output
    assert "1 of those tried were ended at the restart" in result.output
    assert "further      --second-crash strikes the recovery" in result.output
    assert "survived     4 of 4 crashes" in result.output


def test_a_failure_is_reported_by_line_and_replays(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path), "--strike", "rank", "--json", str(tmp_path / "report.json"))

    assert result.exit_code == 1, result.output
    assert "rank 0 died before write of value (program.py:10); rank 0 raised ValueError" in " ".join(
        result.output.split()
    )
    data = json.loads((tmp_path / "report.json").read_text())
    assert [line["failures"] for line in data["lines"]] == [2]  # before the write, and in the middle of it
    replay = shlex.split(data["failures"][0]["replay"])
    again = CliRunner().invoke(main, replay[1:])
    assert again.exit_code == 1
    assert "ValueError" in again.output


def test_failures_are_written_as_tests_of_junit(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path), "--strike", "rank", "--junit", str(tmp_path / "found.xml"))

    (suite,) = ElementTree.parse(tmp_path / "found.xml").getroot()
    (case,) = suite
    assert result.exit_code == 1, result.output
    assert (suite.get("name"), suite.get("failures"), case.get("classname")) == ("simdist sweep", "1", "scenario")
    assert str(case.get("name")).startswith("rank 0 died before write of value (program.py:10); rank 0 raised")
    assert "replay: simdist run" in str(case[0].text)
    assert "1 other crash leads to the same" in str(case[0].text)


def test_a_loss_of_power_says_what_is_left(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path, safe=True), "--strike", "all")

    said = " ".join(result.output.split())
    assert result.exit_code == 1, result.output
    assert (
        "all hosts lost power after rename of value.tmp to value (program.py:12): value is empty, of 1 bytes;" in said
    )
    assert "what usually helps os.fsync a file before it is renamed" in said
    assert "replay as above, or with the files that --write FOLDER makes of each" in said


def test_a_scenario_without_a_disk_is_refused(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path, disk=""))

    assert result.exit_code == 2
    assert "disk: missing; a crash loses nothing without one: add [disk]" in result.output


@pytest.mark.real
def test_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    path = _write(tmp_path)
    many = ("--outcomes", "12", "--set", "workload.kwargs.times=8")
    one = _sweep(path, *many)

    two = CliRunner().invoke(main, ["sweep", path, "--workers", "2", *many])

    assert int(one.output.split(" could strike, ")[1].split()[0]) > 40

    assert one.output.splitlines()[:-1] == two.output.splitlines()[:-1]


def test_a_sweep_that_was_interrupted_says_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = _write(tmp_path, safe=True), str(tmp_path / "kept")
    whole = _sweep(path, "--strike", "rank")
    say = LiveLine.say

    def interrupt(line: LiveLine, text: str) -> None:
        say(line, text)
        if text.startswith("2 of"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LiveLine, "say", interrupt)
        result = _sweep(path, "--strike", "rank", "--keep", kept)

    assert result.exit_code == 130
    said = result.output.split("\n\n")
    assert said[0] == "scenario\n3 points at which a crash could strike, 2 crashes tried"
    assert "interrupted\n  not all crashes were tried" in said
    assert said[-1].endswith(f"\nwhat was found is kept in {kept}: the same command goes on\ninterrupted\n")
    again = _sweep(path, "--strike", "rank", "--keep", kept)
    assert again.output.splitlines()[:2] == whole.output.splitlines()[:2]
    assert "survived     4 of 4 crashes" in again.output


@pytest.mark.real
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_a_sweep_that_is_ended(tmp_path: Path, by: signal.Signals) -> None:
    kept = tmp_path / "kept"
    words = ["--workers", "2", "--outcomes", "12", "--set", "workload.kwargs.times=40", "--keep", str(kept)]
    command = [sys.executable, "-m", "simdist", "sweep", _write(tmp_path), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and (not kept.exists() or kept.read_text().count("\n") < 60):
            time.sleep(0.02)
        process.send_signal(by)

        said, _ = process.communicate(timeout=30)  # workers have the same output open

    killed = by is signal.SIGKILL
    assert process.returncode == (-by if killed else 128 + by)
    assert (f"kept in {kept}" in said) != killed
    assert "leaked" not in said or killed


def test_a_crash_of_the_recovery_is_reported_after_the_first(tmp_path: Path) -> None:
    result = _sweep(_write(tmp_path, safe=True), "--strike", "rank", "--second-crash", "--json", str(tmp_path / "j"))

    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "j").read_text())["crashes"] > 4


def test_what_is_not_survived_is_written_so_that_it_replays(tmp_path: Path) -> None:
    path, out = _write(tmp_path), tmp_path / "found"
    result = _sweep(path, "--strike", "rank", "--set", "seed=3", "--write", str(out))

    assert sorted(each.name for each in out.iterdir()) == ["scenario_1.svg", "scenario_1.toml", "test_scenario_1.py"]
    assert f"written      {out / 'scenario_1.toml'}" in result.output
    text = (out / "scenario_1.toml").read_text()
    assert text.startswith("# rank 0 died before write of value (program.py:10); rank 0 raised ValueError")
    plan = load(str(out / "scenario_1.toml"))
    assert (plan.seed, plan.max_restarts, plan.workload.folder) == (3, 1, tmp_path)
    assert plan.faults == (Crash(rank=0, op="storage", nth=2),)
    assert [each.name for each in run_scenario(plan).verdicts if not each.ok] == ["outcomes", "same_as_without_faults"]
    drawn = ElementTree.fromstring((out / "scenario_1.svg").read_text())
    words = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"rank 0", "value", "create", "rank 0 dies of SIGKILL", "every rank starts again"} <= set(words)


def test_a_written_test_fails_until_the_program_is_mended(tmp_path: Path) -> None:
    _sweep(_write(tmp_path), "--strike", "rank", "--write", str(tmp_path / "found"))
    spec = importlib.util.spec_from_file_location("found", tmp_path / "found" / "test_scenario_1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    with pytest.raises(AssertionError, match="outcomes: rank 0 raised ValueError, expected returned"):
        module.test_scenario_1()
    program = tmp_path / "program.py"
    program.write_text(
        program.read_text().replace("if not path.exists():", "if not path.exists() or not path.stat().st_size:")
    )
    module.test_scenario_1()
