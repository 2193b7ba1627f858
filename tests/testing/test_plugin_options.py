"""Seeds, traces, the determinism check, and pytest-xdist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.testing.runs import Run, run_pytest, section

SEEDED = """
import pytest, torch.distributed as dist, numpy as np

@pytest.mark.simdist(world_size=2, seeds=2)
@pytest.mark.parametrize("value", ["a", "b c"])
def test_marked(value, simdist_seed):
    print("seed", simdist_seed)
    dist.barrier()

@pytest.mark.simdist(world_size=2)
def test_once(simdist_seed): print("seed", simdist_seed)

@pytest.mark.simdist(seeds=[7])
def test_seven(simdist_seed): print("seed", simdist_seed)

def test_driven(sim): print("seed", sim.run(lambda: 1, world_size=1).seed)

def test_plain(): ...
"""

ORDER = """
import pytest, torch.distributed as dist

order = []

@pytest.mark.simdist(world_size=8, seeds=4{keywords})
def test_order(rank, simdist_seed):
    dist.barrier()
    order.append(rank)

def test_reported():
    print("orders", [order[start:start + 8] for start in range(0, len(order), 8)])
"""


def names(run: Run, *arguments: str) -> list[str]:
    done = run("-rA", *arguments, files={"test_it.py": SEEDED})
    assert set(done.outcomes.values()) == {"passed"}, done.text
    return list(done.outcomes)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--simdist-seed=x", "--simdist-seed: expected a whole number, found 'x'"),
        ("--simdist-seed=-1", "--simdist-seed: -1 is too small; the least is 0"),
        ("--simdist-seeds=0", "--simdist-seeds: 0 is too small; the least is 1"),
        ("--simdist-explore=1.5", "--simdist-explore: expected a whole number, found '1.5'"),
    ],
)
def test_a_number_that_is_none_is_reported_in_plain_words(run: Run, option: str, problem: str) -> None:
    done = run(option, files={"test_it.py": "def test_it(): ..."})

    assert f"error: argument {problem}\n" in done.text


def test_several_seeds_are_several_tests(run: Run) -> None:
    assert names(run) == [
        *("test_marked[a-seed0]", "test_marked[a-seed1]", "test_marked[b c-seed0]", "test_marked[b c-seed1]"),
        *("test_once", "test_seven", "test_driven", "test_plain"),
    ]


def test_an_option_gives_every_simulated_test_more_seeds(run: Run) -> None:
    found = names(run, "--simdist-seeds=3")

    assert [name for name in found if name.startswith("test_once")] == [f"test_once[seed{n}]" for n in range(3)]
    assert [name for name in found if name.startswith("test_seven")] == [f"test_seven[seed{n}]" for n in (7, 8, 9)]
    assert [name for name in found if name.startswith("test_driven")] == [f"test_driven[seed{n}]" for n in range(3)]
    assert "test_plain" in found


def test_an_option_fixes_the_seed(run: Run) -> None:
    done = run("-rA", "--simdist-seed=5", files={"test_it.py": SEEDED})

    assert list(done.outcomes) == [
        "test_marked[a]",
        "test_marked[b c]",
        "test_once",
        "test_seven",
        "test_driven",
        "test_plain",
    ]
    assert done.text.count("seed 5\n") >= 5
    assert "seed 0\n" not in done.text


def test_bad_options_are_refused(run: Run) -> None:
    for option in ("--simdist-seed=-1", "--simdist-seeds=0", "--simdist-seed=x"):
        done = run(option, files={"test_it.py": SEEDED})

        assert done.code == 4
        assert option.partition("=")[0] in done.text
    Path("file").write_text("")
    done = run("--simdist-trace=file/below")

    assert done.code == 4
    assert "--simdist-trace file/below: Not a directory" in done.text


def test_seed_0_runs_ranks_in_order_and_others_in_an_order_of_their_own(run: Run) -> None:
    done = run("-rA", files={"test_it.py": ORDER.format(keywords="")})
    reported = next(line for line in done.text.splitlines() if line.startswith("orders "))
    orders = json.loads(reported.removeprefix("orders "))

    assert orders[0] == sorted(orders[0])
    assert all(order != sorted(order) for order in orders[1:])
    assert len({tuple(order) for order in orders}) == 4


def test_the_policy_can_be_fixed(run: Run) -> None:
    done = run("-rA", files={"test_it.py": ORDER.format(keywords=", policy='fifo'")})
    reported = next(line for line in done.text.splitlines() if line.startswith("orders "))

    assert json.loads(reported.removeprefix("orders ")) == [list(range(8))] * 4


def test_the_replay_command_shows_the_same_failure(run: Run) -> None:
    source = """
import pytest
@pytest.mark.simdist(seeds=3)
@pytest.mark.parametrize("value", ["a b"])
def test_it(value, simdist_seed): assert simdist_seed != 2
"""
    first = run(files={"test_it.py": source})
    command = "replay: pytest 'test_it.py::test_it[a b]' --simdist-seed=2"

    assert command in section(first, "test_it[a b-seed2]")
    again = run("test_it.py::test_it[a b]", "--simdist-seed=2")
    assert again.outcomes == {"test_it[a b]": "failed"}


def test_every_world_leaves_a_trace(run: Run) -> None:
    done = run("--simdist-trace=traces", files={"test_it.py": SEEDED})

    found = sorted(path.name for path in Path("traces").iterdir())
    assert "traces in traces" in done.text
    assert len(found) == len(set(found)) == 7
    assert "test_it.py-test_once-seed0.json" in found
    assert "test_it.py-test_seven-seed7.json" in found
    assert json.loads(Path("traces", found[0]).read_text())["traceEvents"]


def test_every_world_leaves_its_events(run: Run) -> None:
    run("--simdist-events=events", "--simdist-trace=traces", files={"test_it.py": SEEDED})

    events, traces = ({path.stem: path for path in Path(name).iterdir()} for name in ("events", "traces"))
    assert events.keys() == traces.keys()
    assert {path.suffix for path in events.values()} == {".jsonl"}
    assert len(events) == 7
    lines = [json.loads(line) for line in events["test_it.py-test_once-seed0"].read_text().splitlines()]
    assert [line["rank"] for line in lines if line["kind"] == "output"] == [0, 1]


@pytest.mark.real  # it starts interpreters of its own
def test_workers_of_xdist_run_the_same_tests(run: Run, tmp_path: Path) -> None:
    alone = run(files={"test_it.py": SEEDED})
    spread = run_pytest(tmp_path, "-n2", "--simdist-trace=traces", files={"test_it.py": SEEDED})

    assert spread.outcomes == alone.outcomes
    assert len(list((tmp_path / "traces").iterdir())) == 7


@pytest.mark.real  # it starts interpreters of its own
@pytest.mark.usefixtures("warm_processes")
def test_the_determinism_check_shows_what_differs(run: Run) -> None:
    source = """
import os, pytest, time, torch.distributed as dist

def lengths(names):
    return [len(name) for name in set(names)]

@pytest.mark.simdist(world_size=2)
def test_by_hash():
    for length in lengths(["alpha", "be", "gam", "delt", "epsilo", "zetazet", "etaetaeta"]):
        time.sleep(length)

@pytest.mark.simdist(seeds=[3])
@pytest.mark.parametrize("value", ["a b"])
def test_same(sim, value):
    for seconds in (1, 2):
        sim.run(lambda: time.sleep(seconds), world_size=2)

@pytest.mark.simdist(world_size=2)
def test_fails_alike(rank):
    os.system("true")
    assert rank == object
"""
    done = run("--simdist-check-determinism", files={"test_it.py": source})

    outcomes = {
        "test_by_hash": "failed",
        "test_same[a b]": "passed",
        "test_fails_alike": "failed",
    }
    assert done.outcomes == outcomes, done.text
    text = section(done, "test_by_hash")
    assert "differs between two runs with one seed\n  here:  {" in text
    assert '"kind": "sleep"' in text
    assert "likely cause: the order of a set" in text
    assert re.search(r"test_it\.py:5, on rank \d\n +return .len.name. for name in set.names.", text)
    alike = section(done, "test_fails_alike")
    assert "a second run, in a fresh process, was the same, event for event" in alike
    line = r"no seed decides what programs outside the simulation do:\n +true, started at test_it\.py:20 by ranks 0, 1"
    assert re.search(line, alike)


def test_an_option_tries_other_schedules_until_one_fails(run: Run) -> None:
    test = """
import pytest, torch, torch.distributed as dist

@pytest.mark.simdist(3)
def test_first_come(rank):
    if rank:
        return dist.send(torch.tensor([float(rank)]), 0)
    got = [torch.zeros(1), torch.zeros(1)]
    for each in got:
        dist.recv(each)
    assert int(got[0]) == 1

@pytest.mark.simdist(3)
def test_sum(rank):
    dist.all_reduce(torch.ones(1))
"""
    usual = run("-rA", files={"test_it.py": test})
    explored = run("-rA", "--simdist-explore=12", files={"test_it.py": test})

    assert set(usual.outcomes.values()) == {"passed"}
    assert explored.outcomes == {"test_first_come": "failed", "test_sum": "passed"}
    assert re.search(r"replay: pytest \S+::test_first_come --simdist-seed=0 --simdist-explore=\d+", explored.text)
