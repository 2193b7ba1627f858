"""Commands that compare with real processes, and measure these."""

from __future__ import annotations

import click

from simdist.cli._nodes import (
    Count,
    node_options,
    real_options,
)

__all__ = ["calibrate", "parity"]


@click.command()
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
    **node: object,
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


@click.command()
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
