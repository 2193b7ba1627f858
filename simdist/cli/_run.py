"""`simdist run`: loads, runs, judges, and writes the requested files."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from simdist.cli._console import page
from simdist.cli._explore import loaded, print_report, write_reports
from simdist.cli._interrupts import exit_code, searched
from simdist.cli._outputs import output_problems, reported, shown_path, write_bytes, write_text
from simdist.cli._progress import LiveLine
from simdist.cli._summary import print_shared, print_summary
from simdist.errors import ScenarioError
from simdist.result import RunResult
from simdist.scenario import ScenarioReport, check_plan, format_duration, load, run_scenario
from simdist.searches import ManyReport, run_plan_many
from simdist.shared import shared_writes
from simdist.trace import (
    Trace,
    save,
    stream_timeline,
    timeline,
    trace_of,
    wait_graph,
    write_chrome_trace,
    write_events,
    write_flight_recorder,
)
from simdist.values import Whole, findings_of
from simdist.world import observed_by

if TYPE_CHECKING:
    from simdist.determinism import CallStacks, DeterminismReport
    from simdist.device import KernelTimes

__all__ = ["PICTURES", "Outputs", "picture_problems", "run_file", "run_seeds", "write_graph", "write_streams"]
__all__ += ["write_timeline"]


PICTURES = ("timeline", "graph", "streams")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files to write, if any."""

    json: str | None = None
    trace: str | None = None
    events: str | None = None
    timeline: str | None = None
    graph: str | None = None
    streams: str | None = None
    flight_recorder: str | None = None  # a folder

    def problems(self, inputs: Sequence[str] = ()) -> list[str]:
        """Return why files can't be written, found by opening them; new files are removed again."""
        lines = picture_problems({f"--{name}": getattr(self, name) for name in PICTURES})
        files = {f"--{name}": getattr(self, name) for name in ("json", "trace", "events", *PICTURES)}
        folders = {"--flight-recorder": self.flight_recorder}
        return lines + output_problems(files, folders=folders, inputs=inputs)

    def kernel_times(self) -> KernelTimes | None:
        """Return an observer of the run if the streams of devices are drawn."""
        if self.streams is None:
            return None
        from simdist.device import KernelTimes

        return KernelTimes()

    def write(
        self,
        report: ScenarioReport,
        determinism: DeterminismReport | None,
        stacks: CallStacks | None,
        kernels: KernelTimes | None,
    ) -> None:
        """Write the files; `stacks` has the places of calls for Flight Recorder's dumps."""
        if self.json is not None:
            write_text(self.json, lambda stream: stream.write(_json_text(report, determinism)))
        self.write_events(report.result, report.plan.heading, stacks, kernels)

    def write_events(
        self,
        result: RunResult,
        title: str,
        stacks: CallStacks | None = None,
        kernels: KernelTimes | None = None,
    ) -> None:
        """Write the files with a run's events."""
        if self.trace is not None:
            write_text(self.trace, lambda stream: write_chrome_trace(result, stream))
        if self.events is not None:
            write_text(self.events, lambda stream: write_events(result.events, stream))
        if self.timeline is not None:
            write_timeline(trace_of(result), self.timeline, title)
        if self.graph is not None:
            write_graph(trace_of(result), self.graph, title)
        if self.streams is not None and kernels is not None:
            write_streams(trace_of(result), kernels, self.streams, title)
        if self.flight_recorder is not None:
            folder = Path(self.flight_recorder)
            with reported(self.flight_recorder):
                write_flight_recorder(trace_of(result), folder, None if stacks is None else stacks.frames)


def run_file(
    file: str, seed: int | None, overrides: Sequence[str], outputs: Outputs, *, repeat: bool, show_output: bool
) -> int:
    """Run the scenario, with `repeat` again in a fresh process, print the summary, and return the exit code.

    Raises:
        ScenarioError: the file, an override or an output path is bad; nothing has run then.
    """
    problems = outputs.problems([file])
    try:
        plan = load(file, overrides=overrides)
    except ScenarioError as error:
        raise ScenarioError(file, [*error.problems, *problems]) from None
    if outputs.streams is not None and plan.cluster.get("device_model") is None:
        problems.append(
            '--streams: kernels take no time without a compute model; give the file a section [device], model = "h100"'
        )
    if problems:
        raise ScenarioError(file, problems)
    if seed is not None:
        plan = replace(plan, seed=seed)

    from simdist.determinism import CallStacks, recording

    stacks = CallStacks() if outputs.flight_recorder is not None else None
    kernels = outputs.kernel_times()
    started = time.perf_counter()
    with LiveLine() as line:
        with (
            shared_writes() as written,
            recording() if repeat else nullcontext() as first,
            nullcontext() if stacks is None else observed_by(stacks),
            nullcontext() if kernels is None else observed_by(kernels),
        ):
            report = run_scenario(plan, echo=_echo(line) if show_output else None, progress=line.progress)
        line.say("comparing with a second run in a fresh process" if repeat else "")
        determinism = None if first is None else check_plan(plan, first)
    seconds = time.perf_counter() - started

    outputs.write(report, determinism, stacks, kernels)
    with page() as out:
        print_summary(out, report, determinism)
        print_shared(out, written.lines())
        out.print(f"real time    {seconds:.2f} s")
    return 0 if report.ok and (determinism is None or determinism.ok) else 1


def run_seeds(
    file: str,
    seeds: range,
    overrides: Sequence[str],
    *,
    workers: int | str | None,
    until_failure: bool,
    json_path: str | None,
    junit: str | None,
) -> int:
    """Run the scenario once for each seed, print the results of the runs, and return the exit code.

    Raises:
        ScenarioError: the file, an override, a seed or an output path is bad; nothing has run then.
    """
    problems = output_problems({"--json": json_path, "--junit": junit}, inputs=[file])
    problems += [f"--seeds: the last one, {each.text}" for each in findings_of(Whole(most=2**64 - 1), seeds[-1])]
    plan = loaded(file, None, overrides, problems)

    def search(line: LiveLine) -> ManyReport:
        def progress(done: int, count: int, causes: int) -> None:
            line.say(f"{done} of {count} runs   {causes} causes of failures   {line.rate(done):,.0f} runs a minute")

        return run_plan_many(plan, seeds, workers=workers, until_failure=until_failure, progress=progress)

    report, seconds, interruption = searched(search)
    write_reports("run", plan, report, seconds, json_path=json_path, junit=junit)
    rate, per_core = 60 * report.runs / max(seconds, 1e-6), report.runs_a_minute_per_core
    print_report(plan, report, f"{seconds:.2f} s, {rate:,.0f} runs a minute, {per_core:,.0f} per core")
    return exit_code(report.ok, interruption)


def _echo(line: LiveLine) -> Callable[[int, int, str, str], None]:
    # Bound now: `sys.stdout` belongs to the ranks while they run.
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


def picture_problems(wanted: Mapping[str, str | None]) -> list[str]:
    """Return why pictures can't be written; `wanted` holds their paths by option."""
    files = {option: path for option, path in wanted.items() if path is not None}
    lines = [
        f"{option} {shown_path(path)}: expected a file that ends in .svg or .png"
        for option, path in files.items()
        if Path(path).suffix.lower() not in (".svg", ".png")
    ]
    if files and importlib.util.find_spec("matplotlib") is None:
        options = " and ".join(files)
        lines.append(f"{options}: needs matplotlib, which is not installed: pip install 'simdist[plot]'")
    return lines


def write_timeline(trace: Trace, path: str, title: str) -> None:
    """Write the timeline of a trace; if that fails, print the reason and exit with code 2."""
    _write_picture(lambda out: save(timeline(trace, title=title), out, Path(path).suffix), path)


def write_graph(trace: Trace, path: str, title: str, at_ns: int | None = None) -> None:
    """Write which ranks wait for which at a moment; if that fails, print the reason and exit with code 2."""
    _write_picture(lambda out: save(wait_graph(trace, title=title, at_ns=at_ns), out, Path(path).suffix), path)


def write_streams(trace: Trace, kernels: KernelTimes, path: str, title: str) -> None:
    """Write the timeline of the devices' streams; if that fails, print the reason and exit with code 2."""
    figure = stream_timeline(trace, kernels.runs(), title=title)
    _write_picture(lambda out: save(figure, out, Path(path).suffix), path)


def _write_picture(save_to: Callable[[IO[bytes]], None], path: str) -> None:
    stream = io.BytesIO()
    save_to(stream)
    write_bytes(path, stream.getvalue())
