"""Scripts written for launchers other than torchrun find the variables that these set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

Launched = Callable[..., Result]

# The beginning of these scripts: it derives the variables that torch needs from those of any launcher.
SCRIPT = """
import argparse, os, sys
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int, default=-1)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
if "RANK" in os.environ:
    how, local_rank = "torch's", int(os.environ["LOCAL_RANK"])
elif "OMPI_COMM_WORLD_RANK" in os.environ:
    how, local_rank = "Open MPI's", int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
else:
    how, local_rank = "Slurm's", int(os.environ["SLURM_LOCALID"])
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
os.environ.setdefault("MASTER_ADDR", "host0")
os.environ.setdefault("MASTER_PORT", "29501")
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank()))
dist.all_reduce(total)
elastic = dist.is_torchelastic_launched()
across = os.environ.get("CROSS_RANK")
# One write a line, and an orderly end: real processes share their output, and torch 2.13 may abort at exit else.
found = [dist.get_rank(), how, local_rank, args.local_rank, int(total), args.lr, elastic, across]
sys.stdout.write(" ".join(map(str, found)) + "\\n")
dist.destroy_process_group()
"""
FOUND = {
    "torch.distributed.launch": [
        "0 torch's 0 0 6 0.1 True None",
        "1 torch's 1 1 6 0.1 True None",
        "2 torch's 0 0 6 0.1 True None",
        "3 torch's 1 1 6 0.1 True None",
    ],
    "deepspeed": [
        "0 torch's 0 0 6 0.1 False 0",
        "1 torch's 1 1 6 0.1 False 0",
        "2 torch's 0 0 6 0.1 False 1",
        "3 torch's 1 1 6 0.1 False 1",
    ],
    "mpirun": [
        "0 Open MPI's 0 -1 6 0.1 False None",
        "1 Open MPI's 1 -1 6 0.1 False None",
        "2 Open MPI's 0 -1 6 0.1 False None",
        "3 Open MPI's 1 -1 6 0.1 False None",
    ],
    "srun": [
        "0 Slurm's 0 -1 6 0.1 False None",
        "1 Slurm's 1 -1 6 0.1 False None",
        "2 Slurm's 0 -1 6 0.1 False None",
        "3 Slurm's 1 -1 6 0.1 False None",
    ],
}

ENVIRONMENT = """
import os, sys
names = ("ACCELERATE", "FSDP", "RANK", "LOCAL", "WORLD", "GROUP", "ROLE", "MASTER", "OMP", "TORCHELASTIC", "KMP")
mine = {name: os.environ[name] for name in sorted(os.environ) if name.partition("_")[0] in names}
mine.pop("TORCHELASTIC_ERROR_FILE", None)
sys.stdout.write(f"{mine}\\n")
"""
OF_ACCELERATE: dict[str, tuple[str, ...]] = {
    "several": ("--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=bf16"),
    "fsdp": ("--use_fsdp", "--num_processes=2", "--fsdp_version=2", "--fsdp_offload_params=true"),
    "one": ("--num_processes=1", "--cpu"),
}


@pytest.mark.parametrize("launcher", FOUND)
def test_a_script_finds_what_its_launcher_sets(launched: Launched, launcher: str) -> None:
    result = launched(SCRIPT, "--lr=0.1", before=("--launcher", launcher, "--nnodes=2", "--nproc-per-node=2"))

    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.splitlines()) == FOUND[launcher]


SPAWNS = """
import os, sys
import torch.distributed as dist, torch.multiprocessing as mp

def main(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=3)
    found = [None] * 3
    dist.all_gather_object(found, sorted(name for name in os.environ if name.endswith("RANK") or "PORT" in name))
    sys.stdout.write(f"{found}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, nprocs=3)
"""


def test_a_script_that_starts_its_ranks_finds_no_launcher(launched: Launched) -> None:
    result = launched(SPAWNS, before=("--launcher", "python"))
    too_many = launched(SPAWNS, before=("--launcher", "python", "--nproc-per-node=3"))

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["[[], [], []]"] * 3
    assert too_many.exit_code == 2
    assert "the script starts the ranks; leave --nnodes and --nproc-per-node out" in too_many.stderr


def test_ranks_that_a_script_starts_are_said_not_to_be_judged(launched: Launched) -> None:
    spawned = launched(SPAWNS, before=("--launcher", "python", "--judge"))
    alone = launched("print(1)", before=("--launcher", "python", "--judge"))

    note = "simdist: --judge watches the ranks that a launcher starts, not processes that the script starts itself"
    assert spawned.exit_code == 0, spawned.output
    assert note in spawned.stderr
    assert note not in launched(SPAWNS, before=("--launcher", "python")).stderr
    assert note not in alone.stderr


@pytest.mark.parametrize("launcher", ["python", "mpirun", "srun"])
def test_variables_that_a_launcher_does_not_set_are_those_of_the_shell(
    launcher: str, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "29400")
    monkeypatch.delenv("MASTER_ADDR", raising=False)

    result = launched(
        "import os; print(os.environ['MASTER_PORT'], 'MASTER_ADDR' in os.environ)", before=("--launcher", launcher)
    )

    assert (result.exit_code, result.stdout) == (0, "29400 False\n"), result.output


def test_the_words_of_accelerate_launch_are_its_own(launched: Launched) -> None:
    pytest.importorskip("accelerate")

    result = launched(ENVIRONMENT, before=("--launcher", "accelerate", *OF_ACCELERATE["fsdp"], "--seed=3"))

    assert result.exit_code == 0, result.output
    first, second = map(eval, result.stdout.splitlines())
    reported = ("ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_OFFLOAD_PARAMS", "WORLD_SIZE")
    assert [first[name] for name in reported] == ["true", "2", "true", "2"]
    assert {name for name in first if first[name] != second[name]} == {"RANK", "LOCAL_RANK", "ROLE_RANK"}


def test_what_a_launcher_does_not_do_is_reported(launched: Launched) -> None:
    pytest.importorskip("accelerate")

    late = launched(SCRIPT, before=("--max-restarts=1", "--launcher=accelerate"))
    late_with_options = launched(SCRIPT, before=("--max-restarts=1", "--launcher=accelerate", "--num_processes=2"))
    restarts = launched(SCRIPT, before=("--launcher=mpirun", "--max-restarts=1"))
    none = launched(SCRIPT, before=("--launcher=accelerate", "--num_machines=1"))

    assert [each.exit_code for each in (late, late_with_options, restarts, none)] == [2, 2, 2, 2]
    for each in (late, late_with_options):
        assert "--launcher accelerate: has to stand first, for accelerate's own options follow it" in each.stderr
    assert "--max-restarts: mpirun does not restart workers; leave it out" in restarts.stderr
    assert "--num_processes: how many? this machine has no GPUs to count; or give --devices N" in none.stderr


@pytest.mark.real
@pytest.mark.parametrize("case", OF_ACCELERATE)
def test_accelerate_launch_sets_that(launched: Launched, case: str) -> None:
    pytest.importorskip("accelerate")
    simulated = launched(ENVIRONMENT, before=("--launcher=accelerate", *OF_ACCELERATE[case]))

    real = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *OF_ACCELERATE[case], "script.py"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )

    assert sorted(simulated.stdout.splitlines()) == sorted(real.stdout.splitlines())


@pytest.mark.real
def test_torch_distributed_launch_passes_that(launched: Launched) -> None:
    words = ("--nproc-per-node=2",)
    simulated = launched(SCRIPT, "--lr=1", before=("--launcher=torch.distributed.launch", *words))

    real = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.launch", *words, "script.py", "--lr=1"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )

    assert sorted(simulated.stdout.splitlines()) == sorted(real.stdout.splitlines())
