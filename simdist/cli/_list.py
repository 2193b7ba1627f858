"""`simdist list`: one line for each scenario of a folder."""

from __future__ import annotations

from pathlib import Path

import click

from simdist.cli._console import page
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.scenario import load

__all__ = ["list_folder"]


def list_folder(folder: Path) -> int:
    """Print the table of the scenarios in `folder`; 2 if the folder is missing or a file is broken."""
    if not folder.is_dir():
        click.echo(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}", err=True)
        return 2
    files = sorted(folder.glob("*.toml"))
    if not files:
        click.echo(f"no scenario files (*.toml) in {folder}")
        return 0
    broken = False
    table = plain_table("name", "ranks", "backend", "faults", "title", right=("ranks", "faults"))
    for file in files:
        try:
            plan = load(str(file), import_target=False)
        except ScenarioError as error:
            broken = True
            table.add_row(file.stem, "-", "-", "-", "\n".join(["broken:", *error.problems]))
        else:
            table.add_row(plan.name, str(plan.world_size), plan.backend, str(len(plan.faults)), plan.title)
    with page() as out:
        out.print(table)
    return 2 if broken else 0
