"""Every file in `scenarios/` is a tested example."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from simdist.scenario import load, run_scenario
from tests.warm import Interpreters

Simdist = Callable[..., Result]
Ran = Callable[[Path], tuple[Result, dict[str, Any]]]
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").glob("*.toml"))


@pytest.fixture(scope="module")
def results() -> dict[Path, tuple[Result, dict[str, Any]]]:
    """The results of the scenarios that have run in this process."""
    return {}


@pytest.fixture
def ran(simdist: Simdist, tmp_path: Path, results: dict[Path, tuple[Result, dict[str, Any]]]) -> Ran:
    """A function that returns the command's result and report for a scenario, which runs once for all tests."""

    def ran(file: Path) -> tuple[Result, dict[str, Any]]:
        if file not in results:
            result = simdist("run", file, "--json", tmp_path / "out.json")
            assert result.exit_code == 0, result.output
            results[file] = result, json.loads((tmp_path / "out.json").read_text())
        return results[file]

    return ran


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_scenario_meets_its_expectations(ran: Ran, file: Path) -> None:
    result, _ = ran(file)

    assert "✗" not in result.stdout
    reported = [line for line in result.stdout.splitlines() if not line.startswith(("    ", "replay"))]
    assert max(map(len, reported)) <= 100


def digests_of(files: list[Path]) -> list[str]:
    """Return the digests of runs in this process."""
    return [run_scenario(load(str(file))).result.digest for file in files]


def test_every_scenario_has_one_digest_under_two_hash_seeds(
    ran: Ran, interpreters: Interpreters, no_looks: None
) -> None:
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"

    theirs = interpreters.call(hash_seed, digests_of, FILES)

    assert [ran(file)[1]["digest"] for file in FILES] == theirs
    assert len(FILES) > 25


def test_the_crash_is_reported_with_its_restart_and_equal_parameters(ran: Ran) -> None:
    result, summary = ran(ROOT / "scenarios" / "ddp_crash_resume.toml")

    text = result.stdout
    assert re.search(r"^  \S+ \S+ +rank 2 +crash: ", text, re.MULTILINE)
    assert re.search(r"^  \S+ \S+ +world +restart: life 1 begins", text, re.MULTILINE)
    assert "final parameters equal: yes, on ranks 0-3" in text
    assert (summary["restarts"], [rank["lives"] for rank in summary["ranks"]]) == (1, [2] * 4)
    assert len({rank["value"]["parameters"] for rank in summary["ranks"]}) == 1


def test_the_partition_takes_half_an_hour_of_virtual_time(ran: Ran) -> None:
    _, summary = ran(ROOT / "scenarios" / "partition_timeout.toml")

    assert 1_800_000_000_000 < summary["virtual_time_ns"] < 1_860_000_000_000
    assert {rank["exception"]["type"] for rank in summary["ranks"]} == {"RuntimeError"}


def test_the_deadlock_shows_who_waits_for_whom(ran: Ran) -> None:
    text = ran(ROOT / "scenarios" / "deadlock.toml")[0].stdout

    assert re.search(r"^deadlock$", text, re.MULTILINE)
    assert re.search(r"✓ +deadlock +at .*rank 0.*rank 1", text)
