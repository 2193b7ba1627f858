"""The comparison with a real GPU: its virtual side, and its output on a machine without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner

import simdist
from scenarios.workloads import collectives
from simdist.hardware._device import nccl_environment, with_backend
from tools._device_parity import NAMES, PAIR, differences, simulated
from tools.parity_nccl import COMPARED, comparable, main, timeout_plan


@pytest.fixture
def kernels() -> None:
    """Use any form of the kernels: one is enough."""


def test_a_virtual_device_answers_all_that_is_asked_of_a_gpu() -> None:
    found = simulated()

    assert tuple(found) == NAMES
    first, second = found[PAIR]
    assert first["all_reduce"] == second["all_reduce"] == [1.0, 3.0, 5.0, 7.0]
    assert first["gradient"] == second["gradient"] == [[1.5, 1.5]]
    assert found["mixed precision"]["scales"] == [4.0, 2.0, 2.0, 4.0]


def test_answers_part_where_they_part() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}) == ["/a/c: simulated 2, real 3"]
    assert differences({"a": 1}, {"a": 1, "b": 2}) == ["/b: simulated None, real 2"]


def test_without_a_gpu_it_is_said_what_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.parity_nccl.unavailable", lambda *_: "this build of torch has no NCCL")

    result = CliRunner().invoke(main, [])

    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "skipped: this build of torch has no NCCL"
    assert all(name in result.output.splitlines()[1] for name in NAMES)


# There is no GPU for the tool's other half: its workloads run on virtual devices here, as its workers run them.


@pytest.fixture
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., simdist.RunResult]:
    def run(name: str, ranks: int, env: Any = (), **settings: Any) -> simdist.RunResult:
        def body() -> Any:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            torch.set_default_device(device)
            return getattr(collectives, name)(**settings)

        with monkeypatch.context() as patched:
            patched.setattr(dist, "init_process_group", with_backend(dist.init_process_group))
            return simdist.run(body, world_size=ranks, backend="nccl", env=dict(env))

    return run


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_compared_over_nccl_is_the_same_over_gloo(
    ranks: int, as_on_gpus: Callable[..., simdist.RunResult]
) -> None:
    for name in COMPARED:
        if comparable(name, ranks):
            over_gloo = simdist.run(getattr(collectives, name), world_size=ranks)
            over_gloo.raise_for_failure()
            assert as_on_gpus(name, ranks).values == over_gloo.values


@pytest.mark.filterwarnings("ignore:barrier")
@pytest.mark.parametrize(("wait", "status"), [("blocking", "raised"), ("async", "killed")])
def test_the_timeout_that_is_looked_for_comes_in_both_ways_of_waiting(
    wait: str, status: str, as_on_gpus: Callable[..., simdist.RunResult], tmp_path: Path
) -> None:
    plan = timeout_plan()
    env = {**nccl_environment(wait), "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}

    rank = as_on_gpus("never_calls", plan.world_size, env, **plan.workload.kwargs).ranks[0]

    assert rank.status == status, rank
    assert rank.ended_ns < 120 * 10**9, "a real run is given up by then"
    assert (tmp_path / "trace_0").exists() is (wait == "async")
