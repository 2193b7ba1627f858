"""The workloads of scenarios that run an entry's buggy program."""

from __future__ import annotations

import os
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import simdist

__all__ = ["main", "resumed", "trained"]


def main(name: str, folder: str) -> Any:
    """Run the buggy program of that name, with an empty folder that all ranks share."""
    from tests.corpus._runs import ranks_of

    os.environ["CORPUS_FOLDER"] = folder
    return ranks_of(_entry(name), buggy=True)()


def trained(name: str) -> Any:
    """Run the buggy training of that name, in the entry's first layout for this number of ranks, or on one rank."""
    entry = _entry(name)
    dist.init_process_group("gloo")
    layouts = [simdist.Layout(), *map(simdist.Layout.of, entry.layouts)]
    value = entry.program(next(each for each in layouts if each.world_size == dist.get_world_size()), True)
    dist.destroy_process_group()
    return value


def resumed(name: str, folder: str) -> dict[str, int]:
    """Run the buggy training of that name, with its checkpoints in a folder; returns a checksum of its parameters."""
    last = {"parameters": 0}

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        last["parameters"] = zlib.crc32(repr([each.tolist() for each in parameters]).encode())

    handle = register_optimizer_step_post_hook(after)
    try:
        dist.init_process_group("gloo")
        _entry(name).program(folder, True)
        dist.destroy_process_group()
    finally:
        handle.remove()
    return last


def _entry(name: str) -> Any:
    from tests.corpus import ENTRIES

    return next(entry for entry in ENTRIES if entry.name == name)
