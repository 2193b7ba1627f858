"""A scenario has the same digest wherever its folder is."""

from __future__ import annotations

from pathlib import Path

from simdist.scenario import load, run_scenario

FILE = """
title = "It raises, and warns"
world_size = 2
[workload]
target = "work:train"
[expect]
outcomes = "raised"
"""
WORK = """
import warnings
import torch.distributed as dist

def train():
    dist.init_process_group("gloo")
    warnings.warn("slow", stacklevel=1)
    dist.all_gather_object([None], object())
"""


def test_the_digest_does_not_depend_on_the_folder_of_the_program(tmp_path: Path) -> None:
    digests = []
    for name in ("here", "a/longer/way"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "work.py").write_text(WORK)
        (folder / "file.toml").write_text(FILE)
        report = run_scenario(load(str(folder / "file.toml")))
        assert report.result is not None
        assert str(folder / "work.py") in report.result.ranks[0].stderr  # the error shows the folder
        digests.append(report.result.digest)

    assert digests[0] == digests[1]
