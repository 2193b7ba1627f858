"""`simdist fuzz` and `simdist replay`: random faults, and the repetition of a failure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from simdist.cli._console import page
from simdist.cli._explore import loaded, print_report, write_reports
from simdist.cli._interrupts import exit_code, searched
from simdist.cli._outputs import output_problems, write_files
from simdist.cli._progress import LiveLine
from simdist.programs import PlanProgram, cores
from simdist.result import report_of
from simdist.searches import FuzzReport, Trial, Tries, fuzz_plan, read_token

__all__ = ["fuzz_file", "replay_token"]


def fuzz_file(
    file: str,
    overrides: Sequence[str],
    tries: Tries,
    *,
    minutes: float | None,
    database: str | None,
    json_path: str | None,
    junit: str | None,
    workers: int | str | None,
    write: str | None,
) -> int:
    """Search the scenario under faults, print the findings, and return the exit code.

    Raises:
        ScenarioError: the file, an override, a family or an output path is bad; nothing has run then.
    """
    files, folders = {"--json": json_path, "--junit": junit}, {"--write": write, "--database": database}
    problems = output_problems(files, folders=folders, inputs=[file])
    plan = loaded(file, None, overrides, problems, tries.problems)

    def search(line: LiveLine) -> FuzzReport:
        started = time.perf_counter()

        def progress(done: int, found: int) -> None:
            line.say(f"{done} runs   {found} causes found   {line.rate(done):,.0f} runs a minute")

        return fuzz_plan(
            plan,
            tries,
            database=None if database is None else Path(database),
            over=None if minutes is None else lambda: time.perf_counter() - started > 60 * minutes,
            workers=workers or cores(),
            progress=progress,
        )

    report, seconds, interruption = searched(search)
    write_reports("fuzz", plan, report, seconds, json_path=json_path, junit=junit)
    written = write_files(write, report.write)
    rate = 60 * report.runs / max(seconds, 1e-6)
    print_report(plan, report, f"{seconds:.2f} s, {rate:,.0f} runs a minute", written)
    return exit_code(report.ok, interruption)


def replay_token(token: str, file: str | None) -> int:
    """Repeat the run of a token, print its report, and return the exit code.

    Raises:
        ScenarioError: it is no token, or the scenario is missing or has changed.
    """
    plan, attempt = read_token(token, file)
    program = PlanProgram(plan)
    with program.ready():
        trial = Trial(program)
        ran = None if trial.wrong is not None else trial.run(attempt)
    with page() as out:
        out.print(Text(program.planned(attempt).replay), soft_wrap=True)
        if ran is None:
            out.print(Text(f"without any fault: {trial.wrong}"), soft_wrap=True)
            return 1
        verdict = trial.judge(ran, attempt)
        if verdict.kind == "found":
            out.print(Text(f"found: {verdict.cause}", style="bold red"), soft_wrap=True)
        elif verdict.kind == "explained":
            out.print(Text(f"fails as its faults explain: {verdict.cause or ran.error}"), soft_wrap=True)
        else:
            out.print("passed")
        if ran.result is not None and verdict.kind == "found":
            out.print(Text("\n".join(report_of(ran.result).lines())), soft_wrap=True)
    return 1 if verdict.kind == "found" else 0
