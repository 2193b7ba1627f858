from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main

SCENARIOS = Path(__file__).parents[2] / "scenarios"

JOB = """
import os
import sys
import time

import torch
import torch.distributed as dist


def total(value=1.0):
    dist.init_process_group("gloo")
    tensor = torch.full((4,), value)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return {"total": tensor[0].item()}


def fails(rank=1):
    time.sleep(0.003)
    if int(os.environ["RANK"]) == rank:
        print("about to fail", file=sys.stderr)
        raise ValueError("bad batch [7]")
    print("fine")


def draws_from_the_hash():
    time.sleep(hash("a") % 1000 / 1e6)


def touches(folder):
    open(os.path.join(folder, "out.txt"), "w").close()
    return sorted(os.listdir(folder))


def begins_weeks_on_sunday():
    import calendar

    calendar.setfirstweekday(6)


def asks_a_program():
    return os.system("echo hello")
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a scenario of two ranks for a function of the module above; returns the file's path."""
    (tmp_path / "job.py").write_text(JOB)

    def job(function: str, text: str = "", *, workload: str = "", name: str = "file.toml") -> str:
        path = tmp_path / name
        path.write_text(
            f'title = "a test"\nworld_size = 2\n[workload]\ntarget = "job:{function}"\n{workload}\n{text}\n'
        )
        return str(path)

    return job


@pytest.fixture
def simdist(no_looks: None) -> Callable[..., Result]:
    """A function that calls the command line in this process."""
    return lambda *words: CliRunner().invoke(main, [str(word) for word in words])
