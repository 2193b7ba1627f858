"""`simdist run --seeds N`: a scenario many times."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main
from tests.programs.pools import standing_in

pytestmark = pytest.mark.usefixtures("no_looks")

PROGRAMS = Path(__file__).parents[1] / "searches"


def _run(folder: Path, *words: str) -> Result:
    path = folder / "unlucky.toml"
    path.write_text(
        f"world_size = 2\n[workload]\ntarget = \"programs:unlucky\"\nfolder = '{PROGRAMS}'\nkwargs = {{ bad = 11 }}\n"
    )
    return CliRunner().invoke(main, ["run", str(path), *words])


def test_all_runs_that_pass_are_exit_code_0(tmp_path: Path) -> None:
    result = _run(tmp_path, "--seeds", "3")

    assert result.exit_code == 0, result.output
    assert result.output.startswith("unlucky\n3 runs: 3 passed, 0 failed\nreal time    ")
    assert result.output.endswith(" per core\n")


def test_a_run_that_fails_replays_by_its_command_and_by_its_token(tmp_path: Path) -> None:
    report, junit = tmp_path / "report.json", tmp_path / "report.xml"
    result = _run(tmp_path, "--seed", "4", "--seeds", "5", "--json", str(report), "--junit", str(junit))

    assert result.exit_code == 1, result.output
    assert "2 of 5 runs: seeds 5, 7" in result.output
    data = json.loads(report.read_text())
    (failure,) = data["failures"]
    assert (failure["count"], failure["first"], failure["seed"]) == (2, 1, 5)
    assert [each["seed"] for each in data["results"]] == list(range(4, 9))
    (case,) = ElementTree.parse(junit).iter("testcase")
    assert case.get("classname") == "unlucky"
    again = CliRunner().invoke(main, shlex.split(failure["replay"])[1:])
    assert (again.exit_code, data["results"][1]["digest"] in again.output) == (1, True)
    by_token = CliRunner().invoke(main, ["replay", failure["token"]])
    assert (by_token.exit_code, "drew 11" in by_token.output) == (1, True)


def test_workers_print_what_one_process_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outputs = []
    for workers in ("1", "2"):
        with standing_in(monkeypatch):
            outputs.append(_run(tmp_path, "--seeds", "8", "--workers", workers).output.splitlines()[:-1])

    assert outputs[0] == outputs[1]


def test_it_stops_at_the_first_failure_if_it_shall(tmp_path: Path) -> None:
    result = _run(tmp_path, "--seeds", "30", "--until-failure")

    assert result.exit_code == 1
    assert "6 runs: 5 passed, 1 failed" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "2", "--junit", "x", "--until-failure"), "--workers, --junit, --until-failure: for many runs;"),
        (("--seeds", "2", "--trace", "x", "--show-output"), "--trace, --show-output: for one run; leave out --seeds"),
        (("--seeds", "2", "--real", "gloo", "--nnodes", "2"), "--real, --nnodes: for one run; leave out --seeds"),
        (("--seeds", "0"), "0 is too small; the least is 1"),
        (("--seeds", "2", "--seed", str(2**64 - 1)), f"--seeds: the last one, {2**64} is too large"),
        (("--seeds", "2", "--scheduler", "there"), "--scheduler: 'there' is no address of a Dask scheduler"),
        (("--seeds", "2", "--set", "sed=3", "--json", "/no/where"), "2 problems"),
    ],
)
def test_options_that_do_not_fit_are_bad_input(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = _run(tmp_path, *words)

    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
