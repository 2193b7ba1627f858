"""`simdist explore`: search the schedules of a scenario for one under which it fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from simdist.cli._console import page
from simdist.cli._outputs import output_problems, write_text
from simdist.cli._progress import LiveLine
from simdist.errors import ScenarioError
from simdist.scenario import Plan, load
from simdist.searches import SearchReport, explore_plan

__all__ = ["explore_file", "loaded", "print_report"]


def explore_file(
    file: str,
    seed: int | None,
    overrides: Sequence[str],
    *,
    json_path: str | None,
    runs: int,
    schedules: int,
    systematic: bool,
    one_outcome: bool,
    until_found: bool,
) -> int:
    """Search the scenario's schedules and print what was found; the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    problems = output_problems({"--json": json_path}, inputs=[file])
    if systematic and schedules:
        problems = [*problems, "--schedules: a systematic search draws none"]
    plan = loaded(file, seed, overrides, problems)
    started = time.perf_counter()
    with LiveLine() as line:

        def progress(done: int, count: int, found: int) -> None:
            rate = done / max(time.perf_counter() - started, 1e-6)
            line.say(f"{done} of {count} schedules   {found} causes found   {60 * rate:,.0f} runs a minute")

        report = explore_plan(
            plan,
            runs=runs,
            schedules=schedules,
            systematic=systematic,
            one_outcome=one_outcome,
            until_found=until_found,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    if json_path is not None:
        write_text(json_path, lambda stream: stream.write(json.dumps(report.summary(), indent=2) + "\n"))
    print_report(plan, report, f"{seconds:.2f} s")
    return 0 if report.ok else 1


def loaded(file: str, seed: int | None, overrides: Sequence[str], problems: Sequence[str]) -> Plan:
    """The plan of a file; `problems` are what is wrong besides.

    Raises:
        ScenarioError: names everything that is wrong.
    """
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems]) from None
    if problems:
        raise ScenarioError(file, problems)
    return plan if seed is None else replace(plan, seed=seed)


def print_report(plan: Plan, report: SearchReport, real_time: str, written: Iterable[Path] = ()) -> None:
    """Print what a search has found, the files that it wrote, and the real time that it took, in words."""
    with page() as out:
        out.print(Text(plan.heading, style="bold"), soft_wrap=True)
        for line in report.lines():
            out.print(Text(line, style="bold red" if line.startswith("found:") else ""), soft_wrap=True)
        for path in written:
            out.print(f"written      {path}", soft_wrap=True, highlight=False)
        out.print(f"real time    {real_time}")
