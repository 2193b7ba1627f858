"""`simdist explore`: search the schedules of a scenario for one under which it fails."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from simdist.cli._console import page
from simdist.cli._outputs import output_problems, write_text
from simdist.cli._progress import LiveLine
from simdist.errors import ScenarioError
from simdist.scenario import Plan, load
from simdist.searches import ExploreReport, explore_plan

__all__ = ["explore_file", "loaded"]


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
    _print(plan, report, seconds)
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


def _print(plan: Plan, report: ExploreReport, seconds: float) -> None:
    with page() as out:
        out.print(Text(plan.heading, style="bold"), soft_wrap=True)
        for line in report.lines():
            found = line.startswith("found:")
            out.print(Text(line, style="bold red" if found else ""), soft_wrap=True)
        out.print(f"real time    {seconds:.2f} s")
