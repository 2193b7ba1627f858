"""A script that fails twice and then succeeds: its workers see and leave the same in each life as under torchrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Launched = Callable[..., Result]

FAILS_TWICE = """
import os, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main(folder):
    life, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    names = sorted(name for name in os.environ if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_", "LOCAL_")))
    names += ["WORLD_SIZE", "OMP_NUM_THREADS"]
    names.remove("TORCHELASTIC_RUN_ID")  # a random one
    names.remove("TORCHELASTIC_USE_AGENT_STORE")
    for name in names:
        print(name, os.path.basename(os.environ[name]) if name.endswith("_FILE") else os.environ[name])
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("life", life, "of", rank, total.item(), flush=True)
    open(os.path.join(folder, f"seen-{life}-{rank}"), "w").close()
    dist.barrier()
    if life < 2 and life == 1 - rank:
        time.sleep(1)  # the other one is out of the barrier, too
    if life == 0 and rank == 1:
        raise ValueError("the first time")
    if life == 1 and rank == 0:
        print("leaves", file=sys.stderr, flush=True)
        sys.exit(5)
    if life < 2:
        time.sleep(60)  # until it is stopped
    dist.destroy_process_group()
    print("done", flush=True)

main(sys.argv[1])
"""
WORDS = ("--nproc-per-node=2", "--max-restarts=2", "--rdzv-id=job", "--log-dir=logs", "--redirects=3", "--tee=0:1")


def found_in(folder: Path) -> dict[str, Any]:
    """Return by path below the run's folder the workers' output and the report of the last one that failed."""
    (run,) = (folder / "logs").iterdir()
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        if path.suffix == ".json":
            reported = json.loads(path.read_text())["message"]
            trace = reported["extraInfo"].pop("py_callstack")
            reported["extraInfo"].pop("timestamp")
            found[str(path.relative_to(run))] = reported, trace.splitlines()[-1]
        elif path.is_file():
            text = path.read_text().splitlines()
            found[str(path.relative_to(run))] = [line for line in text if not re.search(r"Gloo|W\d{4}|\[rank", line)]
    return found


def seen_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("seen-*"))


def test_a_job_that_fails_twice_has_three_lives(launched: Launched, tmp_path: Path) -> None:
    result = launched(FAILS_TWICE, str(tmp_path), before=WORDS)

    assert result.exit_code == 0, result.output
    assert seen_in(tmp_path) == [f"seen-{life}-{rank}" for life in range(3) for rank in range(2)]
    assert [line for line in result.stderr.splitlines() if "restarted" in line] == [
        "simdist: rank 1 ended with exit code 1 at 1.000450002 s; all ranks were restarted at 2.1 s",
        "simdist: rank 0 ended with exit code 5 at 3.100450002 s; all ranks were restarted at 4.2 s",
    ]
    found = found_in(tmp_path)
    for life in range(3):
        assert f"TORCHELASTIC_RESTART_COUNT {life}" in found[f"attempt_{life}/1/stdout.log"]
        assert f"life {life} of 0 2.0" in found[f"attempt_{life}/0/stdout.log"]
    assert found["attempt_0/1/error.json"][1] == "ValueError: the first time"


@pytest.mark.real
def test_torchrun_does_that(launched: Launched, tmp_path: Path) -> None:
    simulated = launched(FAILS_TWICE, str(tmp_path), before=WORDS)
    folder = tmp_path / "real"
    folder.mkdir()

    real = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *WORDS, "../script.py", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        # By default torch 2.13 keeps one store for all lives, where workers may find the addresses of the life before,
        # and fail again.
        env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        cwd=folder,
    )

    assert (simulated.exit_code, real.returncode) == (0, 0), real.stderr
    assert seen_in(tmp_path) == seen_in(folder)
    assert sorted(simulated.stdout.splitlines()) == sorted(real.stdout.splitlines())
    assert found_in(tmp_path) == found_in(folder)
