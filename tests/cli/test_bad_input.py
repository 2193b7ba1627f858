from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.warm import Interpreters

Job = Callable[..., str]
Simdist = Callable[..., Result]


def refused(result: Result) -> list[str]:
    """Return the stderr lines of a command that refused its input: exit code 2, no stdout, no traceback."""
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_every_problem_of_file_options_and_outputs_is_in_one_message(
    job: Job, simdist: Simdist, tmp_path: Path
) -> None:
    file = job("totl", "[[faults]]\nkind = 'crsh'\nrank = 1\n[expect]\ndeadlok = true")

    lines = refused(simdist("run", file, "--set", "sed=1", "--json", tmp_path / "none" / "x.json", "--trace", tmp_path))

    assert lines == [
        f"{file}: 6 problems",
        "  --set sed: unknown key; did you mean 'seed'?",
        "  workload.target: module 'job' has no function 'totl'; did you mean 'total'?",
        "  faults[0].kind: unknown fault 'crsh'; did you mean 'crash'?",
        "  expect.deadlok: unknown key; did you mean 'deadlock'?",
        f"  --json {tmp_path}/none/x.json: cannot be written: No such file or directory",
        f"  --trace {tmp_path}: cannot be written: Is a directory",
    ]


def test_an_unwritable_output_is_reported_before_anything_runs(job: Job, simdist: Simdist, tmp_path: Path) -> None:
    (line, problem) = refused(simdist("run", job("total"), "--json", tmp_path / "none" / "x.json"))

    assert line.endswith("file.toml: 1 problem")
    assert problem.endswith("x.json: cannot be written: No such file or directory")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run", "--flight-recorder"),
        ("explore", "--write"),
        ("fuzz", "--write"),
        ("fuzz", "--database"),
        ("sweep", "--write"),
        ("sweep", "--keep"),
    ],
)
def test_what_a_command_cannot_write_is_reported_before_anything_runs(
    job: Job, simdist: Simdist, tmp_path: Path, command: str, option: str
) -> None:
    (tmp_path / "file").write_text("")
    file = job("touches", "[disk]", workload='args = ["{tmp}"]')
    place = tmp_path / "file" / "place"

    assert refused(simdist(command, file, option, place)) == [
        f"{file}: 1 problem",
        f"  {option} {place}: cannot be written: Not a directory",
    ]


def test_a_log_folder_that_cannot_be_made_is_reported_before_anything_runs(simdist: Simdist, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    place = script / "logs"

    assert refused(simdist("launch", "--log-dir", place, script)) == [
        "simdist launch: 1 problem",
        f"  --log-dir {place}: cannot be written: Not a directory",
    ]


@pytest.mark.parametrize("command", ["explore", "fuzz", "sweep"])
def test_a_search_that_finds_nothing_leaves_no_folder(job: Job, simdist: Simdist, tmp_path: Path, command: str) -> None:
    file = job("total", "[disk]")

    result = simdist(
        command, file, "--write", tmp_path / "new" / "found", *(["--runs", 2] if command != "sweep" else [])
    )

    assert result.exit_code == 0, result.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_missing_file_is_bad_input(simdist: Simdist, tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.toml"

    assert refused(simdist(command, path)) == [f"{path}: 1 problem", "  no such file"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run"], "Missing argument 'FILE'"),
        (["run", "x.toml", "--sed", "1"], "No such option"),
        (["run", "x.toml", "--seed", "one"], "Invalid value for '--seed'"),
        (["run", "x.toml", "--seed", "-1"], "Invalid value for '--seed'"),
        (["rnu"], "No such command 'rnu'"),
        (["validate"], "Missing argument"),
    ],
)
def test_unknown_commands_and_options_are_bad_input(simdist: Simdist, words: list[str], text: str) -> None:
    assert text in "\n".join(refused(simdist(*words)))


def test_a_missing_folder_is_bad_input_for_list(simdist: Simdist, tmp_path: Path) -> None:
    assert refused(simdist("list", tmp_path / "none")) == [f"{tmp_path / 'none'}: no such folder"]


def test_bad_input_has_no_traceback_in_a_process_of_its_own(tmp_path: Path, interpreters: Interpreters) -> None:
    file = str(tmp_path / "file.toml")
    Path(file).write_text('[workload]\ntarget = "builtins:print"\nsed = 1\nworld_size = 2\n')

    process = interpreters.run([sys.executable, "-m", "simdist", "run", file])

    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.splitlines() == [
        f"{file}: 3 problems",
        "  world_size: missing; it has no default",
        "  workload.sed: unknown key; known: target, folder, args, kwargs",
        "  workload.world_size: unknown key; known: target, folder, args, kwargs",
    ]


def test_the_command_comes_up_and_lists_without_torch(job: Job, tmp_path: Path) -> None:
    file = job("total")
    code = (
        "import sys, simdist.cli\n"
        "assert not {'torch', 'networkx', 'simdist.scenario'} & {*sys.modules}\n"
        f"try: simdist.cli.main(['list', {str(tmp_path)!r}])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert process.returncode == 0
    assert Path(file).stem in process.stdout
