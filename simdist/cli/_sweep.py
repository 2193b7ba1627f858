"""`simdist sweep`: crash a scenario at every moment, and report where it does not recover."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simdist.cli._console import marks, page, say
from simdist.cli._interrupts import exit_code, searched
from simdist.cli._junit import write_junit
from simdist.cli._outputs import output_problems, shown_path, write_files, write_text
from simdist.cli._progress import LiveLine
from simdist.cli._summary import heading
from simdist.cli._table import plain_table
from simdist.errors import ScenarioError
from simdist.scenario import load
from simdist.sweeps import Failure, SweepReport, Tries, alike, counted, sweep_plan, unseen_words, write_replays

__all__ = ["sweep_file"]

_CALLS = 3  # named for each line


def sweep_file(
    file: str,
    seed: int | None,
    overrides: Sequence[str],
    tries: Tries,
    *,
    keep: str | None,
    workers: int | str | None,
    json_path: str | None,
    junit: str | None = None,
    write: str | None = None,
) -> int:
    """Sweep the scenario, print the findings, and return the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    files = {"--json": json_path, "--junit": junit, "--keep": keep}
    problems = output_problems(files, folders={"--write": write}, inputs=[file])
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems]) from None
    if plan.disk is None:
        problems.append("disk: missing; a crash loses nothing without one: add [disk], and keep checkpoints in {tmp}")
    if problems:
        raise ScenarioError(file, problems)
    if seed is not None:
        plan = replace(plan, seed=seed)

    def search(line: LiveLine) -> SweepReport:
        def progress(done: int, count: int, failed: int) -> None:
            line.say(f"{done} of {count} crashes   {failed} not survived")

        line.say("the undisturbed run")
        return sweep_plan(plan, tries, workers=workers, keep=keep, progress=progress)

    report, seconds, interruption = searched(search)
    if json_path is not None:
        write_text(json_path, lambda stream: stream.write(json.dumps(_data(report), indent=2) + "\n"))
    if junit is not None:
        write_junit(junit, "sweep", plan.name, report.findings(), seconds)
    written = write_files(write, lambda folder: write_replays(report, plan, folder))
    with page() as out:
        out.print(Text(f"{plan.name}: {plan.title}" if plan.title else plan.name, style="bold"), soft_wrap=True)
        _print(out, report, further=tries.limit is None and not tries.second_crash)
        for path in written:
            out.print(f"written      {path}", soft_wrap=True, highlight=False)
        out.print(f"real time    {seconds:.2f} s")
    if report.interrupted and keep is not None:
        say(f"what was found is kept in {shown_path(keep)}: the same command goes on")
    return exit_code(report.ok, interruption)


def _print(out: Console, report: SweepReport, *, further: bool) -> None:
    held, failed = marks(out.encoding)
    if report.wrong:
        heading(out, "without any crash")
        for name, text in report.wrong:
            out.print(Text(f"  {failed} {name}  {text}"), soft_wrap=True)
        return
    for text in _counted(report):
        out.print(Text(text), soft_wrap=True)
    out.print()
    table = plain_table("", "line", "crashes", "not survived", "calls", right=("crashes", "not survived"))
    for line in report.lines():
        mark = Text(failed, style="bold red") if line.failures else Text(held if line.cases else "", style="green")
        calls = ", ".join(line.calls[:_CALLS]) + (", ..." if len(line.calls) > _CALLS else "")
        table.add_row(mark, Text(line.where or "-"), str(line.cases), str(len(line.failures)), Text(calls))
    out.print(table)
    if report.failures:
        heading(out, "what was lost")
        for failure, others in report.kinds():
            _print_failure(out, failure, others)
        heading(out, "what usually helps")
        for cure in report.cures:
            out.print(Padding(Text(cure), (0, 0, 0, 2)))
    if report.interrupted:
        heading(out, "interrupted")
        out.print(Padding(Text("not all crashes were tried"), (0, 0, 0, 2)))
    if report.never:
        heading(out, "never reached")
        out.print(Padding(Text(", ".join(report.never)), (0, 0, 0, 2)))
    if report.unseen:
        heading(out, "not simulated")
        out.print(Padding(Text(unseen_words(report.unseen)), (0, 0, 0, 2)))
    out.print()
    survived = len(report.cases) - len(report.failures)
    out.print(f"survived     {survived} of {len(report.cases)} crashes")
    if report.failures:
        out.print("replay       as above, or with the files that --write FOLDER makes of each")
    elif further:
        out.print("further      --second-crash strikes the recovery, too; --strike lost goes on with fewer hosts")


def _counted(report: SweepReport) -> Iterator[str]:
    """Yield which points were tried, which were not, and why."""
    points, crashes = counted(len(report.points), "point"), counted(len(report.cases), "crash")
    yield f"{points} at which a crash could strike, {crashes} tried"
    if report.merged:
        yield f"  {report.merged} more were not tried: each leaves the same, in the same step, as one that was"
    if report.known:
        yield f"  {report.known} of those tried were ended at the restart: another had shown what comes of these files"
    if report.left_out:
        yield f"  {report.left_out} more were left out: --limit"


def _print_failure(out: Console, failure: Failure, others: int) -> None:
    out.print(Padding(Text(failure.account), (0, 0, 0, 2)))
    out.print(Text(f"    {failure.replay}", style="dim"), soft_wrap=True)
    if others:
        out.print(f"    {alike(others)}")


def _data(report: SweepReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "points": len(report.points),
        "crashes": len(report.cases),
        "merged": report.merged,
        "left_out": report.left_out,
        "known": report.known,
        "unseen": list(report.unseen),
        "never": list(report.never),
        "wrong": [list(each) for each in report.wrong],
        "lines": [
            {"line": each.where, "calls": list(each.calls), "crashes": each.cases, "failures": len(each.failures)}
            for each in report.lines()
        ],
        "failures": [
            {
                "account": each.account,
                "where": each.case.where,
                "strike": each.case.strike,
                "problems": [list(problem) for problem in each.problems],
                "left": [list(found) for found in each.left],
                "replay": each.replay,
            }
            for each in report.failures
        ],
    }
