"""`simdist patches`: every name that a world replaces, by what, and why."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import click
import torch
import torch.distributed as dist
from rich.text import Text

from simdist import run
from simdist.cli._console import page, say
from simdist.cli._table import plain_table
from simdist.errors import UnsupportedError
from simdist.process import Patched, patched_now

__all__ = ["print_patches", "replaced"]

_HOW = {
    "name": "the name refers to something else",
    "function": "the function itself does something else, however a program imported it",
    "method": "a method of a type that only C code can change",
    "added": "the owner has no such name outside worlds",
}


def replaced() -> tuple[list[Patched], list[Patched]]:
    """What every world replaces, and what worlds with virtual devices replace besides; empty where there are none."""
    plain = _seen_by_a_rank(_over_gloo, "gloo")
    try:
        devices = _seen_by_a_rank(_over_nccl, "nccl")
    except UnsupportedError:
        return plain, []
    known = {(each.owner, each.name) for each in plain}
    return plain, [each for each in devices if (each.owner, each.name) not in known]


def print_patches(name: str | None, *, as_json: bool) -> int:
    """Print all of them, or those that have `name` in their dotted names; 1 if none has."""
    plain, devices = replaced()
    rows = [(each, "every world") for each in plain] + [(each, "with devices") for each in devices]
    wanted = [(each, where) for each, where in rows if name is None or name in f"{each.owner}.{each.name}"]
    if as_json:
        click.echo(json.dumps([{**dataclasses.asdict(each), "where": where} for each, where in wanted], indent=2))
    elif wanted:
        _print(wanted)
    if not wanted:
        shorter = (name or "").rpartition(".")[0]
        hint = f"; a function may call one that is replaced, try {shorter!r}" if shorter else ""
        say(f"no world replaces a name that contains {name!r}{hint}", err=True)
    return 0 if wanted else 1


def _print(rows: list[tuple[Patched, str]]) -> None:
    table = plain_table("name", "how", "in", "by")
    table.columns[0].min_width = max(len(f"{each.owner}.{each.name}") for each, _ in rows)  # whole, for grep
    for each, where in rows:
        table.add_row(Text(f"{each.owner}.{each.name}"), each.how, where, Text(each.by))
    with page() as out:
        out.print(table, crop=False)
        out.print()
        for how, meaning in _HOW.items():
            if any(each.how == how for each, _ in rows):
                out.print(f"{how:<9} {meaning}")
        if len({each.by for each, _ in rows}) <= 3:
            out.print()
            for by, why in dict.fromkeys((each.by, each.why) for each, _ in rows):
                out.print(Text(f"{by}: {why}."))


def _seen_by_a_rank(body: Callable[[], list[Patched]], backend: str) -> list[Patched]:
    result: Any = run(body, world_size=2, backend=backend)
    result.raise_for_failure()
    found: list[Patched] = result.values[0]
    return found


def _over_gloo() -> list[Patched]:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    return patched_now()


def _over_nccl() -> list[Patched]:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    return patched_now()
