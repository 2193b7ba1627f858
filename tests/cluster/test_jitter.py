"""Times on a cluster with a jitter vary only under policies that draw, within its bounds, and by the seed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.cluster import Jitter, build
from simdist.errors import ScenarioError, TopologyError
from simdist.scenario import load
from simdist.storage import Mount

MS = 1_000_000


def begins() -> int:
    return time.monotonic_ns()


def times(body: Any, jitter: Jitter | None, **settings: Any) -> list[int]:
    result = simdist.run(body, world_size=4, cluster=build(4, jitter=jitter), **settings)
    result.raise_for_failure()
    first = min(result.values)
    return [value - first for value in result.values]


@pytest.mark.parametrize("policy", ["random", "pct:2"])
def test_ranks_begin_at_different_times_under_a_policy_that_draws(policy: str) -> None:
    jitter = Jitter(start_ns=5 * MS)
    found = [times(begins, jitter, policy=policy, seed=seed) for seed in (0, 1, 0)]

    assert found[0] == found[2] != found[1]
    assert all(0 <= late <= 5 * MS for late in (*found[0], *found[1]))
    assert len({*found[0]}) == 4


@pytest.mark.parametrize("policy", ["fifo", "order:0"])
def test_nothing_varies_under_a_policy_that_draws_nothing(policy: str) -> None:
    assert times(begins, Jitter(start_ns=5 * MS), policy=policy) == [0, 0, 0, 0]


def test_ranks_begin_late_again_after_a_restart() -> None:
    def body() -> int:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("the first life")
        return time.monotonic_ns()

    found = times(body, Jitter(start_ns=5 * MS), policy="random", max_restarts=1)

    assert len({*found}) == 4
    assert max(found) <= 5 * MS


def test_effects_on_a_disk_vary(tmp_path: Path) -> None:
    def body() -> int:
        before = time.monotonic_ns()
        (tmp_path / os.environ["RANK"]).mkdir()
        return time.monotonic_ns() - before

    def took(policy: str) -> list[int]:
        cluster = build(4, jitter=Jitter(disk=3))
        disk = Mount(folder=tmp_path, latency_ns=2 * MS)
        result = simdist.run(body, world_size=4, cluster=cluster, disk=disk, policy=policy)
        for rank in range(4):
            (tmp_path / str(rank)).rmdir()
        return result.values

    assert took("fifo") == [2 * MS] * 4
    found = took("random")
    assert all(2 * MS <= each <= 8 * MS for each in found)
    assert len({*found}) == 4
    assert took("random") == found


def test_kernels_of_devices_vary() -> None:
    def body() -> int:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        tensor = torch.ones(1024, 1024, device="cuda")
        torch.cuda.synchronize()
        before = time.monotonic_ns()
        tensor @ tensor
        torch.cuda.synchronize()
        return time.monotonic_ns() - before

    def took(policy: str) -> list[int]:
        cluster = build(4, device_model="a100", devices_per_host="ranks", jitter=Jitter(compute=0.5))
        return simdist.run(body, world_size=4, backend="nccl", cluster=cluster, policy=policy).values

    (usual,) = {*took("fifo")}
    found = took("random")
    assert all(usual <= each <= 1.5 * usual + 1 for each in found)
    assert len({*found}) == 4


def test_a_scenario_has_a_section_for_it(tmp_path: Path) -> None:
    (tmp_path / "jitter.toml").write_text(
        'world_size = 4\n[workload]\ntarget = "os:getpid"\n[jitter]\nstart = "5ms"\ndisk = 2\n'
    )

    assert load(str(tmp_path / "jitter.toml")).cluster == {"jitter": Jitter(start_ns=5 * MS, disk=2.0)}

    (tmp_path / "jitter.toml").write_text(
        'world_size = 4\n[workload]\ntarget = "os:getpid"\n[jitter]\nstrat = "5ms"\ndisk = -1\n'
    )
    with pytest.raises(ScenarioError) as caught:
        load(str(tmp_path / "jitter.toml"))
    assert "jitter.strat: unknown key; did you mean 'start'" in str(caught.value)
    assert "jitter.disk: -1 is too small; the least is 0" in str(caught.value)


def test_bad_values_are_refused_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        Jitter(start_ns=-1, disk=float("nan"))

    assert "start_ns: " in str(caught.value)
    assert "disk: " in str(caught.value)
    with pytest.raises(TopologyError, match=r"jitter: expected a simdist.cluster.Jitter"):
        build(2, jitter=3)  # type: ignore[arg-type]
