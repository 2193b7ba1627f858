"""Every file in `scenarios/` is a tested example."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from simdist.scenario import load, run_scenario

Simdist = Callable[..., Result]
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scenarios").glob("*.toml"))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[subprocess.Popen[str]]:
    """A fresh process with a hash seed of its own, which runs all scenarios meanwhile."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with subprocess.Popen(
        [sys.executable, "-c", _DIGESTS, *map(str, FILES)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        yield child
        child.kill()


@pytest.fixture(scope="module")
def digests() -> dict[Path, str]:
    """That of each scenario in this process, once it has run."""
    return {}


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_scenario_meets_its_expectations(
    simdist: Simdist, file: Path, tmp_path: Path, digests: dict[Path, str]
) -> None:
    result = simdist("run", file, "--json", tmp_path / "out.json")

    assert result.exit_code == 0, result.output
    assert "✗" not in result.stdout
    told = [line for line in result.stdout.splitlines() if not line.startswith(("    ", "replay"))]
    assert max(map(len, told)) <= 100
    digests[file] = json.loads((tmp_path / "out.json").read_text())["digest"]


_DIGESTS = """
import json, sys
from simdist.scenario import load, run_scenario
print(json.dumps({file: run_scenario(load(file)).result.digest for file in sys.argv[1:]}))
"""


def test_every_scenario_has_one_digest_under_two_hash_seeds(
    elsewhere: subprocess.Popen[str], digests: dict[Path, str]
) -> None:
    theirs = json.loads(elsewhere.communicate()[0])

    ours = {file: digests.get(file) or run_scenario(load(str(file))).result.digest for file in FILES}
    assert {str(file): digest for file, digest in ours.items()} == theirs
    assert len(FILES) > 25


def test_the_crash_is_told_with_its_restart_and_equal_parameters(simdist: Simdist, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    text = simdist("run", ROOT / "scenarios" / "ddp_crash_resume.toml", "--json", out).stdout

    assert re.search(r"^  \S+ \S+ +rank 2 +crash: ", text, re.MULTILINE)
    assert re.search(r"^  \S+ \S+ +world +restart: life 1 begins", text, re.MULTILINE)
    assert "final parameters equal: yes, on ranks 0-3" in text
    summary = json.loads(out.read_text())
    assert (summary["restarts"], [rank["lives"] for rank in summary["ranks"]]) == (1, [2] * 4)
    assert len({rank["value"]["parameters"] for rank in summary["ranks"]}) == 1


def test_the_partition_takes_half_an_hour_of_virtual_time(simdist: Simdist, tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    simdist("run", ROOT / "scenarios" / "partition_timeout.toml", "--json", out)

    summary = json.loads(out.read_text())
    assert 1_800_000_000_000 < summary["virtual_time_ns"] < 1_860_000_000_000
    assert {rank["exception"]["type"] for rank in summary["ranks"]} == {"RuntimeError"}


def test_the_deadlock_shows_who_waits_for_whom(simdist: Simdist) -> None:
    text = simdist("run", ROOT / "scenarios" / "deadlock.toml").stdout

    assert re.search(r"^deadlock$", text, re.MULTILINE)
    assert re.search(r"✓ +deadlock +at .*rank 0.*rank 1", text)
