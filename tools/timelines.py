"""Draws the pages' pictures of runs from the scenarios: `python tools/timelines.py`.

A test draws them again and compares byte for byte, so run this when they change, and look at the new pictures.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simdist.device import KernelTimes
from simdist.faults import HostCrash
from simdist.scenario import load, run_scenario
from simdist.sweeps import picture
from simdist.trace import save, stream_timeline, timeline, trace_of, wait_graph
from simdist.world import observed_by

__all__ = ["DRAWN", "FOLDER", "draw", "draw_crash", "draw_graph", "draw_streams", "main"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "simdist" / "docs" / "pictures"


def draw(scenario: str, file: Path) -> None:
    """Run a scenario and write its timeline."""
    plan = load(str(ROOT / "scenarios" / f"{scenario}.toml"))
    figure = timeline(trace_of(run_scenario(plan).result), title=f"{plan.name}: {plan.title}")
    save(figure, file)


def draw_graph(scenario: str, file: Path) -> None:
    """Run a scenario and write the graph of the ranks that wait for each other when it goes wrong."""
    plan = load(str(ROOT / "scenarios" / f"{scenario}.toml"))
    save(wait_graph(trace_of(run_scenario(plan).result), title=f"{plan.name}: {plan.title}"), file)


def draw_streams(scenario: str, file: Path) -> None:
    """Run a scenario and write the timeline of its devices, stream by stream."""
    plan = load(str(ROOT / "scenarios" / f"{scenario}.toml"))
    with observed_by(KernelTimes()) as kernels:
        result = run_scenario(plan).result
    save(stream_timeline(trace_of(result), kernels.runs(), title=f"{plan.name}: {plan.title}"), file)


def draw_crash(scenario: str, file: Path) -> None:
    """Cut the power while a checkpoint is written without a sync, and write the picture that a sweep makes."""
    plan = load(str(ROOT / "scenarios" / f"{scenario}.toml"), overrides=['workload.kwargs.way="no_fsync"'])
    crash = HostCrash(rank=0, at_step=2, down_ns=10**9, all_hosts=True, outcome=0)
    result = run_scenario(replace(plan, faults=(crash,))).result
    file.write_text(picture(result, "All hosts lose power in step 2; the checkpoint was renamed and never synced"))


DRAWN = {
    "ddp_crash_resume": draw,
    "straggler": draw,
    "deadlock": draw,
    "mismatched_order": draw_graph,
    "overlap": draw_streams,
    "sweep_savers": draw_crash,
}
"""The scenarios whose pictures the pages show, and the function that draws each."""


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for scenario, drawn in DRAWN.items():
        drawn(scenario, FOLDER / f"{scenario}.svg")
        print(FOLDER / f"{scenario}.svg")


if __name__ == "__main__":
    main()
