"""Programs that run many times: a function or a scenario, with different faults and schedules each time.

Sweeps and searches share them. `_attempt.py` describes one run: how it differs, its longest duration, and its result;
`_function.py` and `_plan.py` run it. Expectations compare later runs with the first, which has no faults. `_workers.py`
shares tasks among processes, each of which has its own program: those of `_processes.py` on this machine, those of
`_cluster.py` on the machines of a Dask cluster.
"""

from simdist.programs._attempt import Attempt, Bounds, EndlessError, Problems, Program, Ran, ran_within
from simdist.programs._function import FunctionProgram, Seen, count_problems, said_by, setting_problems, watched
from simdist.programs._interrupted import kept_when_interrupted
from simdist.programs._plan import PlanProgram, overrides_of
from simdist.programs._pools import Worker
from simdist.programs._quiet import no_logs_of_ranks
from simdist.programs._workers import FEW, Workers, cores, died_words, workers_problems

__all__ = [
    "FEW",
    "Attempt",
    "Bounds",
    "EndlessError",
    "FunctionProgram",
    "PlanProgram",
    "Problems",
    "Program",
    "Ran",
    "Seen",
    "Worker",
    "Workers",
    "cores",
    "count_problems",
    "died_words",
    "kept_when_interrupted",
    "no_logs_of_ranks",
    "overrides_of",
    "ran_within",
    "said_by",
    "setting_problems",
    "watched",
    "workers_problems",
]
