"""`simdist explore`: search the schedules of a scenario for one under which it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from simdist.cli._console import page
from simdist.cli._interrupts import exit_code, searched
from simdist.cli._junit import write_junit
from simdist.cli._outputs import output_problems, write_files, write_text
from simdist.cli._progress import LiveLine
from simdist.errors import ScenarioError
from simdist.programs import cores
from simdist.scenario import Plan, load
from simdist.searches import ExploreReport, SearchReport, explore_plan

__all__ = ["explore_file", "loaded", "print_report", "write_reports"]


def explore_file(
    file: str,
    seed: int | None,
    overrides: Sequence[str],
    *,
    json_path: str | None,
    junit: str | None,
    workers: int | str | None,
    runs: int,
    schedules: int,
    systematic: bool,
    one_outcome: bool,
    until_found: bool,
    write: str | None,
) -> int:
    """Search the scenario's schedules, print the findings, and return the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    problems = output_problems({"--json": json_path, "--junit": junit}, folders={"--write": write}, inputs=[file])
    if systematic and schedules:
        problems.append("--schedules: a systematic search draws none")
    if systematic and workers not in (None, 1):
        problems.append("--workers: a systematic search tries one order after the other")
    plan = loaded(file, seed, overrides, problems)

    def search(line: LiveLine) -> ExploreReport:
        def progress(done: int, count: int, found: int) -> None:
            line.say(f"{done} of {count} schedules   {found} causes found   {line.rate(done):,.0f} runs a minute")

        return explore_plan(
            plan,
            runs=runs,
            schedules=schedules,
            systematic=systematic,
            one_outcome=one_outcome,
            until_found=until_found,
            workers=1 if systematic else workers or cores(),
            progress=progress,
        )

    report, seconds, interruption = searched(search)
    write_reports("explore", plan, report, seconds, json_path=json_path, junit=junit)
    written = write_files(write, report.write)
    print_report(plan, report, f"{seconds:.2f} s", written)
    return exit_code(report.ok, interruption)


def loaded(
    file: str,
    seed: int | None,
    overrides: Sequence[str],
    problems: Sequence[str],
    in_world: Callable[[int | None], Iterable[str]] = lambda world_size: (),
) -> Plan:
    """Return a file's plan; `problems` are further ones, and `in_world` returns those with the world's size.

    Raises:
        ScenarioError: names all problems.
    """
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *in_world(None), *problems]) from None
    if problems := [*in_world(plan.world_size), *problems]:
        raise ScenarioError(file, problems)
    return plan if seed is None else replace(plan, seed=seed)


def write_reports(
    command: str, plan: Plan, report: SearchReport, seconds: float, *, json_path: str | None, junit: str | None
) -> None:
    """Write a search's report in the requested forms."""
    if json_path is not None:
        write_text(json_path, lambda stream: stream.write(json.dumps(report.summary(), indent=2) + "\n"))
    if junit is not None:
        write_junit(junit, command, plan.name, report.findings(), seconds)


def print_report(plan: Plan, report: SearchReport, real_time: str, written: Iterable[Path] = ()) -> None:
    """Print a search's findings, the files that it wrote, and its real time, in words."""
    with page() as out:
        out.print(Text(plan.heading, style="bold"), soft_wrap=True)
        for line in report.lines():
            out.print(Text(line, style="bold red" if line.startswith("found:") else ""), soft_wrap=True)
        for path in written:
            out.print(f"written      {path}", soft_wrap=True, highlight=False)
        out.print(f"real time    {real_time}")
