"""`simdist run`: load, run, judge, and write what was asked for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import click

from simdist.cli._console import page
from simdist.cli._progress import LiveLine
from simdist.cli._summary import print_summary
from simdist.errors import ScenarioError
from simdist.scenario import Determinism, ScenarioReport, check_determinism, format_duration, load, run_scenario
from simdist.trace import write_chrome_trace, write_events

__all__ = ["Outputs", "run_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files to write, if any."""

    json: str | None = None
    trace: str | None = None
    events: str | None = None

    def problems(self) -> list[str]:
        """Why one of them can't be written, found by opening it; files that this made are gone again."""
        named = {f"--{name}": path for name in ("json", "trace", "events") if (path := getattr(self, name)) is not None}
        lines = []
        for option, path in named.items():
            existed = Path(path).exists()
            try:
                with Path(path).open("a", encoding="utf-8"):
                    pass
                if not existed:
                    Path(path).unlink()
            except (OSError, ValueError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                lines.append(f"{option} {path}: cannot be written: {reason}")
        resolved = [Path(path).resolve() for path in named.values() if Path(path).is_file() or not Path(path).exists()]
        if len(set(resolved)) < len(resolved):
            lines.append(f"{' and '.join(named)}: two outputs in one file")
        return lines

    def write(self, report: ScenarioReport, determinism: Determinism | None) -> None:
        """Write the files."""
        if self.json is not None:
            _write(self.json, lambda stream: stream.write(_json_text(report, determinism)))
        if self.trace is not None:
            _write(self.trace, lambda stream: write_chrome_trace(report.result, stream))
        if self.events is not None:
            _write(self.events, lambda stream: write_events(report.result.events, stream))


def run_file(
    file: str, seed: int | None, overrides: Sequence[str], outputs: Outputs, *, repeat: bool, show_output: bool
) -> int:
    """Run the scenario, and with `repeat` once more in a fresh process, and print the summary; the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    problems = outputs.problems()
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems]) from None
    if problems:
        raise ScenarioError(file, problems)
    if seed is not None:
        plan = replace(plan, seed=seed)

    started = time.perf_counter()
    with LiveLine() as line:
        report = run_scenario(plan, echo=_echo(line) if show_output else None, progress=line.progress)
        line.say("comparing with a second run in a fresh process" if repeat else "")
        determinism = check_determinism(report) if repeat else None
    seconds = time.perf_counter() - started

    outputs.write(report, determinism)
    with page() as out:
        print_summary(out, report, determinism)
        out.print(f"real time    {seconds:.2f} s")
    return 0 if report.ok and (determinism is None or determinism.ok) else 1


def _echo(line: LiveLine) -> Callable[[int, int, str, str], None]:
    # Bound now: while ranks run, `sys.stdout` is theirs.
    out = sys.stdout

    def echo(rank: int, time_ns: int, stream: str, text: str) -> None:
        line.clear()
        mark = "" if stream == "stdout" else f" {stream}"
        out.write(f"[rank {rank} {format_duration(time_ns)}{mark}] {text.rstrip()}\n")

    return echo


def _json_text(report: ScenarioReport, determinism: Determinism | None) -> str:
    summary = report.summary()
    if determinism is not None:
        other = {"digest": determinism.other_digest, "hash_seed": determinism.hash_seed}
        summary["determinism"] = {"ok": determinism.ok, **other}
    return json.dumps(summary, indent=2) + "\n"


def _write(path: str, write: Callable[[TextIO], object]) -> None:
    try:
        with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
            write(stream)
    except OSError as error:  # it could be opened before the run: the disk is full, or the folder is gone
        click.echo(f"{path}: cannot be written: {error.strerror or error}", err=True)
        raise click.exceptions.Exit(2) from None
