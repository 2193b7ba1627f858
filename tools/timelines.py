"""Draws the timelines that the pages show, from the scenarios themselves: `python tools/timelines.py`.

A test draws them again and compares byte for byte, so run this, and look at the pictures, whenever they change.
"""

from __future__ import annotations

from pathlib import Path

from simdist.scenario import load, run_scenario
from simdist.trace import save, timeline, trace_of

__all__ = ["FOLDER", "SCENARIOS", "draw", "main"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "simdist" / "docs" / "pictures"
SCENARIOS = ("ddp_crash_resume", "straggler", "deadlock")


def draw(scenario: str, file: Path) -> None:
    """Run a scenario and write its timeline."""
    plan = load(str(ROOT / "scenarios" / f"{scenario}.toml"))
    figure = timeline(trace_of(run_scenario(plan).result), title=f"{plan.name}: {plan.title}")
    save(figure, file)


def main() -> None:
    """Draw them all."""
    FOLDER.mkdir(exist_ok=True)
    for scenario in SCENARIOS:
        draw(scenario, FOLDER / f"{scenario}.svg")
        print(FOLDER / f"{scenario}.svg")


if __name__ == "__main__":
    main()
