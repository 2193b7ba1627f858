"""The imports of the package `process`."""

from __future__ import annotations

from tests.kernel.test_imports import modules_after


def test_processes_need_neither_torch_nor_groups() -> None:
    loaded = modules_after(
        "from simdist.kernel import Simulation; from simdist.process import Runtime, SimProcess, Slots",
        blocked=("torch", "simdist.c10d", "simdist.faults", "simdist.world._world"),
    )

    assert "simdist.process._runtime" in loaded
