"""Commands that show traces, scenarios, pages, and facts about this machine."""

from __future__ import annotations

from pathlib import Path

import click

from simdist.cli._console import say
from simdist.cli._nodes import (
    Count,
)
from simdist.cli._outputs import shown_path

__all__ = ["build_devices", "docs", "doctor", "list_command", "patches", "show", "validate"]


@click.command()
@click.argument("trace")
@click.option("--rank", "ranks", multiple=True, metavar="RANKS", help="Only these, as 3 or 0-2; may repeat.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only operations of this group; may repeat.")
@click.option("--from", "from_time", metavar="TIME", help="From this virtual time on: 3ms, 1.5s, 30min.")
@click.option("--to", "to_time", metavar="TIME", help="Up to this virtual time.")
@click.option("--timeline", "timeline_path", metavar="OUT", help="Draw it, as SVG or PNG.")
@click.option("--graph", "graph_path", metavar="OUT", help="Draw who waits for whom, as SVG or PNG.")
@click.option(
    "--at",
    "at_time",
    metavar="TIME",
    help="With --graph: the virtual time; default: the deadlock, or the first failure.",
)
@click.option("--lines", type=Count(), default=100, show_default=True, help="At most so many; 0: all.")
@click.pass_context
def show(
    context: click.Context,
    trace: str,
    ranks: tuple[str, ...],
    groups: tuple[str, ...],
    from_time: str | None,
    to_time: str | None,
    timeline_path: str | None,
    graph_path: str | None,
    at_time: str | None,
    lines: int,
) -> None:
    """Show what happened in TRACE, which `run --trace` or `run --events` has written."""
    from simdist.cli._show import show_file

    context.exit(show_file(trace, ranks, groups, (from_time, to_time), (timeline_path, graph_path, at_time), lines))


@click.command(name="build-devices")
@click.option("--again", is_flag=True, help="Rebuild even if they are built.")
@click.pass_context
def build_devices(context: click.Context, *, again: bool) -> None:
    """Build the kernels of virtual CUDA devices in C++, with g++: several times as fast as those in Python.

    They are kept in the user's cache folder, per version of torch, and taken by themselves when they are there.
    SIMDIST_DEVICE_KERNELS=python in the environment turns them off.
    """
    from simdist.cli._build_devices import build

    context.exit(build(again=again))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def doctor(context: click.Context, *, as_json: bool) -> None:
    """Report what works with this Python, this torch and this machine, and what turns on the rest.

    It runs a world of two ranks. Exit codes: 0 the world works, 1 it fails, 2 bad input. A bug report begins with it.
    """
    from simdist.cli._doctor import examine

    context.exit(examine(as_json=as_json))


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, each with the reason.")
@click.pass_context
def patches(context: click.Context, name: str | None, *, as_json: bool) -> None:
    """List the names of Python, torch and other libraries that a world replaces; with NAME those that contain it.

    It runs worlds of two ranks: a plain one, others with a disk, with judges and with virtual devices where there are
    some, and one that uses modules which are changed only then. Libraries besides torch that a program imports, and
    that are changed there, are not listed. All names are put back when a world ends. Exit codes: 0 there are some, 1
    none contains NAME, 2 bad input.
    """
    from simdist.cli._patches import print_patches

    context.exit(print_patches(name, as_json=as_json))


@click.command()
@click.argument("topic", nargs=-1, metavar="[TOPIC]")
@click.option("--search", "words", metavar="WORDS", help="Find the lines of all pages that have these words.")
@click.option("--plain", is_flag=True, help="Print the page as it is written, in Markdown.")
@click.pass_context
def docs(context: click.Context, topic: tuple[str, ...], words: str | None, *, plain: bool) -> None:
    """Read the documentation: list all pages, or show the page TOPIC.

    A TOPIC is the name of a page or its beginning. Words that name no page are searched for.
    """
    from simdist.cli._docs import read

    context.exit(read(topic, words, plain=plain))


@click.command(name="list")
@click.argument("folder", default="scenarios", metavar="[DIR]")
@click.pass_context
def list_command(context: click.Context, folder: str) -> None:
    """List the scenarios in DIR (default: scenarios). Workloads are not imported; `validate` does that."""
    from simdist.cli._list import list_folder

    context.exit(list_folder(Path(folder)))


@click.command()
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
            say(str(error), err=True)
        else:
            say(f"{shown_path(file)}: ok")
    context.exit(2 if failed else 0)
