"""Commands that run a scenario, or a script."""

from __future__ import annotations

import json

import click

from simdist.cli._nodes import (
    Count,
    given_node_options,
    node_options,
    options_given,
    real_options,
    report_options,
    scenario_options,
    worker_options,
)

__all__ = ["launch_command", "run"]

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


class _Judging(click.Command):
    """A command with `--judge`, whose name is optional."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if "--judge" in args:
            from simdist.judges import with_names

            args = with_names(args)
        return super().parse_args(context, args)


@click.command(cls=_Judging)
@scenario_options
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
    metavar="[NAMES]",
    help="Report what does not hold although nothing fails: all judges, or those named, as in replicas,samples.",
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
    **node: object,
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


class _Launching(click.Command):
    """Hands on all words, `--` too: torchrun's parser takes words before it for its own options."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, ["--", *args])


@click.command(add_help_option=False, name="launch", cls=_Launching)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Run a script on simulated ranks, by torchrun's command line: launch --nproc-per-node 4 train.py --lr 0.1"""
    from simdist.cli._launch import launch_words

    context.exit(launch_words(words))
