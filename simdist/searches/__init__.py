"""Searches for bugs that no test's faults show: other schedules, other faults, and the smallest run that still fails.

    program (a function, a scenario) -> attempts (a policy, faults) -> runs -> outcomes, causes -> report

- An attempt (`simdist.programs`) is one try: the policy of a run, with a seed of its own, and faults. A replay needs
  nothing else. `_attempts.py` draws schedules.
- `_outcomes.py` describes how a run ended: an outcome that runs may share, and the cause of a failure, by which
  failures are merged.
- `_swarm.py` draws plans of faults, `_guide.py` changes those that reached something new; `_fuzz.py` tries them,
  `_verdicts.py` decides which failures the faults explain, `_shrinking.py` makes the others smaller, `_tokens.py`
  writes them as one word, `_database.py` keeps them.
- Users call `_explore.py` and `_fuzz.py`. `_search.py` draws schedules, or gets them from `_depth_first.py`, which
  tries all that differ; `_turning_point.py` finds when a failure became inevitable; `_report.py` reports.
- `_run_many.py` draws nothing: it runs a program with given seeds; `_many_report.py` reports on these runs.
- `_trials.py` runs attempts, in this process or in others, and `simdist.programs` has the processes.

It uses `simdist.run`, `simdist.scenario` and the policies of `simdist.kernel`: there is no runner of its own, and each
failure replays with `simdist.run` or `simdist run`. Open `_search.py` first.
"""

from simdist.programs import Attempt, PlanProgram
from simdist.searches._attempts import Facts, Moment, schedule
from simdist.searches._depth_first import Coverage
from simdist.searches._explore import explore, explore_plan
from simdist.searches._fuzz import Tries, fuzz, fuzz_plan
from simdist.searches._fuzz_report import Bug, FuzzReport
from simdist.searches._many_report import FailedRuns, ManyReport, SingleRun
from simdist.searches._outcomes import Cause
from simdist.searches._report import ExploreReport, Outcome, Schedule, SearchReport, TurningPoint
from simdist.searches._run_many import run_many, run_plan_many
from simdist.searches._shrinking import ShrunkOrder
from simdist.searches._swarm import (
    DEADLY,
    FAMILIES,
    Drawn,
    families_of,
    family_problems,
    fitting_fault,
    no_fault_fits,
    plan_of_faults,
)
from simdist.searches._tokens import read_token, token_of
from simdist.searches._trials import Trial
from simdist.searches._verdicts import Verdict

__all__ = [
    "DEADLY",
    "FAMILIES",
    "Attempt",
    "Bug",
    "Cause",
    "Coverage",
    "Drawn",
    "ExploreReport",
    "Facts",
    "FailedRuns",
    "FuzzReport",
    "ManyReport",
    "Moment",
    "Outcome",
    "PlanProgram",
    "Schedule",
    "SearchReport",
    "ShrunkOrder",
    "SingleRun",
    "Trial",
    "Tries",
    "TurningPoint",
    "Verdict",
    "explore",
    "explore_plan",
    "families_of",
    "family_problems",
    "fitting_fault",
    "fuzz",
    "fuzz_plan",
    "no_fault_fits",
    "plan_of_faults",
    "read_token",
    "run_many",
    "run_plan_many",
    "schedule",
    "token_of",
]
