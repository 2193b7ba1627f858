"""The report of a failure for users; `pytest tests/testing --rewrite-golden` writes the files in `golden` anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.runs import PytestRun, Run, run_samples, section
from tests.warm import Interpreters

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("assertion", "deadlock", "timeout", "mismatch", "mismatch_in_strict_mode", "crash", "exit", "driven")
LONGEST = 60


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory, interpreters: Interpreters) -> PytestRun:
    return run_samples(tmp_path_factory.mktemp("failures"), "failures", start=interpreters.run)


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_as_it_was(name: str, failures: PytestRun, request: pytest.FixtureRequest) -> None:
    text = re.sub(r"0x[0-9a-f]+", "0x...", section(failures, f"test_{name}")).rstrip() + "\n"
    text = re.sub(r"pair\.cc:\d+", "pair.cc:N", text)  # depends on the version of torch
    text = text.replace("[/pytorch/third_party", "[/__w/pytorch/pytorch/third_party")  # before torch 2.13
    golden = GOLDEN / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        golden.write_text(text)

    assert text == golden.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_short_and_says_how_to_see_it_again(name: str) -> None:
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()

    assert len(lines) <= LONGEST
    assert lines[-1] == f"replay: pytest test_failures.py::test_{name} --simdist-seed=0"


def test_every_failure_has_its_golden_file(failures: PytestRun) -> None:
    assert sorted(failures.outcomes) == sorted(f"test_{name}" for name in NAMES)
    assert set(failures.outcomes.values()) == {"failed"}
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(NAMES)


def test_a_large_world_is_reported_in_few_lines(run: Run) -> None:
    source = """
import pytest, torch, torch.distributed as dist

@pytest.mark.simdist(world_size=32)
def test_it(rank):
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    for line in range(rank):
        print("line", line, "of", rank)
    assert rank != 20
    dist.barrier()
"""
    text = section(run(files={"test_it.py": source}), "test_it")

    assert len(text.splitlines()) <= LONGEST
    assert "rank 20, first to fail" in text
    assert re.search(r"^and \d+ more ranks: ", text, re.MULTILINE)
    assert "more lines of output; -s shows all" in text
