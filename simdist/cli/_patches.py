"""`simdist patches`: every name that a world replaces, its replacement, and the reason."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import select
import sys
import tempfile
import warnings
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
from simdist.process import Patched, adapted_modules, patched_now
from simdist.storage import Mount

__all__ = ["print_patches", "replaced"]

_HOW = {
    "name": "the name refers to something else",
    "function": "the function itself does something else, however a program imported it",
    "method": "a method of a type that only C code can change",
    "added": "the owner has no such name outside worlds",
}


def replaced() -> dict[str, list[Patched]]:
    """Return the names replaced in every world, and further ones by feature; those of devices only if available.

    Names in libraries other than Python's own and torch, which are changed where a program imports them, are omitted.
    """
    found = {"every world": _seen_by_a_rank(_over_gloo)}
    known = {(each.owner, each.name) for each in found["every world"]}

    def besides(where: str, rows: list[Patched]) -> None:
        found[where] = [each for each in rows if (each.owner, each.name) not in known]
        known.update((each.owner, each.name) for each in rows)

    with tempfile.TemporaryDirectory() as folder:
        besides("with a disk", _seen_by_a_rank(_over_gloo, disk=Mount(folder=folder)))
    besides("with judges", _seen_by_a_rank(_over_gloo, judges=True))
    besides("where used", _seen_by_a_rank(_after_much_use))
    with contextlib.suppress(UnsupportedError):
        besides("with devices", _seen_by_a_rank(_over_nccl, backend="nccl"))
    return found


def print_patches(name: str | None, *, as_json: bool) -> int:
    """Print all names, or those that contain `name`; return 1 if none does."""
    rows = [(each, where) for where, found in replaced().items() for each in found]
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


def _seen_by_a_rank(body: Callable[[], list[Patched]], **settings: Any) -> list[Patched]:
    result: Any = run(body, world_size=2, **settings)
    result.raise_for_failure()
    found: list[Patched] = result.values[0]
    return found


def _over_gloo() -> list[Patched]:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    return patched_now()


def _after_much_use() -> list[Patched]:
    """Return names changed after some use by a program: in imported modules, in children, for pipes, in `select`."""
    with warnings.catch_warnings(action="ignore"):  # about deprecated parts of the modules
        for name in adapted_modules():
            if name.partition(".")[0] in (*sys.stdlib_module_names, "torch"):
                with contextlib.suppress(ImportError):  # it needs a package that is not installed
                    importlib.import_module(name)
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=theirs.send, args=("",))
    child.start()
    mine.recv()
    child.join()
    select.select([], [], [], 0)
    return _over_gloo()


def _over_nccl() -> list[Patched]:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    return patched_now()
