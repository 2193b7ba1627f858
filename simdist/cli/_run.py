"""`simdist run`: load, run, judge, and write what was asked for."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simdist._observer import observed_by
from simdist._shared_writes import shared_writes
from simdist.cli._console import page
from simdist.cli._outputs import output_problems, shown_path, told, write_bytes, write_text
from simdist.cli._progress import LiveLine
from simdist.cli._summary import print_shared, print_summary
from simdist.errors import ScenarioError
from simdist.result import RunResult
from simdist.scenario import ScenarioReport, check_plan, format_duration, load, run_scenario
from simdist.trace import (
    Trace,
    save,
    timeline,
    trace_of,
    write_chrome_trace,
    write_events,
    write_flight_recorder,
)

if TYPE_CHECKING:
    from simdist.determinism import CallStacks, DeterminismReport

__all__ = ["Outputs", "run_file", "timeline_problems", "write_timeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files to write, if any."""

    json: str | None = None
    trace: str | None = None
    events: str | None = None
    timeline: str | None = None
    flight_recorder: str | None = None  # a folder

    def problems(self, inputs: Sequence[str] = ()) -> list[str]:
        """Why one of them can't be written, found by opening it; files that this made are gone again."""
        lines = [] if self.timeline is None else timeline_problems("--timeline", self.timeline)
        files = {f"--{name}": getattr(self, name) for name in ("json", "trace", "events", "timeline")}
        folders = {"--flight-recorder": self.flight_recorder}
        return lines + output_problems(files, folders=folders, inputs=inputs)

    def write(self, report: ScenarioReport, determinism: DeterminismReport | None, stacks: CallStacks | None) -> None:
        """Write the files; `stacks` tells Flight Recorder's dumps from where operations were called."""
        if self.json is not None:
            write_text(self.json, lambda stream: stream.write(_json_text(report, determinism)))
        self.write_events(report.result, report.plan.heading, stacks)

    def write_events(self, result: RunResult, title: str, stacks: CallStacks | None = None) -> None:
        """Write the files that hold a run's events."""
        if self.trace is not None:
            write_text(self.trace, lambda stream: write_chrome_trace(result, stream))
        if self.events is not None:
            write_text(self.events, lambda stream: write_events(result.events, stream))
        if self.timeline is not None:
            write_timeline(trace_of(result), self.timeline, title)
        if self.flight_recorder is not None:
            folder = Path(self.flight_recorder)
            with told(self.flight_recorder):
                write_flight_recorder(trace_of(result), folder, None if stacks is None else stacks.frames)


def run_file(
    file: str, seed: int | None, overrides: Sequence[str], outputs: Outputs, *, repeat: bool, show_output: bool
) -> int:
    """Run the scenario, and with `repeat` once more in a fresh process, and print the summary; the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    problems = outputs.problems([file])
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems]) from None
    if problems:
        raise ScenarioError(file, problems)
    if seed is not None:
        plan = replace(plan, seed=seed)

    from simdist.determinism import CallStacks, recording

    stacks = CallStacks() if outputs.flight_recorder is not None else None
    started = time.perf_counter()
    with LiveLine() as line:
        with (
            shared_writes() as written,
            recording() if repeat else nullcontext() as first,
            nullcontext() if stacks is None else observed_by(stacks),
        ):
            report = run_scenario(plan, echo=_echo(line) if show_output else None, progress=line.progress)
        line.say("comparing with a second run in a fresh process" if repeat else "")
        determinism = None if first is None else check_plan(plan, first)
    seconds = time.perf_counter() - started

    outputs.write(report, determinism, stacks)
    with page() as out:
        print_summary(out, report, determinism)
        print_shared(out, written.lines())
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


def _json_text(report: ScenarioReport, determinism: DeterminismReport | None) -> str:
    summary = report.summary()
    if determinism is not None:
        digest = determinism.other_digests[0] if determinism.other_digests else ""
        other = {"digest": digest, "hash_seed": determinism.hash_seed}
        summary["determinism"] = {"ok": determinism.ok, **other, "programs": list(determinism.programs)}
    return json.dumps(summary, indent=2) + "\n"


def timeline_problems(option: str, path: str) -> list[str]:
    """Why no picture can be written there."""
    lines = []
    if Path(path).suffix.lower() not in (".svg", ".png"):
        lines.append(f"{option} {shown_path(path)}: expected a file that ends in .svg or .png")
    if importlib.util.find_spec("matplotlib") is None:
        lines.append(f"{option}: needs matplotlib, which is not installed: pip install 'simdist[plot]'")
    return lines


def write_timeline(trace: Trace, path: str, title: str) -> None:
    """Write the picture of a trace, or say why it can't be and leave with exit code 2."""
    stream = io.BytesIO()
    save(timeline(trace, title=title), stream, Path(path).suffix)
    write_bytes(path, stream.getvalue())
