"""The determinism check: the same scenario in a fresh process, under another hash seed, event for event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from simdist.errors import SimdistError
from simdist.scenario._runner import ScenarioReport
from simdist.trace import event_line

__all__ = ["Determinism", "Difference", "check_determinism"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event that is not the same: its position, and how each run has it. None: that run has ended."""

    index: int
    here: dict[str, Any] | None
    there: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Determinism:
    """How a run compares with its repetition in a fresh process under `hash_seed`."""

    digest: str
    other_digest: str
    hash_seed: str
    difference: Difference | None

    @property
    def ok(self) -> bool:
        """True if both runs are the same, event for event."""
        return self.digest == self.other_digest and self.difference is None


def check_determinism(report: ScenarioReport) -> Determinism:
    """Repeat `report`'s run in a fresh Python process with another PYTHONHASHSEED, and compare the events.

    Raises:
        SimdistError: the second process did not get as far as a result.
    """
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with tempfile.TemporaryDirectory(prefix="simdist-") as folder:
        summary, events = Path(folder) / "summary.json", Path(folder) / "events.jsonl"
        words = [*report.plan.replay_words[1:], "--json", str(summary), "--events", str(events)]
        child = subprocess.run(
            [sys.executable, "-m", "simdist", *words],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": _python_path()},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if not summary.exists() or not events.exists():
            tail = "\n".join(f"  {line}" for line in child.stderr.rstrip().splitlines()[-12:])
            raise SimdistError(f"the second run, in a fresh process, ended with exit code {child.returncode}:\n{tail}")
        other_digest = str(json.loads(summary.read_text("utf-8"))["digest"])
        return Determinism(report.result.digest, other_digest, hash_seed, _first_difference(report, events))


def _first_difference(report: ScenarioReport, events: Path) -> Difference | None:
    ours = (event_line(event) for event in report.result.events)
    with events.open(encoding="utf-8") as lines:
        theirs = (line.rstrip("\n") for line in lines)
        for index, (here, there) in enumerate(zip_longest(ours, theirs)):
            if here != there:
                return Difference(index, _event(here), _event(there))
    return None


def _event(line: str | None) -> dict[str, Any] | None:
    return None if line is None else dict(json.loads(line))


def _python_path() -> str:
    """Where this simdist was found, ahead of what PYTHONPATH says already."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
