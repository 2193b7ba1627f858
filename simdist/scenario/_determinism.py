"""The determinism check of a scenario: `simdist.determinism` with a plan as the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist.scenario._plan import Plan
from simdist.scenario._runner import run_scenario

if TYPE_CHECKING:
    from simdist.determinism import DeterminismReport, Recording

__all__ = ["check_plan", "repeat"]


def check_plan(plan: Plan, first: Recording) -> DeterminismReport:
    """Repeat `plan`, which `first` has recorded, in a fresh process under another hash seed, and compare.

    Raises:
        SimdistError: the second process did not reach a result.
    """
    from simdist.determinism import Job, check_recording

    job = Job(__name__, "repeat", (plan,))
    return check_recording(first, job, lambda: repeat(plan), target=plan.name)


def repeat(plan: Plan) -> None:
    """Run the plan again."""
    run_scenario(plan)
