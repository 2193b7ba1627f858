"""The text after a run: ranks, failures, timeline, expectations, digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from simdist.cli._console import marks
from simdist.cli._table import plain_table
from simdist.result import Event, RankResult, Report, RunResult, report_of
from simdist.scenario import (
    Plan,
    ScenarioReport,
    Verdict,
    format_duration,
)

if TYPE_CHECKING:
    from simdist.determinism import DeterminismReport

__all__ = ["heading", "print_failures", "print_findings", "print_programs", "print_ranks", "print_shared"]
__all__ += ["print_summary", "print_timeline"]

_FOLD_FROM = 17  # ranks; in worlds of at least this size, neighbours that ended alike share a row
_TIMELINE = 20


def print_summary(out: Console, report: ScenarioReport, determinism: DeterminismReport | None) -> None:
    """Print the report; equal runs print the same text."""
    plan, result = report.plan, report.result
    out.print(Text(plan.heading, style="bold"), soft_wrap=True)
    out.print(_setting(plan))
    out.print()
    print_ranks(out, result.ranks)
    reported = report_of(result)
    print_findings(out, reported.findings)
    print_failures(out, result, reported)
    print_timeline(out, result.events)
    if result.deadlock is not None:
        heading(out, "deadlock")
        _indented(out, str(result.deadlock))
    print_programs(out, result.programs)
    print_shared(out, result.shared_state)
    heading(out, "expectations")
    verdicts = [*report.verdicts, *([] if determinism is None else [_verdict(determinism)])]
    held, failed = marks(out.encoding)
    grid = plain_table("", "", "")
    for verdict in verdicts:
        mark = Text(held, style="green") if verdict.ok else Text(failed, style="bold red")
        grid.add_row(mark, Text(verdict.name), Text(verdict.evidence))
    out.print(Padding(grid, (0, 0, 0, 2)))
    if determinism is not None and determinism.difference is not None:
        heading(out, determinism.where)
        for line in determinism.lines():
            out.print(Text(line), soft_wrap=True)
    out.print()
    out.print(f"virtual time {format_duration(result.virtual_time_ns)}, {len(result.events)} events")
    out.print(f"digest       {result.digest}")
    out.print(Text(f"replay       {plan.replay}"), soft_wrap=True)


def print_programs(out: Console, lines: Sequence[str]) -> None:
    """Print which programs ran outside the simulation."""
    if lines:
        heading(out, "programs outside the simulation")
        for line in lines:
            _indented(out, line)


def print_shared(out: Console, lines: Sequence[str]) -> None:
    """Print what ranks left in state that all ranks and the next run share."""
    if lines:
        heading(out, "left in shared state")
        for line in lines:
            _indented(out, line)
        out.print()


def _setting(plan: Plan) -> Text:
    words = [f"{plan.world_size} {'rank' if plan.world_size == 1 else 'ranks'}", plan.backend, f"seed {plan.seed}"]
    words.append({0: "no faults", 1: "1 fault"}.get(len(plan.faults), f"{len(plan.faults)} faults"))
    if plan.max_restarts:
        words.append(f"at most {plan.max_restarts} {'restart' if plan.max_restarts == 1 else 'restarts'}")
    if plan.policy != "fifo":
        words.append(f"policy {plan.policy}")
    return Text(", ".join(words))


def print_ranks(out: Console, ranks: Sequence[RankResult]) -> None:
    """Print the end of each rank."""
    numbers = ("rank", "exit code", "ended at", "operations", "lives")
    table = plain_table("rank", "outcome", "exit code", "ended at", "operations", "lives", right=numbers)
    for group in _alike(ranks):
        first, last = group[0], group[-1]
        table.add_row(
            str(first.rank) if first is last else f"{first.rank}-{last.rank}",
            Text(first.status, style="" if first.ok else "bold red"),
            *_cells(first),
        )
    out.print(table)


def _alike(ranks: Sequence[RankResult]) -> Iterator[list[RankResult]]:
    """Yield each rank separately; in a large world, groups of neighbours that ended alike."""
    group: list[RankResult] = []
    for rank in ranks:
        same = group and (group[-1].status, *_cells(group[-1])) == (rank.status, *_cells(rank))
        if group and not (same and len(ranks) >= _FOLD_FROM):
            yield group
            group = []
        group.append(rank)
    if group:
        yield group


def _cells(rank: RankResult) -> tuple[str, str, str, str]:
    code = "-" if rank.exit_code is None else str(rank.exit_code)
    return code, format_duration(rank.ended_ns), str(rank.operations), str(rank.lives)


def print_findings(out: Console, lines: Sequence[str]) -> None:
    """Print the findings of judges."""
    if lines:
        heading(out, "findings")
        for line in lines:
            out.print(Text(f"  {line}"), soft_wrap=True)


def print_failures(out: Console, result: RunResult, report: Report) -> None:
    """Print the errors, and the ranks on which they occurred."""
    if result.ok or (result.findings and result.first_failure() is None and all(each.ok for each in result.faults)):
        return
    heading(out, "failures")
    for line in (*report.collectives, *report.ranks):
        _indented(out, line.lstrip(), by=2 + len(line) - len(line.lstrip()))
    for line in report.traceback:
        out.print(Text(f"  {line}"), soft_wrap=True)


def print_timeline(out: Console, events: Sequence[Event]) -> None:
    """Print faults, restarts and deadlocks, in order."""
    shown = [event for event in events if event.kind in ("fault", "restart", "deadlock")]
    if not shown:
        return
    heading(out, "timeline")
    grid = plain_table("", "", "")
    for event in shown[:_TIMELINE]:
        who = "world" if event.rank < 0 else f"rank {event.rank}"
        grid.add_row(Text(format_duration(event.time_ns)), Text(who), Text(_happened(event)))
    out.print(Padding(grid, (0, 0, 0, 2)))
    if len(shown) > _TIMELINE:
        _indented(out, f"and {len(shown) - _TIMELINE} more")


def _happened(event: Event) -> str:
    if event.kind == "fault":
        kind, text = str(event.data.get("fault", "fault")), str(event.data.get("text", ""))
        return f"{kind}: {text}" if text else kind
    if event.kind == "restart":
        return f"restart: life {event.data.get('life', '?')} begins on every rank"
    return "deadlock, see below"


def _verdict(determinism: DeterminismReport) -> Verdict:
    where = f"in a fresh process with PYTHONHASHSEED={determinism.hash_seed}"
    if determinism.ok:
        outside = "; no seed decides what the programs outside the simulation do" if determinism.programs else ""
        return Verdict("determinism", True, f"the same digest {where}{outside}")
    digest = determinism.other_digests[0] if determinism.other_digests else "none"
    return Verdict("determinism", False, f"another digest {where}, from {determinism.where} on: {digest}")


def heading(out: Console, text: str) -> None:
    """Print an empty line, and a title."""
    out.print()
    out.print(Text(text, style="bold"))


def _indented(out: Console, text: str, by: int = 2) -> None:
    out.print(Padding(Text(text), (0, 0, 0, by)))
