"""`@pytest.mark.simdist`: a test's body runs on every rank, and pytest works as its users expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.runs import SAMPLES, PytestRun, Run, run_pytest, run_samples, section
from tests.warm import Interpreters


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory, interpreters: Interpreters) -> PytestRun:
    return run_samples(tmp_path_factory.mktemp("marked"), "marked", start=interpreters.run, arguments=["-rA"])


def test_every_sample_ends_as_its_name_says(marked: PytestRun) -> None:
    words = {"passes": "passed", "fails": "failed", "skipped": "skipped"}
    outcomes = marked.outcomes

    assert len(outcomes) > 45, marked.text
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome != words.get(word := name.rpartition("::")[2].split("_")[1], word)
    }
    assert wrong == {}, marked.text


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("where_only_some_skip", "rank 1 of 3 skipped (nothing to do), the others went on"),
        ("because_the_fault_never_struck", "Crash(rank=0, op='all_reduce', nth=5) never struck"),
        ("because_the_group_is_there", "simdist has done so already; init=False leaves it to the test"),
    ],
)
def test_a_failure_says_what_is_wrong(marked: PytestRun, test: str, text: str) -> None:
    assert text in section(marked, f"test_fails_{test}")


def test_an_async_test_is_refused_in_one_line(marked: PytestRun) -> None:
    text = section(marked, "test_fails_because_it_is_async")

    assert "a rank runs plain functions, and this one is async" in text
    assert "simdist/" not in text


def test_a_passing_test_keeps_what_its_ranks_printed(marked: PytestRun) -> None:
    assert "Captured stdout of rank 2" in marked.text
    assert "hello from 2" in marked.text


def test_a_returned_value_is_warned_about(marked: PytestRun) -> None:
    assert "PytestReturnNotNoneWarning" in marked.text
    assert "test_passes_with_a_warning_that_it_returned_something returned <class 'int'> on a rank" in marked.text


def test_bad_keywords_are_reported_together_at_collection(run: Run) -> None:
    source = """
import pytest
@pytest.mark.simdist(4, world_siz=2, seeds=0, faults=[1], policy="lifo", timeout="soon", strict="yes", env={1: 2})
def test_it(): ...
"""
    done = run(files={"test_it.py": source})

    assert done.code == 2
    assert "@pytest.mark.simdist has 7 problems" in done.text
    assert "  world_siz: unknown keyword; did you mean 'world_size'?" in done.text
    assert "  policy: unknown 'lifo'; did you mean 'fifo'?" in done.text
    assert "  timeout: 'soon' is no duration" in done.text
    assert "Traceback" not in done.text


def test_what_cannot_run_on_ranks_is_refused(run: Run) -> None:
    source = """
import pytest
import unittest
from hypothesis import given, strategies as st

class TestCase(unittest.TestCase):
    @pytest.mark.simdist
    def test_of_unittest(self): ...

@pytest.mark.simdist
@given(st.integers())
def test_with_hypothesis(number): ...

def test_without_the_marker(rank): ...

"""
    done = run(files={"test_it.py": source})

    assert "simdist.testing.MultiProcessTestCase instead" in done.text
    assert "@given would draw on each rank by itself" in done.text
    assert "the fixture 'rank' needs @pytest.mark.simdist" in done.text
    assert "passed" not in done.text.splitlines()[-1]


def test_x_stops_after_the_first_failure(run: Run) -> None:
    done = run("-x", files={"test_failures.py": (SAMPLES / "failures.py").read_text()})

    assert list(done.outcomes.values()) == ["failed"]


def test_post_mortem_debugging_stands_in_the_failing_ranks_frame(tmp_path: Path, interpreters: Interpreters) -> None:
    source = """
import pytest, torch.distributed as dist
@pytest.mark.simdist(world_size=3)
def test_it(rank):
    local = rank * 10
    dist.barrier()
    assert rank != 1
"""
    typed = "p 'found', local, rank\nq\n"
    run = run_pytest(tmp_path, "--pdb", files={"test_it.py": source}, typed=typed, start=interpreters.run)

    assert "-> assert rank != 1" in run.text
    assert "('found', 10, 1)" in run.text


@pytest.mark.real
def test_a_rank_can_be_stopped_at_a_breakpoint(tmp_path: Path) -> None:
    source = """
import pytest, torch.distributed as dist
@pytest.mark.simdist(world_size=2, stall_s=0.3)
def test_it(rank):
    local = rank + 41
    if rank == 1:
        breakpoint()
        dist.barrier()
        print("printed after it")
        assert local == 41
    else:
        dist.barrier()
"""
    run = run_pytest(
        tmp_path,
        files={"test_it.py": source},
        typed="import threading; threading.Event().wait(1)\np 'found', local\nn\nc\n",
    )

    assert "('found', 42)" in run.text
    assert "stdout | printed after it" in section(run, "test_it")
    assert "StallError" not in run.text


@pytest.mark.real
def test_a_rank_that_blocks_for_real_is_shown_at_its_line(tmp_path: Path) -> None:
    source = """
import pytest
import os
@pytest.mark.simdist(world_size=2, stall_s=0.3)
def test_it(rank):
    if rank == 1:
        reader, writer = os.pipe()
        copy = os.dup(reader)
        os.read(copy, 1)
"""
    run = run_pytest(tmp_path, files={"test_it.py": source})
    text = section(run, "test_it")

    assert ">           os.read(copy, 1)" in text or ">       os.read(copy, 1)" in text
    assert "StallError: rank 1" in text
    assert "replay: pytest test_it.py::test_it --simdist-seed=0" in text


def test_a_lock_that_nobody_releases_is_shown_at_its_line(run: Run) -> None:
    source = """
import pytest
import threading
@pytest.mark.simdist(world_size=2)
def test_it(rank):
    if rank == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
"""

    text = run(files={"test_it.py": source}).text

    assert ">           lock.acquire()" in text or ">       lock.acquire()" in text
    assert "rank 1" in text
    assert "hangs for good in Lock.acquire" in text


def test_live_output_names_the_rank(run: Run) -> None:
    source = "import pytest\n@pytest.mark.simdist(world_size=2)\ndef test_it(rank): print('mine is', rank)\n"

    done = run("-s", files={"test_it.py": source})

    assert "[rank 0] mine is 0\n[rank 1] mine is 1\n" in done.text
