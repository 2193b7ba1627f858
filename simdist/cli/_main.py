"""The commands and their options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import click

from simdist.errors import SimdistError

__all__ = ["main"]


class _Commands(click.Group):
    """Turns what simdist raises about its input into one message and an exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except SimdistError as error:
            from simdist.errors import InternalError, StallError

            click.echo(str(error), err=True)
            context.exit(1 if isinstance(error, InternalError | StallError) else 2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="simdist", message="%(prog)s %(version)s")
def main() -> None:
    """Run torch.distributed programs in one process, in virtual time, with injected faults.

    Exit codes: 0 every expectation holds, 1 one fails, 2 bad input.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the terminal lacks must not end a run
            stream.reconfigure(errors="replace")


@main.command()
@click.argument("file")
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the seed in the file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option("--json", "json_path", type=click.Path(), metavar="OUT", help="Write the result as JSON.")
@click.option("--trace", "trace_path", type=click.Path(), metavar="OUT", help="Write a Chrome trace, for Perfetto.")
@click.option("--events", "events_path", type=click.Path(), hidden=True, help="Write each event as a line of JSON.")
@click.option("--check-determinism", is_flag=True, help="Repeat in a fresh process and compare event for event.")
@click.option("--strict", is_flag=True, help="Refuse what the backend accepts in silence, hangs on or dies of.")
@click.option("--show-output", is_flag=True, help="Print what the ranks print, with rank and virtual time.")
@click.pass_context
def run(
    context: click.Context,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    json_path: str | None,
    trace_path: str | None,
    events_path: str | None,
    check_determinism: bool,
    strict: bool,
    show_output: bool,
) -> None:
    """Run the scenario in FILE and judge it by its expectations.

    A KEY is dotted and a VALUE is TOML, plain words are text: --set world_size=3 --set workload.kwargs.epochs=1
    --set faults[0].rank=1
    """
    from simdist.cli._run import Outputs, run_file

    if strict:
        overrides = (*overrides, "strict=true")
    outputs = Outputs(json=json_path, trace=trace_path, events=events_path)
    context.exit(run_file(file, seed, overrides, outputs, repeat=check_determinism, show_output=show_output))


@main.command(name="list")
@click.argument("folder", default="scenarios", metavar="[DIR]")
@click.pass_context
def list_command(context: click.Context, folder: str) -> None:
    """List the scenarios in DIR (default: scenarios). Workloads are not imported; `validate` does that."""
    from simdist.cli._list import list_folder

    context.exit(list_folder(Path(folder)))


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def validate(context: click.Context, files: tuple[str, ...]) -> None:
    """Check each FILE, its workload included, without running it."""
    from simdist.errors import ScenarioError
    from simdist.scenario import load

    failed = False
    for file in files:
        try:
            load(file)
        except ScenarioError as error:
            failed = True
            click.echo(str(error), err=True)
        else:
            click.echo(f"{file}: ok")
    context.exit(2 if failed else 0)
