"""The commands and their options."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import click

from simdist.cli._console import say
from simdist.cli._interrupts import interruption
from simdist.cli._nodes import (
    Count,
    Ranks,
    given_node_options,
    node_options,
    options_given,
    real_options,
    report_options,
    worker_options,
)
from simdist.cli._outputs import shown_path
from simdist.errors import SimdistError
from simdist.values import plain

__all__ = ["main"]


class _Commands(click.Group):
    """Turns what simdist raises about its input into one message and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as error:
            error.message = plain(error.message)  # type: ignore[misc]  # final in type only
            raise

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.ClickException as error:
            error.message = plain(error.message)  # type: ignore[misc]  # final in type only
            raise
        except SimdistError as error:
            from simdist.errors import InternalError, StallError

            say(str(error), err=True)
            context.exit(1 if isinstance(error, InternalError | StallError) else 2)
        except KeyboardInterrupt as error:
            word, code = interruption(error)
            click.echo(word, err=True)
            context.exit(code)


class _Judging(click.Command):
    """A command with `--judge`, which needs no name."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if "--judge" in args:
            from simdist.judges import with_names

            args = with_names(args)
        return super().parse_args(context, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="simdist", message="%(prog)s %(version)s")
def main() -> None:
    """Run torch.distributed programs in one process, in virtual time, with injected faults.

    Exit codes: 0 every expectation holds, 1 one fails, 2 bad input, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the terminal lacks must not end a run
            stream.reconfigure(errors="replace")


_OF_MANY_RUNS = ("workers", "scheduler", "junit", "until_failure")
_OF_ONE_RUN = (
    "trace_path",
    "events_path",
    "timeline_path",
    "graph_path",
    "streams_path",
    "flight_recorder",
    "check_determinism",
    "show_output",
    "real",
    "nccl_wait",
)


@main.command(cls=_Judging)
@click.argument("file")
@click.option("--seed", type=Count(most=2**64 - 1), help="Instead of the seed in the file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option("--seeds", type=Count(least=1), metavar="N", help="N runs, with seeds from --seed on, or from 0.")
@click.option("--until-failure", is_flag=True, help="With --seeds: stop at the first run that fails.")
@worker_options
@report_options
@click.option("--trace", "trace_path", metavar="OUT", help="Write a Chrome trace, for Perfetto.")
@click.option("--events", "events_path", hidden=True, help="Write each event as a line of JSON.")
@click.option("--timeline", "timeline_path", metavar="OUT", help="Draw the run, as SVG or PNG.")
@click.option("--graph", "graph_path", metavar="OUT", help="Draw who waits for whom, as SVG or PNG.")
@click.option("--streams", "streams_path", metavar="OUT", help="Draw the streams of virtual devices, as SVG or PNG.")
@click.option(
    "--flight-recorder",
    "flight_recorder",
    metavar="DIR",
    help="Write Flight Recorder dumps, for torchfrtrace.",
)
@click.option("--check-determinism", is_flag=True, help="Repeat in a fresh process and compare event for event.")
@click.option(
    "--strict", is_flag=True, help="Raise an error for calls that the backend accepts in silence, hangs on or dies of."
)
@click.option(
    "--judge",
    "judges",
    multiple=True,
    metavar="[NAME]",
    help="Report what does not hold although nothing fails: all judges, or the one of this name; may repeat.",
)
@click.option("--show-output", is_flag=True, help="Print what the ranks print, with rank and virtual time.")
@click.option("--real", type=click.Choice(["gloo", "nccl"]), help="Run it as real processes, over this backend.")
@node_options
@click.option(
    "--nccl-wait", type=click.Choice(["async", "blocking"]), default="async", help="With --real nccl: how waits fail."
)
@click.pass_context
def run(
    context: click.Context,
    /,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    seeds: int | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    trace_path: str | None,
    events_path: str | None,
    timeline_path: str | None,
    graph_path: str | None,
    streams_path: str | None,
    flight_recorder: str | None,
    check_determinism: bool,
    strict: bool,
    judges: tuple[str, ...],
    show_output: bool,
    real: str | None,
    nccl_wait: str,
    until_failure: bool,
    **node: Any,
) -> None:
    """Run the scenario in FILE and judge it by its expectations; with --seeds N many times, over all cores.

    A KEY is dotted and a VALUE is TOML, plain words are text: --set world_size=3 --set workload.kwargs.epochs=1
    --set faults[0].rank=1
    """
    from simdist.cli._run import Outputs, run_file, run_seeds

    if seeds is None and (given := options_given(context, _OF_MANY_RUNS)):
        raise click.UsageError(f"{', '.join(given)}: for many runs; add --seeds N")
    if seeds is not None and (given := [*options_given(context, _OF_ONE_RUN), *given_node_options(context)]):
        raise click.UsageError(f"{', '.join(given)}: for one run; leave out --seeds")
    if strict:
        overrides = (*overrides, "strict=true")
    if judges:
        from simdist.judges import judges_named

        try:
            chosen = judges_named(judges)
        except ValueError as error:
            raise click.UsageError(f"--judge: {error}") from None
        overrides = (*overrides, f"judges={json.dumps(chosen)}")
    if seeds is not None:
        span = range(seed or 0, (seed or 0) + seeds)
        reports = {"json_path": json_path, "junit": junit}
        context.exit(run_seeds(file, span, overrides, workers=workers, until_failure=until_failure, **reports))
    outputs = Outputs(
        json=json_path,
        trace=trace_path,
        events=events_path,
        timeline=timeline_path,
        graph=graph_path,
        streams=streams_path,
        flight_recorder=flight_recorder,
    )
    if real != "nccl" and context.get_parameter_source("nccl_wait") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--nccl-wait: it is about NCCL; add --real nccl")
    if real is not None:
        from simdist.cli._real import run_real_file

        simulated = {
            "--check-determinism": check_determinism,
            "--strict": strict,
            "--judge": judges,
            "--streams": streams_path,
        }
        refused = [name for name, given in simulated.items() if given]
        if refused:
            raise click.UsageError(f"{' and '.join(refused)}: a real run has none of that; leave out --real")
        options = real_options(real, node, nccl_wait)
        context.exit(run_real_file(file, seed, overrides, outputs, options, show_output=show_output))
    if given := given_node_options(context):
        raise click.UsageError(f"{', '.join(given)}: for real runs only; add --real gloo or --real nccl")
    context.exit(run_file(file, seed, overrides, outputs, repeat=check_determinism, show_output=show_output))


@main.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False, name="launch"
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Run a script on simulated ranks, by torchrun's command line: launch --nproc-per-node 4 train.py --lr 0.1"""
    from simdist.cli._launch import launch_words

    context.exit(launch_words(words))


@main.command()
@click.argument("file")
@click.option("--seed", type=Count(most=2**64 - 1), help="Instead of the seed in the file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option(
    "--strike",
    "strikes",
    type=click.Choice(["rank", "host", "all", "swap", "lost", "sigterm", "hang"]),
    multiple=True,
    help="A rank dies, its host or all hosts lose power, hosts swap local disks, a host is lost, a rank gets SIGTERM "
    "or hangs; may repeat.",
)
@click.option(
    "--outcomes", type=Count(least=1), default=4, show_default=True, help="States of the disk for each loss of power."
)
@click.option("--limit", type=Count(least=1), help="At most so many crashes, spread over the run.")
@click.option("--second-crash", is_flag=True, help="Crash it a second time, during the recovery.")
@click.option(
    "--no-merge", is_flag=True, help="Run every crash to its end, even if its restart equals one already run."
)
@click.option("--keep", metavar="FILE", help="Keep what is found there; after Ctrl-C the same command goes on.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario, a pytest test and a picture there.")
@click.pass_context
def sweep(
    context: click.Context,
    /,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    strikes: tuple[Any, ...],
    outcomes: int,
    limit: int | None,
    second_crash: bool,
    no_merge: bool,
    keep: str | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
) -> None:
    """Crash the scenario in FILE at every moment, start it again each time, and report where it does not recover.

    It needs a [disk], and is judged by its own expectations. Faults in the file are ignored.
    """
    from simdist.cli._sweep import sweep_file
    from simdist.sweeps import Tries

    tries = Tries(
        strikes=strikes or None, outcomes=outcomes, limit=limit, second_crash=second_crash, merge=not no_merge
    )
    code = sweep_file(
        file, seed, overrides, tries, keep=keep, workers=workers, json_path=json_path, junit=junit, write=write
    )
    context.exit(code)


@main.command()
@click.argument("file")
@click.option("--seed", type=Count(most=2**64 - 1), help="Instead of the seed in the file.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option("--runs", type=Count(least=1), default=200, show_default=True, help="How many schedules are tried.")
@click.option("--schedules", type=Count(most=2**63), default=0, show_default=True, help="The seed of the schedules.")
@click.option("--systematic", is_flag=True, help="Draw none: try every order that can differ, in --runs at most.")
@click.option("--one-outcome", is_flag=True, help="Fail if what ranks return depends on the schedule.")
@click.option("--until-found", is_flag=True, help="Stop at the first failure.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario and a pytest test there.")
@click.pass_context
def explore(
    context: click.Context,
    /,
    file: str,
    seed: int | None,
    overrides: tuple[str, ...],
    runs: int,
    schedules: int,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
    *,
    systematic: bool,
    one_outcome: bool,
    until_found: bool,
) -> None:
    """Run the scenario in FILE under many schedules, and report those under which it fails.

    All judges look on unless the file names some. Exit codes: 0 nothing found, 1 found, 2 bad input.
    """
    from simdist.cli._explore import explore_file

    code = explore_file(
        file,
        seed,
        overrides,
        json_path=json_path,
        junit=junit,
        workers=workers,
        runs=runs,
        schedules=schedules,
        systematic=systematic,
        one_outcome=one_outcome,
        until_found=until_found,
        write=write,
    )
    context.exit(code)


@main.command()
@click.argument("file")
@click.option("--seed", type=Count(most=2**63), default=0, show_default=True, help="The seed of the plans.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="In place of what the file says; may repeat."
)
@click.option("--runs", type=Count(least=1), help="How many plans; default: 200, or as many as there is time for.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="For how long, in real time.")
@click.option("--budget", type=Count(least=1), default=1, show_default=True, help="Ranks that one run may strike.")
@click.option("--family", "families", multiple=True, metavar="NAME", help="Only faults of this family; may repeat.")
@click.option(
    "--spare", type=Ranks(), multiple=True, metavar="RANKS", help="No run strikes all of these: 0,2; may repeat."
)
@click.option("--database", metavar="DIR", help="Keep what is found there, and try it first the next time.")
@click.option("--no-shrink", is_flag=True, help="Report what is found as it was drawn.")
@worker_options
@report_options
@click.option("--write", metavar="FOLDER", help="Write for each failure a scenario and a pytest test there.")
@click.pass_context
def fuzz(
    context: click.Context,
    /,
    file: str,
    seed: int,
    overrides: tuple[str, ...],
    runs: int | None,
    minutes: float | None,
    budget: int,
    families: tuple[str, ...],
    spare: tuple[tuple[int, ...], ...],
    database: str | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None,
    write: str | None,
    *,
    no_shrink: bool,
) -> None:
    """Run the scenario in FILE under random faults, and report the failures that no fault explains.

    Faults in the file are ignored. All judges look on unless the file names some. Exit codes: 0 nothing found, 1 found,
    2 bad input.
    """
    from simdist.cli._fuzz import fuzz_file
    from simdist.searches import Tries

    tries = Tries(
        runs=200 if runs is None and minutes is None else runs,
        seed=seed,
        budget=budget,
        families=families or None,
        spare=spare,
        shrink=not no_shrink,
    )
    code = fuzz_file(
        file,
        overrides,
        tries,
        minutes=minutes,
        database=database,
        json_path=json_path,
        junit=junit,
        workers=workers,
        write=write,
    )
    context.exit(code)


@main.command()
@click.argument("token")
@click.option("--file", metavar="FILE", help="The scenario, if it is elsewhere by now.")
@click.pass_context
def replay(context: click.Context, token: str, file: str | None) -> None:
    """Repeat the failing run that TOKEN stands for; `simdist fuzz` prints tokens.

    Exit codes: 0 it does not fail any more, 1 it fails, 2 bad input.
    """
    from simdist.cli._fuzz import replay_token

    context.exit(replay_token(token, file))


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--real", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="The real backend."
)
@click.option("--seed", type=Count(most=2**64 - 1), help="Instead of the seed in the files.")
@click.option("--repeat", type=Count(least=1), default=1, show_default=True, help="Real runs of each scenario.")
@click.option(
    "--timing-tolerance", type=float, help="Also judge timings: 0.1 allows a difference of 10 % of the longer time."
)
@click.option("--json", "json_path", metavar="OUT", help="Write the report as JSON.")
@click.option("--html", "html_path", metavar="OUT", help="Write the report as a page.")
@node_options
@click.pass_context
def parity(
    context: click.Context,
    /,
    files: tuple[str, ...],
    real: str,
    seed: int | None,
    repeat: int,
    timing_tolerance: float | None,
    json_path: str | None,
    html_path: str | None,
    **node: Any,
) -> None:
    """Run each scenario in FILE simulated and as real processes, and compare rank by rank.

    Exit codes: 0 parity, 1 a difference, 2 bad input, 3 nothing was comparable.
    """
    from simdist.cli._parity import compare_files

    code = compare_files(
        files,
        real_options(real, node, "async"),
        seed=seed,
        repeat=repeat,
        timing_tolerance=timing_tolerance,
        json_path=json_path,
        html_path=html_path,
    )
    context.exit(code)


@main.command()
@click.option("--real", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="What to measure.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The cluster description.")
@click.option(
    "--ranks", type=Count(least=2, most=1024), multiple=True, help="World sizes, may repeat; default: 2, 3, 4."
)
@click.option("--real-timeout", default=600.0, show_default=True, help="Seconds until a measurement counts as hung.")
@click.pass_context
def calibrate(context: click.Context, real: str, output: str, ranks: tuple[int, ...], real_timeout: float) -> None:
    """Measure this machine's collectives, fit the cost model, and write it for [cluster] calibration = "FILE"."""
    from simdist.cli._calibrate import calibrate_machine

    context.exit(calibrate_machine(real, ranks or (2, 3, 4), output, real_timeout))


@main.command()
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


@main.command(name="build-devices")
@click.option("--again", is_flag=True, help="Rebuild even if they are built.")
@click.pass_context
def build_devices(context: click.Context, *, again: bool) -> None:
    """Build the kernels of virtual CUDA devices in C++, with g++: several times as fast as those in Python.

    They are kept in the user's cache folder, per version of torch, and taken by themselves when they are there.
    SIMDIST_DEVICE_KERNELS=python in the environment turns them off.
    """
    from simdist.cli._build_devices import build

    context.exit(build(again=again))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def doctor(context: click.Context, *, as_json: bool) -> None:
    """Report what works with this Python, this torch and this machine, and what turns on the rest.

    It runs a world of two ranks. Exit codes: 0 the world works, 1 it fails, 2 bad input. A bug report begins with it.
    """
    from simdist.cli._doctor import examine

    context.exit(examine(as_json=as_json))


@main.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, each with the reason.")
@click.pass_context
def patches(context: click.Context, name: str | None, *, as_json: bool) -> None:
    """List the names of Python, torch and other libraries that a world replaces; with NAME those that contain it.

    It runs a world of two ranks, and one with virtual devices where there are some. All names are put back when a world
    ends. Exit codes: 0 there are some, 1 none contains NAME, 2 bad input.
    """
    from simdist.cli._patches import print_patches

    context.exit(print_patches(name, as_json=as_json))


@main.command()
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
            say(str(error), err=True)
        else:
            say(f"{shown_path(file)}: ok")
    context.exit(2 if failed else 0)
