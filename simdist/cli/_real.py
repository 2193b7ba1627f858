"""`simdist run --real`: the scenario as real processes, and its result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simdist.cli._console import marks, page
from simdist.cli._outputs import reported, write_text
from simdist.cli._run import Outputs
from simdist.cli._summary import heading, print_failures, print_ranks, print_timeline
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.result import report_of
from simdist.scenario import format_duration, load
from simdist.values import Maybe, Number, findings_of

if TYPE_CHECKING:
    from simdist.hardware import Nodes, RealReport

__all__ = ["RealOptions", "number_problems", "problems_of", "run_real_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealOptions:
    """The options of a real run: the backend, real seconds per virtual second, the limit on a rank, and the nodes."""

    backend: str
    time_scale: float | None
    limit_s: float
    nodes: Nodes
    wait: Any = ""


def problems_of(real: RealOptions, world_size: int) -> list[str]:
    """Return the problems of a real run's options."""
    lines = real.nodes.problems(world_size)
    lines += number_problems("--time-scale", real.time_scale)
    return lines + number_problems("--real-timeout", real.limit_s)


def number_problems(option: str, value: float | None) -> list[str]:
    """Return why an option's number is unusable; numbers that are finite and greater than 0 are usable."""
    return [f"{option}: {finding.text}" for finding in findings_of(Maybe(Number(above=0)), value)]


def run_real_file(
    file: str, seed: int | None, overrides: Sequence[str], outputs: Outputs, real: RealOptions, *, show_output: bool
) -> int:
    """Run the scenario as real processes, print the summary; return the exit code, 3 if nothing could be replayed.

    Raises:
        ScenarioError: the file, an override, an option or an output path is bad; nothing has run then.
    """
    from simdist.hardware import replay, unavailable, write_dumps

    problems = outputs.problems([file])
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems, *problems_of(real, real.nodes.count)]) from None
    problems += problems_of(real, plan.world_size)
    if problems:
        raise ScenarioError(file, problems)
    if seed is not None:
        plan = replace(plan, seed=seed)
    missing = unavailable(real.backend, plan.world_size, real.nodes)
    if missing:
        click.echo(f"{file}: not run: {missing}", err=True)
        return 3
    report = replay(
        plan,
        backend=real.backend,
        time_scale=real.time_scale,
        limit_s=real.limit_s,
        nodes=real.nodes,
        wait=real.wait,
    )
    if report is None:
        click.echo(f"node {real.nodes.rank} is done; node 0 has the report")
        return 0
    if outputs.json is not None:
        write_text(outputs.json, lambda stream: stream.write(json.dumps(report.summary(), indent=2) + "\n"))
    replace(outputs, flight_recorder=None).write_events(report.result, plan.heading)
    missing_dumps: list[str] = []
    if outputs.flight_recorder is not None:
        with reported(outputs.flight_recorder):
            missing_dumps = write_dumps(report, Path(outputs.flight_recorder))
    with page() as out:
        _print(out, report, missing_dumps)
    if show_output:
        for rank in report.result.ranks:
            for name, text in (("", rank.stdout), (" stderr", rank.stderr)):
                for line in text.splitlines():
                    click.echo(f"[rank {rank.rank}{name}] {line}")
    return 0 if report.ok else 1


def _print(out: Console, report: RealReport, missing_dumps: Sequence[str]) -> None:
    plan, result = report.plan, report.result
    out.print(Text(f"{plan.name}: {plan.title}" if plan.title else plan.name, style="bold"), soft_wrap=True)
    scale = f", time scale {report.time_scale:g}" if report.time_scale != 1.0 else ""
    out.print(f"{plan.world_size} real processes, {report.backend}, seed {plan.seed}{scale}")
    out.print()
    print_ranks(out, result.ranks)
    print_failures(out, result, report_of(result))
    print_timeline(out, result.events)
    if report.not_replayed:
        heading(out, "not replayed")
        for each in report.not_replayed:
            out.print(Padding(Text(str(each)), (0, 0, 0, 2)))
    lines = [str(match) for match in report.matches if match.disagreement or match.record.problem]
    if lines or missing_dumps:
        heading(out, "flight records")
        for line in [*lines, *missing_dumps]:
            out.print(Padding(Text(line), (0, 0, 0, 2)))
    heading(out, "expectations")
    held, failed = marks(out.encoding)
    grid = plain_table("", "", "")
    for verdict in report.verdicts:
        mark = Text(held, style="green") if verdict.ok else Text(failed, style="bold red")
        grid.add_row(mark, Text(verdict.name), Text(verdict.evidence))
    out.print(Padding(grid, (0, 0, 0, 2)))
    out.print()
    out.print(f"real time {format_duration(result.virtual_time_ns)}, {len(result.events)} events")
