"""Hypothesis strategies draw faults that fit a world, and shrink to the simplest one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import simdist
from simdist import strategies
from simdist.cluster import Cluster
from simdist.errors import ArgumentError
from simdist.faults import Crash, Fault, Partition, problems_of
from simdist.searches import DEADLY, FAMILIES

_CALM = settings(database=None, derandomize=True, max_examples=100, phases=[Phase.generate, Phase.shrink])


def smallest(strategy: SearchStrategy[Any], wanted: Callable[[Any], bool] = lambda _: True) -> Any:
    return find(strategy, wanted, settings=_CALM)


def total() -> float:
    dist.init_process_group("gloo")
    value = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(value)
    return float(value[0])


@settings(max_examples=15)
@given(st.data())
def test_every_world_runs(data: st.DataObject) -> None:
    size = data.draw(strategies.world_sizes(2, 4))
    plan = data.draw(strategies.fault_plans(size, families=["slow", "hang"], budget=2))

    result = simdist.run(
        total,
        world_size=size,
        cluster=data.draw(strategies.clusters(size)),
        policy=data.draw(strategies.schedules()),
        faults=plan,
    )

    assert [rank.value for rank in result.ranks] == [float(size**3)] * size


@given(strategies.fault_plans(3, max_restarts=2, has_disk=True, has_devices=True))
def test_plans_fit_the_world_and_can_be_survived(plan: list[Fault]) -> None:
    assert problems_of(plan, 3, max_restarts=2, has_disk=True, has_local_disks=False, has_devices=True) == []
    assert all(fault.optional for fault in plan)
    assert sum(fault.kind in DEADLY for fault in plan) <= 2
    assert len({fault.target for fault in plan if fault.target is not None}) <= 1


def test_everything_shrinks_to_the_plainest() -> None:
    assert smallest(strategies.world_sizes(2, 8)) == 2
    assert smallest(strategies.schedules()) == "fifo"
    assert len(smallest(strategies.clusters(6)).hosts) == 1
    assert smallest(strategies.fault_plans(3)) == []


def test_a_plan_shrinks_to_the_one_fault_that_it_takes() -> None:
    plans = strategies.fault_plans(4)

    (crash,) = smallest(plans, lambda plan: any(isinstance(fault, Crash) for fault in plan))
    (partition,) = smallest(plans, lambda plan: any(isinstance(fault, Partition) for fault in plan))

    assert (crash.rank, crash.at_ns) == (0, 0)
    assert (partition.start_ns, partition.until_ns) == (0, 1000)


def test_all_schedules_and_clusters_can_come() -> None:
    def has_hosts(cluster: Cluster) -> bool:
        return len(cluster.hosts) == 3

    assert smallest(strategies.schedules(), lambda name: name.startswith("pct")) == "pct:2@0"
    assert smallest(strategies.schedules(), lambda name: name.startswith("random")) == "random@0"
    assert "hosts=3, latency_ns=1000," in smallest(strategies.clusters(6), has_hosts).made_by


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "disk"])
def test_each_family_has_a_fault(family: str) -> None:
    plans = strategies.fault_plans(2, families=[family], max_restarts=1, has_devices=True)

    plan = find(plans, bool, settings=settings(_CALM, phases=[Phase.generate]))

    assert {fault.kind for fault in plan} <= set(FAMILIES[family])


def test_faults_strike_what_a_run_did() -> None:
    plain = simdist.run(total, world_size=2)
    plans = strategies.fault_plans(plain, families=["crash"])

    (fault,) = smallest(plans, lambda plan: any(fault.op == "all_reduce" and fault.nth == 3 for fault in plan))

    assert simdist.run(total, world_size=2, faults=[fault]).faults[0].struck


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"like": 0}, "like: 0 is no count; 1 is the least"),
        ({"budget": 0}, "budget: 0 is no count"),
        ({"families": ["disk"]}, "families: no fault of disk fits; more restarts, a disk or devices may be missing"),
        ({"families": "crash"}, r"families: expected a sequence of families, such as \['crash'\], found the text"),
        ({"families": ["chrash"]}, "families: 'chrash' is none; did you mean 'crash'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=f"^simdist.strategies.fault_plans: {said}"):
        strategies.fault_plans(**{"like": 2, **given})


@pytest.mark.real
def test_without_hypothesis_the_error_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import simdist.strategies"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert 'ImportError: simdist.strategies needs hypothesis: pip install "simdist[strategies]"' in done.stderr
