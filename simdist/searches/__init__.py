"""Searches for bugs that nobody injected: other schedules, other faults, and the smallest run that still fails.

    program (a function, a scenario) -> attempts (a policy, faults) -> runs -> outcomes, causes -> report

- `_attempts.py` says what is tried: the policy of a run, with a seed of its own, and faults. An attempt is all that a
  replay needs.
- `_programs.py` runs an attempt, `_outcomes.py` says what became of it: an outcome that runs may share, and the cause
  of a failure, by which failures are merged.
- `_search.py` draws schedules; `_turning_point.py` finds when a failure became inevitable; `_report.py` says it.

It rests on `simdist.run`, `simdist.scenario` and the policies of `simdist.kernel`: there is no runner of its own, and
each failure replays with `simdist.run` or `simdist run`. Open `_search.py` first.
"""

from simdist.searches._attempts import Attempt, Facts, schedule
from simdist.searches._outcomes import Cause
from simdist.searches._report import ExploreReport, Outcome, Schedule, TurningPoint
from simdist.searches._search import explore, explore_plan

__all__ = [
    "Attempt",
    "Cause",
    "ExploreReport",
    "Facts",
    "Outcome",
    "Schedule",
    "TurningPoint",
    "explore",
    "explore_plan",
    "schedule",
]
