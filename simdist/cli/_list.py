"""`simdist list`: one line for each scenario of a folder."""

from __future__ import annotations

import os
from pathlib import Path

from simdist.cli._console import page, say
from simdist.cli._outputs import shown_path
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.scenario import load

__all__ = ["list_folder"]


def list_folder(folder: Path) -> int:
    """Print the table of the scenarios in `folder`; return 2 if the folder is missing or a file is broken."""
    try:
        found = "\0" not in str(folder) and folder.is_dir()
    except OSError:  # a name that is too long
        found = False
    if not found:
        say(f"{shown_path(str(folder))}: {'not a folder' if os.path.lexists(folder) else 'no such folder'}", err=True)
        return 2
    files = sorted(folder.glob("*.toml"))
    if not files:
        say(f"no scenario files (*.toml) in {folder}")
        return 0
    broken = False
    table = plain_table("name", "ranks", "backend", "faults", "title", right=("ranks", "faults"))
    for file in files:
        try:
            if file.is_fifo():  # reading it would block
                raise ScenarioError(str(file), ["is no file, but a pipe"])
            plan = load(str(file), import_target=False)
        except ScenarioError as error:
            broken = True
            table.add_row(file.stem, "-", "-", "-", "\n".join(["broken:", *error.problems]))
        else:
            table.add_row(plan.name, str(plan.world_size), plan.backend, str(len(plan.faults)), plan.title)
    with page() as out:
        out.print(table)
    return 2 if broken else 0
