"""Programs as users of libraries write them: they run unmodified, with the values of real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from simdist.result import Event, RunResult
from simdist.scenario import load, run_scenario

PROGRAMS = Path(__file__).parents[2] / "scenarios" / "programs"
FILES = sorted(PROGRAMS.glob("*.toml"))
LIBRARIES = {
    "plain_ddp": "tensorboard",
    "stateful_loader": "torchdata",
    "with_accelerate": "accelerate",
    "with_fabric": "lightning",
    "with_hydra": "hydra",
    "with_lightning": "lightning",
    "with_trainer": "transformers",
}
SMALLER = {  # the files' own settings take longer, and show no more
    "cuda_2d": ["workload.kwargs.steps=2", "workload.kwargs.layers=1"],
    "cuda_fsdp2": ["world_size=2", "workload.kwargs.steps=2"],
    "cuda_language_model": ["workload.kwargs.steps=2"],
    "cuda_sequence_parallel": ["workload.kwargs.steps=2"],
    "cuda_tensor_parallel": ["workload.kwargs.steps=2"],
    "fsdp2_checkpoint": ["world_size=2"],
}


def _needs(file: Path) -> None:
    library = LIBRARIES.get(file.stem)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install -e '.[programs]'")


@pytest.mark.filterwarnings("ignore")  # the libraries' own warnings
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_program_runs_unmodified_and_twice_the_same(
    file: Path, compiled_kernels: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _needs(file)
    # Torch's test tools, which other tests import, forbid this process to set flags that programs set.
    variables: Any = torch.backends.disable_global_flags.__globals__
    monkeypatch.setitem(variables, "__allow_nonbracketed_mutation_flag", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a folder without files of other runs
    runs = []
    for form in ("python", "compiled" if compiled_kernels is not None else "python"):  # of virtual devices' kernels
        monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
        # A folder that no other test uses, but the same for both runs: some ranks send each other its path.
        runs.append(run_scenario(load(str(file), overrides=SMALLER.get(file.stem, ())), folder=str(tmp_path)))

    first, second = runs

    assert first.ok, [(verdict.name, verdict.evidence) for verdict in first.verdicts if not verdict.ok]
    assert first.result.values == second.result.values
    assert _differing(first.result, second.result) is None
    assert first.result.digest == second.result.digest


def _differing(one: RunResult, other: RunResult) -> tuple[Event, Event] | None:
    """Return the first two events that differ."""
    pairs = zip(one.events, other.events, strict=False)
    return next((pair for pair in pairs if repr(pair[0]) != repr(pair[1])), None)


def test_each_program_has_a_scenario() -> None:
    modules = {tomllib.loads(file.read_text())["workload"]["target"].split(":")[0] for file in FILES}
    assert modules == {file.stem for file in PROGRAMS.glob("*.py")}
    assert LIBRARIES.keys() <= {file.stem for file in FILES}


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_real_processes_end_with_the_same_values(file: Path, tmp_path: Path) -> None:
    _needs(file)
    backend = load(str(file)).backend
    if backend == "nccl" and torch.cuda.device_count() < load(str(file)).world_size:
        pytest.skip("there is no GPU for each rank")
    report = run_scenario(load(str(file)))
    assert report.ok, [(verdict.name, verdict.evidence) for verdict in report.verdicts if not verdict.ok]
    out = tmp_path / "real.json"

    done = subprocess.run(
        [sys.executable, "-m", "simdist", "run", str(file), "--real", backend, "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert values_of(out) == list(report.result.values)


def values_of(file: Path) -> list[Any]:
    """Return each rank's value, from a report as JSON."""
    return [rank["value"] for rank in json.loads(file.read_text())["ranks"]]
