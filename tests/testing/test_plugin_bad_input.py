"""Arguments of the marker and the fixture that make no sense: the error shows the test's lines and the problem."""

from __future__ import annotations

import re

import pytest

from tests.testing.runs import PytestRun, Run, run_pytest
from tests.warm import Interpreters

HEADER = "import pytest, simdist\nfrom simdist.faults import Crash\ndef nothing(*args, **kwargs): pass\n"

MARKERS = {
    "world_size='4'": "world_size: expected a whole number, found the text '4'",
    "world_size=10**30": "world_size: 1000000000000000000000000000000 is too large; the most is 32768",
    "backend=3": "backend: expected 'gloo' or 'nccl' or 'sim', found the number 3",
    "backend='mpi'": "backend: unknown 'mpi'; known: gloo, nccl, sim",
    "seeds='x'": "seeds: expected how many, 1 or more, or the seeds themselves; found 'x'",
    "seeds=[-1]": "seeds: expected how many, 1 or more, or the seeds themselves; found [-1]",
    "seeds=10**30": "seeds: expected how many, 1 or more, or the seeds themselves; found 10000",
    "seeds=[1, 1]": "seeds: a seed stands there twice: [1, 1]",
    "faults=3": "faults: expected a sequence of faults from simdist.faults, found the number 3",
    "faults=[Crash]": "faults[0]: expected a fault from simdist.faults, found the class Crash; call it",
    "faults=[Crash(rank=9, nth=1)]": "faults[0].rank: rank 9 is outside the world of 4 ranks",
    "faults=[Crash(rank=0, op='x')]": "faults[0].op: unknown operation 'x'; known: all_gather",
    "strict=3": "strict: expected True or False, found the number 3",
    "policy='lifo'": "policy: unknown 'lifo'; did you mean 'fifo'?",
    "init='yes'": "init: expected True or False, found the text 'yes'",
    "timeout=[]": "timeout: [] is no duration; write '30s', '5ms', or a whole number of nanoseconds",
    "timeout=10**30": "timeout: 1000000000000000000000000000000 ns is longer than virtual time can be (292 years)",
    "max_restarts='x'": "max_restarts: expected a whole number, found the text 'x'",
    "cluster=3": "cluster: expected a Cluster from simdist.cluster, found the number 3",
    "env=3": "env: expected a mapping, found the number 3",
    "env={'A': 'x\\0'}": "env.A: its value has a NUL character, which no environment can hold",
    "stall_s='x'": "stall_s: expected a number, found the text 'x'",
    "stall_s=float('nan')": "stall_s: expected a finite number, found the number nan",
}

# Problems that are only known when the test runs.
FUNCTIONS = {
    "faults=lambda seed: 3": "the function for faults: faults: expected a sequence of faults from simdist.faults",
    "faults=lambda seed: [Crash(rank=9, nth=1)]": "faults[0].rank: rank 9 is outside the world of 4 ranks",
    "cluster=lambda size: 3": "the function for cluster: cluster: expected a Cluster from simdist.cluster, found",
    "cluster=lambda size: simdist.cluster.build(3)": "the cluster places 3 ranks, the world has 4",
    "faults=lambda seed: 1 // 0": "ZeroDivisionError",
}

CALLS = {
    "sim.run(3)": "a world: fn: expected a function, found the number 3",
    "sim.run(nothing, args=3)": "a world: args: expected a sequence, found the number 3",
    "sim.run(nothing, seed='x')": "a world: seed: expected a whole number, found the text 'x'",
    "sim.run(nothing, argv='x')": "a world: argv: expected a sequence of texts, found the text 'x'",
    "sim.run(nothing, world_size=10**30)": "a world: world_size: 1000000000000000000000000000000 is too large",
    "sim.run(nothing, faults=lambda seed: 3)": "the function for faults: faults: expected a sequence of faults",
    "sim.crash(1, setp=3)": "sim: crash() got an unexpected keyword argument 'setp'; did you mean 'step'?",
    "sim.crash('x', nth=1)": "rank: expected a whole number, found the text 'x'",
    "sim.crash(1, at='soon')": "sim: at: 'soon' is no duration",
    "sim.crash(1, op='all_redcue')": "op: unknown operation 'all_redcue'; did you mean 'all_reduce'?",
    "sim.crash(1, nth=1, life='x')": "life: expected a life counted from 0, or None, found the text 'x'",
    "sim.hang(1, duration=[])": "sim: duration: [] is no duration",
    "sim.raise_in(0, error=3)": "error: expected a text, found the number 3",
    "sim.slow(0, 'x')": "sim: by: 'x' is no duration",
    "sim.slow(0, 1, start='x')": "sim: start: 'x' is no duration",
    "sim.delay(0, 'x', 1)": "dst: expected a whole number, found the text 'x'",
    "sim.partition(3)": "groups[0]: expected a sequence of ranks, found the number 3",
    "sim.partition([0], ['a'])": "groups[1][0]: expected a whole number, found the text 'a'",
    "sim.hold(0, 0)": "a rank has no link to itself",
    "sim.delay_store('x')": "sim: by: 'x' is no duration",
    "sim.lose_store(at='x')": "sim: at: 'x' is no duration",
    "sim.start(nothing, world_size=1).advance('x')": "sim: duration: 'x' is no duration",
    "sim.start(nothing, world_size=1).advance(-1)": "sim: duration: -1 ns lies before the start",
}


def test_a_markers_bad_argument_names_itself_and_the_test_at_collection(run: Run) -> None:
    files = {
        f"test_{index}.py": f"{HEADER}@pytest.mark.simdist({marker})\ndef test_it(): pass\n"
        for index, marker in enumerate(MARKERS)
    }

    done = run(files=files)

    assert done.code == 2
    for index, text in enumerate(MARKERS.values()):
        assert f"test_{index}.py::test_it: @pytest.mark.simdist has 1 problem\n  {text}" in done.text
    assert "simdist/" not in done.text.replace("simdist/tests", "")
    assert "Traceback" not in done.text


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory, interpreters: Interpreters) -> PytestRun:
    """Run a test for each marker with a function, and for each call on the fixture."""
    markers = [f"@pytest.mark.simdist({m})\ndef test_marker{i}(): pass\n" for i, m in enumerate(FUNCTIONS)]
    calls = [f"def test_call{index}(sim):\n    {call}\n" for index, call in enumerate(CALLS)]
    setup = "@pytest.fixture\ndef bad(sim):\n    sim.crash('x', nth=1)\ndef test_setup(bad): pass\n"
    files = {"test_it.py": "\n".join([HEADER, *markers, *calls, setup])}
    return run_pytest(tmp_path_factory.mktemp("called"), "-p", "no:xdist", files=files, start=interpreters.run)


@pytest.mark.parametrize("index", range(len(FUNCTIONS)), ids=list(FUNCTIONS))
def test_what_a_markers_function_returns_is_checked_when_the_test_runs(called: PytestRun, index: int) -> None:
    text = _section(called, f"test_marker{index}")

    assert list(FUNCTIONS.values())[index] in text
    assert "simdist/" not in text


@pytest.mark.parametrize("index", range(len(CALLS)), ids=list(CALLS))
def test_a_bad_call_on_the_fixture_shows_the_tests_line_only(called: PytestRun, index: int) -> None:
    call, message = list(CALLS.items())[index]
    text = _section(called, f"test_call{index}")

    assert message in text
    assert f">       {call}" in text
    assert "simdist/" not in text


def test_so_does_one_in_a_fixture_of_the_tests_own(called: PytestRun) -> None:
    text = _section(called, "ERROR at setup of test_setup")

    assert "    sim.crash('x', nth=1)\n" in text
    assert "rank: expected a whole number, found the text 'x'" in text
    assert "simdist/" not in text


def _section(run: PytestRun, title: str) -> str:
    found = re.search(rf"^_+ {re.escape(title)} _+$\n(.*?)(?=^_{{3,}} \S|^=+ \S)", run.text, re.M | re.DOTALL)
    assert found is not None, run.text
    return found[0]
