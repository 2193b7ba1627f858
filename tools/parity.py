"""The parity suite: every portable scenario simulated and as real processes, and what they agree on.

    python tools/parity.py --real gloo
    python tools/parity.py --real gloo -k crash --repeat 3 --html parity.html

A scenario is portable if its file says `portable = true`. Exit codes: 0 parity everywhere, 1 a difference, 2 bad input,
3 nothing was comparable.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import click

from simdist.cli._console import page
from simdist.cli._parity import load_all, print_reports, write_reports
from simdist.errors import ScenarioError
from simdist.hardware import ParityReport, check_parity, exit_code

ROOT = Path(__file__).resolve().parents[1]
_PATIENCE = 2  # more real runs of a scenario that differed; the report names behaviour that varies between real runs


@click.command()
@click.option(
    "--real", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="The real backend."
)
@click.option("-k", "pattern", default="", help="Only scenarios whose name matches this regex.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Real runs of each scenario.")
@click.option("--json", "json_path", type=click.Path(), metavar="OUT", help="Write the report as JSON.")
@click.option("--html", "html_path", type=click.Path(), metavar="OUT", help="Write the report as a page.")
def main(real: str, pattern: str, repeat: int, json_path: str | None, html_path: str | None) -> None:
    """Compare every portable scenario's simulated and real runs."""
    started = time.monotonic()
    files = sorted((ROOT / "scenarios").glob("*.toml"))
    chosen = [str(file.relative_to(ROOT)) for file in files if re.search(pattern, file.stem)]
    try:
        plans = [plan for plan in load_all(chosen, lambda plan: (), ()) if plan.portable]
    except (ScenarioError, re.error) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if not plans:
        click.echo(f"-k {pattern}: no portable scenario has such a name", err=True)
        sys.exit(2)
    reports: list[ParityReport] = []
    for plan in plans:
        report = check_parity(plan, backend=real, repeat=repeat, patience=_PATIENCE)
        assert report is not None  # one node
        reports.append(report)
        click.echo(f"{plan.name}: {report.status}", err=True)
    write_reports(reports, json_path, html_path)
    with page() as out:
        print_reports(out, reports)
        out.print(f"real time {time.monotonic() - started:.0f} s")
    sys.exit(exit_code(reports))


if __name__ == "__main__":
    main()
