"""Further expectations of a sweep: states, samples, files, and no writes by a life that is over."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import ArgumentError
from simdist.sweeps import SweepReport

SAMPLES = 8


def train(folder: str, *, keeps_momentum: bool = True, skips: bool = False, noise: bool = False) -> None:
    """Train four steps on two ranks, an epoch of eight samples, with a checkpoint after each step."""
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), Path(folder) / "last.pt"
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if path.exists():
        saved = torch.load(path)
        net.load_state_dict(saved["net"])
        if keeps_momentum:
            optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + (1 if skips else 0)
    dist.barrier()
    for step in range(first, 4):
        simdist.step(step)
        sample = 2 * step + rank
        simdist.samples([sample])
        net(torch.full((1, 2), float(sample))).sum().backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if noise and rank == 1 and step == 2:
            with torch.no_grad():
                net.bias.add_(1e-6)
        simdist.state(net=net, optimizer=optimizer)
        if rank == 0:
            saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(saved, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
        dist.barrier()
    dist.destroy_process_group()


def _swept(expect: dict[str, Any], **kwargs: Any) -> SweepReport:
    return simdist.sweep(train, world_size=2, kwargs=kwargs, strikes=["rank"], expect=expect, limit=10)


def _reported(report: SweepReport) -> set[tuple[str, str]]:
    return {problem for failure in report.failures for problem in failure.problems} | set(report.wrong)


def test_training_that_keeps_everything_passes_all_of_them() -> None:
    report = _swept(
        {
            "equal_states": True,
            "same_states_as_without_faults": True,
            "samples_once": SAMPLES,
            "max_files": 1,
            "no_late_writes": True,
        }
    )

    assert _reported(report) == set()
    assert len(report.cases) == 10


def test_a_state_that_is_not_restored_is_reported_by_tensor_and_step() -> None:
    reported = _reported(_swept({"same_states_as_without_faults": True}, keeps_momentum=False))

    assert (
        "same_states_as_without_faults",
        "net.weight of rank 0 is another one than undisturbed in step 2, after restart 1",
    ) in reported
    assert {name for name, _ in reported} == {"same_states_as_without_faults"}


def test_ranks_that_differ_are_reported_by_tensor_and_step() -> None:
    report = _swept({"equal_states": True}, noise=True)

    assert report.wrong == (("equal_states", "net.bias differs between ranks 0 and 1 in step 2"),)


def test_samples_that_are_left_out_after_a_restart_are_reported() -> None:
    reported = _reported(_swept({"samples_once": SAMPLES}, skips=True))

    assert ("samples_once", "epoch 0: 6 samples of 8 were used, sample 4 was not, and 1 more") in reported


def test_samples_that_are_used_twice_are_reported() -> None:
    def twice(folder: str) -> None:
        for step in range(2):
            simdist.step(step)
            simdist.samples([0], epoch=1)

    report = simdist.sweep(twice, world_size=1, expect={"samples_once": 1})

    assert report.wrong == (("samples_once", "epoch 1: sample 0 was used 2 times"),)


def test_files_that_pile_up_are_reported() -> None:
    def leaves(folder: str) -> None:
        life = os.environ["TORCHELASTIC_RESTART_COUNT"]
        (Path(folder) / f"{life}.tmp").write_text("1")
        (Path(folder) / "value").write_text("1")
        (Path(folder) / f"{life}.tmp").unlink()

    report = simdist.sweep(leaves, world_size=1, strikes=["rank"], expect={"max_files": 1})

    assert _reported(report) == {("max_files", "2, at most 1: 0.tmp, value")}


def test_expectations_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        simdist.sweep(train, world_size=2, expect={"equal": True, "max_files": True, "equal_states": 1})

    text = str(caught.value)
    assert "expect: 'equal' is none of equal_states, same_states_as_without_faults, samples_once, max_files" in text
    assert "expect: max_files is a count, not True" in text
    assert "expect: equal_states is True or False, not 1" in text


def _write_late(folder: str) -> None:
    time.sleep(5)
    (Path(folder) / "late").write_text("x")


def test_what_a_process_writes_whose_rank_was_started_again_is_reported() -> None:
    def leaves_a_child(folder: str) -> None:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            multiprocessing.get_context("fork").Process(target=_write_late, args=(folder,), daemon=True).start()
            time.sleep(1)
            simdist.point("child is there")
        time.sleep(10)

    report = simdist.sweep(leaves_a_child, world_size=1, strikes=["rank"], expect={"no_late_writes": True})

    at_point = [failure for failure in report.failures if failure.case.point.name == "child is there"]
    assert at_point[0].problems == (("no_late_writes", "rank 0 of life 0 changed 'late' after the restart"),)
