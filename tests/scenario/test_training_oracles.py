"""The expectations for trainings in a scenario file."""

from __future__ import annotations

from pathlib import Path

import pytest

from simdist.errors import ScenarioError
from simdist.scenario import load, run_scenario

_PROGRAM = """
import torch
import torch.distributed as dist

import simdist


def train(noise=0.0):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    weight = torch.zeros(3)
    for step in range(2):
        simdist.step(step)
        mine = list(range(4 * step + rank, 4 * step + 4, size))
        simdist.samples(mine)
        gradient = torch.tensor([float(sum(mine))] * 3) / 3
        dist.all_reduce(gradient)
        weight -= gradient / 4
        if rank == 1 and step == 1:
            weight[1] += noise
        simdist.state(model={"weight": weight}, step=step)
    dist.destroy_process_group()
    return {"loss": float(weight[0])}
"""


def _verdicts(folder: Path, expect: str, noise: float = 0.0) -> dict[str, tuple[bool, str]]:
    (folder / "program.py").write_text(_PROGRAM)
    path = folder / "scenario.toml"
    workload = f'workload = {{ target = "program:train", kwargs = {{ noise = {noise} }} }}'
    path.write_text(f"world_size = 2\n{workload}\n[expect]\n{expect}\n")
    return {each.name: (each.ok, each.evidence) for each in run_scenario(load(str(path))).verdicts}


def test_training_that_is_right_meets_them_all(tmp_path: Path) -> None:
    expect = "equal_states = true\nsame_states_as_without_faults = true\nsamples_once = 8\nno_late_writes = true\n"

    found = _verdicts(tmp_path, expect + 'same_as_one_rank = ["loss"]\nmax_files = 0')

    assert found["equal_states"] == (True, "in all of 4 that ranks reported")
    assert found["same_states_as_without_faults"] == (True, "all of 4 that ranks reported")
    assert found["samples_once"] == (True, "each of 8 in each epoch")
    assert found["same_as_one_rank"] == (True, "loss as of one rank")
    assert found["max_files"] == (True, "0, at most 0")
    assert found["no_late_writes"] == (True, "none")


def test_the_first_tensor_that_differs_is_named_with_its_step(tmp_path: Path) -> None:
    found = _verdicts(tmp_path, "equal_states = true", noise=1e-3)

    assert found["equal_states"] == (False, "model.weight differs between ranks 0 and 1 in step 1")


def test_a_loss_that_one_rank_would_not_have_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(
        "import torch.distributed as dist\n\n\ndef f():\n    dist.init_process_group('gloo')\n"
        "    return {'loss': 1.5 * dist.get_world_size()}\n"
    )
    path = tmp_path / "scenario.toml"
    path.write_text('world_size = 2\nworkload = { target = "sum:f" }\n[expect]\nsame_as_one_rank = ["loss"]\n')

    verdict = {each.name: each.evidence for each in run_scenario(load(str(path))).verdicts}["same_as_one_rank"]

    assert verdict == "loss: rank 0 at ['loss']: 3.0 and 1.5 with one rank"


def test_what_nobody_reported_is_no_proof(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    (tmp_path / "quiet.py").write_text("def f():\n    pass\n")
    path.write_text(
        'world_size = 1\nworkload = { target = "quiet:f" }\n[expect]\nequal_states = true\nsamples_once = 3\n'
    )

    found = {each.name: each.evidence for each in run_scenario(load(str(path))).verdicts if not each.ok}

    assert found == {
        "equal_states": "no rank reported its state (simdist.state)",
        "samples_once": "no rank reported samples (simdist.samples)",
    }


def test_what_they_are_not_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        _verdicts(tmp_path, 'equal_states = "yes"\nsamples_once = -1\nmax_files = "few"')

    for key in ("equal_states", "samples_once", "max_files"):
        assert f"expect.{key}: " in str(caught.value)
