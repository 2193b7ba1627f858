"""Ranks of a world without devices do not see the GPUs of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import simdist
from simdist.world import _no_devices


def _said(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _asked() -> list[str]:
    cuda: Any = torch.cuda
    torch.manual_seed(1)
    calls = [cuda.is_available, cuda.device_count, cuda.current_device, lambda: torch.ones(2, device="cuda")]
    return [_said(call) for call in calls]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make simdist believe that the machine has a GPU."""
    monkeypatch.setattr(_no_devices, "is_built_for_cuda", lambda: True)
    monkeypatch.setattr(_no_devices, "physical_gpus", lambda: 1)


@pytest.mark.usefixtures("a_gpu")
def test_ranks_without_devices_see_no_gpu_of_their_machine() -> None:
    outside = _asked()
    waiting = len(vars(torch.cuda)["_queued_calls"])  # calls that wait for the initialisation of CUDA

    result = simdist.run(_asked, world_size=2)

    refusal = "RuntimeError: No CUDA GPUs are available"
    assert result.values == [["False", "0", refusal, refusal]] * 2
    assert len(vars(torch.cuda)["_queued_calls"]) == waiting
    assert _asked() == outside


@pytest.mark.usefixtures("a_gpu")
def test_a_test_that_insists_on_a_gpu_hears_of_virtual_ones() -> None:
    rank = simdist.run(lambda: torch.ones(2).cuda(), world_size=1).ranks[0]

    assert "No CUDA GPUs are available" in str(rank.exception)
    assert "this world has no devices" in rank.stderr


@pytest.mark.usefixtures("a_gpu")
def test_virtual_devices_are_there_all_the_same() -> None:
    cluster = simdist.cluster.build(1, devices_per_host=2)

    assert simdist.run(torch.cuda.device_count, world_size=1, cluster=cluster).values == [2]


def test_every_rank_of_every_world_makes_fake_tensors_of_a_gpu() -> None:
    def body() -> str:
        with FakeTensorMode():
            return str(torch.ones(3, device="cuda").device)

    for _ in range(2):
        assert simdist.run(body, world_size=3).values == ["cuda:0"] * 3
