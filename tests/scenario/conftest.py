from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., str]

WORKLOAD = """
def work(rounds=1, label=""):
    return rounds

constant = 3
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a scenario file next to a small workload, `job:work`, and returns its path."""
    (tmp_path / "job.py").write_text(WORKLOAD)

    def write(text: str, *, workload: str = '[workload]\ntarget = "job:work"\n', name: str = "file.toml") -> str:
        path = tmp_path / name
        path.write_text(f"{text}\n{workload}")
        return str(path)

    return write
