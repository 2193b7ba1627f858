"""The setting `values`: what it refuses, what it turns off, and where it can be set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import ArgumentError, FaultError, ScenarioError
from simdist.faults import BitFlip, Crash
from simdist.scenario import load, run_scenario
from tests.searches.programs import all_together


def sums(elements: int = 5000) -> float:
    """Return the first element of an all_reduce: the rank's own number, if payloads are not moved."""
    dist.init_process_group("gloo")
    tensor = torch.full((elements,), float(1 + dist.get_rank()))
    dist.all_reduce(tensor)
    return float(tensor[0])


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"values": "some"}, "values: unknown 'some'; known: all, shapes"),
        ({"values": "shapes", "record_results": True}, "record_results: operations leave nothing to compare"),
        (
            {"values": "shapes", "judges": ["finite"]},
            "judges: 'finite' compares values, and values=\"shapes\" moves none",
        ),
        ({"values": "shapes", "judges": ["races", "replicas"]}, "judges: 'replicas' compares values"),
    ],
)
def test_what_needs_values_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        simdist.run(sums, world_size=2, **given)

    assert line in str(raised.value)


def test_a_fault_that_changes_payloads_is_refused_by_name() -> None:
    faults = [Crash(rank=0, nth=1), BitFlip(rank=1, op="all_reduce")]

    with pytest.raises(FaultError) as raised:
        simdist.run(sums, world_size=2, values="shapes", faults=faults)

    said = 'bit_flip changes what an operation carries, and values="shapes" moves no payloads'
    assert raised.value.problems == (f"faults[1]: {said}",)


def test_a_fault_that_changes_what_is_written_is_fine(tmp_path: Path) -> None:
    def writes() -> None:
        (tmp_path / "file").write_bytes(b"1234")

    fault = BitFlip(rank=0, op="write", byte=0)
    result = simdist.run(writes, world_size=1, values="shapes", disk=str(tmp_path), faults=[fault])

    assert result.ok
    assert (tmp_path / "file").read_bytes() == b"0234"


def test_all_judges_are_those_that_compare_no_values() -> None:
    result = simdist.run(sums, world_size=2, values="shapes", judges=True)

    assert result.judges == ("collectives", "buffers", "races", "samples")
    assert result.values == [1.0, 2.0]


def test_the_replay_says_it() -> None:
    result = simdist.run(sums, world_size=2, values="shapes")

    assert result.replay == "simdist.run(sums, world_size=2, seed=0, values='shapes')"


def test_comparisons_of_values_refuse_it() -> None:
    with pytest.raises(ArgumentError, match="values: what layouts train is compared; leave it out"):
        simdist.agree(lambda layout: sums(), layouts=[2], values="shapes")  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="judges: 'trails' compares values"):
        simdist.resume(lambda folder: sums(), world_size=2, values="shapes")


def _scenario(folder: Path, *lines: str) -> str:
    path = folder / "sums.toml"
    (folder / "program.py").write_text(
        "import torch\nimport torch.distributed as dist\n\n\ndef sums():\n"
        '    dist.init_process_group("gloo")\n    tensor = torch.full((5000,), 1.0)\n'
        "    dist.all_reduce(tensor)\n    return float(tensor[0])\n"
    )
    said = "\n".join(lines)
    path.write_text(f'world_size = 2\n{said}\n[workload]\ntarget = "program:sums"\n')
    return str(path)


def test_a_scenario_says_it_in_its_header(tmp_path: Path) -> None:
    path = _scenario(tmp_path, 'values = "shapes"')

    assert run_scenario(load(path)).result.values == [1.0, 1.0]
    assert run_scenario(load(path, overrides=["values=all"])).result.values == [2.0, 2.0]


def test_a_scenario_is_refused_with_all_that_needs_values(tmp_path: Path) -> None:
    fault = '{ kind = "bit_flip", rank = 1, op = "all_reduce" }'
    path = _scenario(tmp_path, 'values = "shapes"', 'judges = ["finite"]', f"faults = [{fault}]")

    with pytest.raises(ScenarioError) as raised:
        load(path)

    assert len(raised.value.problems) == 2
    assert raised.value.problems[0].startswith("judges: 'finite' compares values")
    assert raised.value.problems[1].startswith("faults[0]: bit_flip changes what an operation carries")


def test_a_search_draws_no_fault_that_changes_payloads() -> None:
    found = simdist.fuzz(all_together, world_size=2, runs=10, families=["corruption"])
    without = simdist.fuzz(all_together, world_size=2, runs=10, families=["corruption"], values="shapes")

    assert found.explained
    assert without.passed == without.runs == 10


@pytest.mark.simdist(world_size=2, values="shapes")
def test_a_marked_test_can_say_it() -> None:
    tensor = torch.full((5000,), float(dist.get_rank()))
    dist.all_reduce(tensor)

    assert float(tensor[0]) == dist.get_rank()
