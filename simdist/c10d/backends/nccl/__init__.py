"""NCCL on virtual devices: its words, its order of additions, its streams (torch 2.13, NCCL 2.29.7).

`_group.py` and `_reductions.py` have ProcessGroupNCCL's calls, `_launching.py` how they are put on streams,
`_membership.py` the communicators, made in the first call; `_offspring.py` splits and shrinks.
`_arguments.py` refuses calls, `_errors.py` has the texts of NCCL's errors, `_words.py` what ranks see of what goes
wrong beside their calls, `_environment.py` is what NCCL reads there.

In `kernels`: `_folds.py` adds up as one ring over all ranks, `_algorithm.py` says who gets what and what it costs,
`_collisions.py` (over `_fifos.py`) what becomes of calls that do not fit, `_preferences.py` what NCCL's own variables
leave of that. In `watch`: `_watchdog.py` ends what hangs, `_monitor.py`, `_desync.py`, `_remote_errors.py` and
`_recorder.py` report it, `_information.py` and `_debug_lines.py` (NCCL_DEBUG) report the rest; `_watched.py` is the
group as these know it, and its end, `_transport.py` what ranks see of a peer that is gone, `_rank.py` what NCCL keeps
per process. How parts of a collective meet on streams is the engine's (`c10d/engine/_streamed.py`).
"""

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._group import NcclProcessGroup
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._options import DEFAULT_TIMEOUT, NcclOptions
from simdist.c10d.backends.nccl._words import NcclFailure
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.backends.nccl.kernels._algorithm import NcclAlgorithm
from simdist.c10d.engine import Backend, Completion, P2PWork

__all__ = [
    "DEFAULT_TIMEOUT",
    "NCCL",
    "NcclAlgorithm",
    "NcclFailure",
    "NcclOptions",
    "NcclProcessGroup",
    "log",
]

NCCL = Backend(
    name="nccl",
    arguments=_arguments,  # type: ignore[arg-type]  # its group checks for itself
    algorithm=NcclAlgorithm(),
    failure=NcclFailure(),
    completion=Completion(work=NcclWork, message=P2PWork, on_streams=True),
)
