"""`simdist parity`: scenarios as simulated and as real runs, compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simdist.cli._console import page
from simdist.cli._outputs import output_problems, shown_path, write_text
from simdist.cli._real import RealOptions, number_problems, problems_of
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.scenario import Plan, format_duration, load
from simdist.values import rank_text

if TYPE_CHECKING:
    from simdist.hardware import ParityReport, Point

__all__ = ["compare_files", "load_all", "print_reports", "write_reports"]

_DIFFERENCES = 12  # shown for each scenario


def compare_files(
    files: Sequence[str],
    real: RealOptions,
    *,
    seed: int | None,
    repeat: int,
    timing_tolerance: float | None,
    json_path: str | None,
    html_path: str | None,
) -> int:
    """Compare each file's simulated and real runs, print and write the report; return the exit code.

    Raises:
        ScenarioError: files, options or output paths are bad; nothing has run then.
    """
    from simdist.hardware import check_parity, exit_code

    problems = output_problems({"--json": json_path, "--html": html_path}, inputs=files)
    problems += number_problems("--timing-tolerance", timing_tolerance)
    plans = load_all(files, lambda plan: problems_of(real, plan.world_size), problems)
    reports: list[ParityReport] = []
    for plan in plans:
        report = check_parity(
            plan if seed is None else replace(plan, seed=seed),
            backend=real.backend,
            repeat=repeat,
            time_scale=real.time_scale,
            timing_tolerance=timing_tolerance,
            limit_s=real.limit_s,
            nodes=real.nodes,
        )
        if report is not None:
            reports.append(report)
    if not reports:
        click.echo(f"node {real.nodes.rank} is done; node 0 has the report")
        return 0
    write_reports(reports, json_path, html_path)
    with page() as out:
        print_reports(out, reports)
    return exit_code(reports)


def load_all(files: Sequence[str], also: Callable[[Plan], Sequence[str]], problems: Sequence[str]) -> list[Plan]:
    """Return the plans of all files.

    Raises:
        ScenarioError: names all problems of all files.
    """
    plans, lines = [], list(problems)
    reported: list[str] = []
    for file in files:
        try:
            plan = load(file)
        except ScenarioError as error:
            lines += [f"{shown_path(file)}: {problem}" if len(files) > 1 else problem for problem in error.problems]
        else:
            plans.append(plan)
            reported += [line for line in also(plan) if line not in reported]
    lines += reported
    if lines:
        raise ScenarioError(shown_path(files[0]) if len(files) == 1 else f"{len(files)} files", lines)
    return plans


def write_reports(reports: Sequence[ParityReport], json_path: str | None, html_path: str | None) -> None:
    """Write the requested report files."""
    from simdist.hardware import html_page

    if json_path is not None:
        content = {"reports": [report.summary() for report in reports]}
        write_text(json_path, lambda stream: stream.write(json.dumps(content, indent=2) + "\n"))
    if html_path is not None:
        write_text(html_path, lambda stream: stream.write(html_page(reports)))


def print_reports(out: Console, reports: Sequence[ParityReport]) -> None:
    """Print a line for each scenario, the differences, results of only some real runs, and parts not replayed."""
    table = plain_table("scenario", "ranks", "agreed", "virtual", "real", "verdict", right=("ranks", "agreed"))
    for report in reports:
        agreed = " ".join(f"{agreed}/{judged}" for agreed, judged in report.agreements) or "-"
        style = {"parity": "green", "difference": "bold red"}.get(report.status, "yellow")
        table.add_row(
            report.plan.name,
            str(report.plan.world_size),
            agreed,
            _longest([timing.simulated_s for timing in report.timings]),
            _longest([value for timing in report.timings for value in timing.real_s]),
            Text(report.status, style=style),
        )
    out.print(table)
    for report in reports:
        _print_details(out, report)
    states = [report.status for report in reports]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    out.print()
    out.print(f"{len(reports)} scenarios: {counted}")


def _longest(seconds: Sequence[float]) -> str:
    return format_duration(round(max(seconds) * 1e9)) if seconds else "-"


def _print_details(out: Console, report: ParityReport) -> None:
    wrong = [point for point in report.points if not point.ok]
    lines = [f"not replayed: {each}" for each in report.not_replayed]
    lines += [f"not comparable: {report.reason}"] if report.reason else []
    lines += [f"real runs differ in {line}" for line in report.sometimes]
    if report.timing_tolerance is not None:
        late = [timing.rank for timing in report.timings if not timing.within(report.timing_tolerance)]
        lines += [f"{rank_text(late)}: not within {report.timing_tolerance:.0%} of the simulated time"] if late else []
    if not wrong and not lines:
        return
    out.print()
    out.print(Text(report.plan.name, style="bold"))
    for line in lines:
        out.print(Padding(Text(line), (0, 0, 0, 2)))
    for point in wrong[:_DIFFERENCES]:
        out.print(Padding(Text(_title(point), style="bold red"), (0, 0, 0, 2)))
        out.print(Padding(Text(f"simulated: {point.simulated}"), (0, 0, 0, 4)))
        out.print(Padding(Text(f"real:      {point.real}"), (0, 0, 0, 4)))
    if len(wrong) > _DIFFERENCES:
        out.print(Padding(Text(f"and {len(wrong) - _DIFFERENCES} more"), (0, 0, 0, 2)))


def _title(point: Point) -> str:
    return f"{point.name} of rank {point.rank}" if point.rank >= 0 else point.name
