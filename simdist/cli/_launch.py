"""`simdist launch`: runs a script as torchrun does, and reports the result."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from simdist.cli._console import say
from simdist.cli._outputs import output_problems
from simdist.cli._run import PICTURES, Outputs, picture_problems
from simdist.launch import (
    Launch,
    LaunchError,
    failure_summary,
    free_again,
    launch,
    parsed,
    repeat,
    restart_lines,
    workers_path,
)
from simdist.launch import log_folder as folder_for
from simdist.result import RunResult, report_of
from simdist.shared import shared_writes
from simdist.trace import events_of
from simdist.values import format_duration
from simdist.world import observed_by

if TYPE_CHECKING:
    from simdist.determinism import Recording

__all__ = ["launch_words"]

_UNJUDGED = (
    "--judge watches the ranks that a launcher starts, not processes that the script starts itself; "
    "launch the training with --nproc-per-node to have it judged"
)


def launch_words(words: Sequence[str]) -> int:
    """Run the command line's words, and return the exit code, which is torchrun's.

    Raises:
        LaunchError: a word is wrong; nothing has run then.
    """
    from simdist.determinism import recording

    problems: list[str] = []
    try:
        plan, options = parsed(words)
    except LaunchError as error:
        raise LaunchError([*error.problems, *problems]) from None
    outputs = Outputs(
        trace=options.trace,
        events=options.events,
        timeline=options.timeline,
        graph=options.graph,
        streams=options.streams,
    )
    pictures = {f"--{name}": getattr(options, name) for name in PICTURES}
    files = {"--trace": options.trace, "--events": options.events, **pictures}
    inputs = [each for each in (plan.script, options.faults) if each is not None]
    problems = picture_problems(pictures)
    if options.streams is not None and plan.device_model is None:
        problems.append("--streams: kernels take no time without a compute model; add --device-model h100")
    problems += output_problems(files, folders={"--log-dir": plan.log_dir}, inputs=inputs)
    if problems:
        raise LaunchError(problems)
    with workers_path(), folder_for(plan) as folder:
        kernels = outputs.kernel_times()
        with (
            shared_writes() as written,
            recording() if options.check_determinism else nullcontext() as first,
            nullcontext() if kernels is None else observed_by(kernels),
        ):
            result = launch(plan, folder, out=sys.stdout, err=sys.stderr)
            summary = failure_summary(plan, result, folder)
        outputs.write_events(result, plan.script, kernels=kernels)
        for line in restart_lines(result):
            say(f"simdist: {line}", err=True)
        if not result.ok:
            _report(result, summary)
        for line in result.programs:
            say(f"simdist: outside the simulation: {line}", err=True)
        for line in written.lines():
            say(f"simdist: ranks left in state that they share: {line}", err=True)
        if plan.judges and plan.launcher == "python" and events_of(result.events, "child-start"):
            say(f"simdist: {_UNJUDGED}", err=True)
        same = first is None or _repeats(first, plan, folder)
    ranks = f"{len(result.ranks)} {'rank' if len(result.ranks) == 1 else 'ranks'}"
    say(
        f"simdist: {ranks}, {format_duration(result.virtual_time_ns)} of virtual time, digest {result.digest}", err=True
    )
    return 0 if result.ok and same else 1


def _repeats(first: Recording, plan: Launch, folder: str) -> bool:
    """Return True if another run in a fresh process is the same; prints that, or where they differ."""
    from simdist.determinism import Job, check_recording

    job = Job("simdist.launch", "repeat", (plan, folder))
    with free_again(folder):
        report = check_recording(first, job, lambda: repeat(plan, folder), target=plan.script)
    for line in report.lines():
        say(line, err=True)
    if report.ok:
        say(f"determinism: the same digest in a fresh process with PYTHONHASHSEED={report.hash_seed}", err=True)
    return report.ok


def _report(result: RunResult, summary: str) -> None:
    if summary:
        say(f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {summary}", err=True)
    say(str(report_of(result)), err=True)
