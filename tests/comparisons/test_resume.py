"""`simdist.resume`: a training that is killed and resumes, and where it first differs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.errors import ArgumentError, RunFailedError
from tests.judges.programs import line_of

STEPS = 4


def train(folder: str, *, bug: str = "") -> None:
    """Train four steps with noise from torch's generator, and a checkpoint after each."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    path, begin = Path(folder, "saved.pt"), 0
    if path.exists() and bug == "raises":
        raise RuntimeError("can't read it")
    if path.exists():
        saved = torch.load(path)
        begin = saved["step"] - (bug == "repeats")
        with torch.no_grad():
            weight.copy_(saved["weight"] + (bug == "other"))
        if bug != "momentum":
            optimizer.load_state_dict(saved["optimizer"])
        if bug != "generator":
            torch.set_rng_state(saved["generator"])
    for step in range(begin, STEPS):
        optimizer.zero_grad()
        given = torch.randn(4) if bug != "constant" else torch.ones(4)
        loss: Any = (weight * given).square().sum()
        loss.backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        state = {"step": step + 1, "weight": weight.detach(), "generator": torch.get_rng_state()}
        if dist.get_rank() == 0:
            torch.save({**state, "optimizer": optimizer.state_dict()}, Path(folder, "new.pt"))
            Path(folder, "new.pt").replace(path)
        dist.barrier()
    dist.destroy_process_group()


def test_a_training_that_goes_on_as_if_nothing_had_happened() -> None:
    report = simdist.resume(train, world_size=2)

    assert report.ok
    assert str(report) == "3 crashes, each resumed as if nothing had happened"
    assert [result.restarts for result in report.results] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("bug", "name", "step", "problem"),
    [
        ("momentum", "state momentum_buffer of weight", 2, "the optimizer's momentum_buffer of weight is missing"),
        (
            "generator",
            "generator of torch",
            2,
            "the generator of torch is in another state than in the uninterrupted run",
        ),
        ("other", "parameters", None, "goes on with parameters that it never had before"),
        ("repeats", "steps", 2, "takes 3 steps from step 2 on, where 2 remain"),
    ],
)
def test_what_differs_first_is_named(bug: str, name: str, step: int | None, problem: str) -> None:
    (found,) = simdist.resume(partial(train, bug=bug), world_size=2, crashes=[2]).differences

    assert (found.crash, found.rank, found.name, found.step) == (2, 0, name, step)
    assert found.problem == problem
    assert found.where == line_of(train, "optimizer.step()")


def test_a_generator_that_nobody_draws_from_may_differ() -> None:
    def program(folder: str) -> None:
        torch.rand(2 if Path(folder, "saved.pt").exists() else 1)
        train(folder, bug="constant")

    assert simdist.resume(program, world_size=2).ok


def test_a_run_that_can_not_go_on_is_reported() -> None:
    report = simdist.resume(partial(train, bug="raises"), world_size=2, crashes=[1])

    assert "can't read it" in report.differences[0].problem
    with pytest.raises(RunFailedError, match="1 of 1 resumed runs differ from the uninterrupted one"):
        report.raise_for_failure()


def test_a_crash_before_the_first_checkpoint_begins_anew() -> None:
    assert simdist.resume(train, world_size=2, crashes=[0]).ok


def test_judges_look_on_in_all_runs() -> None:
    report = simdist.resume(train, world_size=2, crashes=[1], judges=["races"])

    assert [result.judges for result in report.results] == [("trails", "races")] * 2


@pytest.mark.parametrize(
    ("crashes", "text"), [([4], "expected steps from 0 to 3, found 4"), ([True], "found True"), ([-1], "found -1")]
)
def test_steps_that_there_are_not_are_refused(crashes: list[int], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        simdist.resume(train, world_size=2, crashes=crashes)


def test_a_program_without_an_optimizer_is_refused() -> None:
    with pytest.raises(ArgumentError, match="rank 0 takes no optimizer step"):
        simdist.resume(lambda folder: None, world_size=2)


def with_average(folder: str, *, saved: bool) -> None:
    """Train, and keep a moving average of the parameters, on which nothing else depends."""
    dist.init_process_group("gloo")
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average, begin = model.weight.detach().clone(), 0
    path = Path(folder, f"{dist.get_rank()}.pt")
    if path.exists():
        found = torch.load(path)
        model.load_state_dict(found["model"])
        begin = found["step"]
        average = found["average"] if saved else model.weight.detach().clone()
    for step in range(begin, 4):
        optimizer.zero_grad()
        model(torch.full((1, 2), step + 1.0)).sum().backward()
        optimizer.step()
        dist.barrier()  # rank 0 dies before a step, and no rank gets ahead of it
        average.lerp_(model.weight.detach(), 0.1)
        simdist.state(average=average)
        torch.save({"model": model.state_dict(), "average": average, "step": step + 1}, path)
        dist.barrier()
    dist.destroy_process_group()


def test_state_that_is_reported_is_compared_too() -> None:
    assert simdist.resume(partial(with_average, saved=True), world_size=2).ok

    report = simdist.resume(partial(with_average, saved=False), world_size=2, crashes=[2])

    (found,) = report.differences
    assert (found.rank, found.name) == (0, "state average")
    assert str(found) == (
        "crash before step 2, rank 0: average, as reported by simdist.state, differs from the uninterrupted run"
    )
