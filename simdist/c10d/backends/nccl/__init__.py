"""NCCL on virtual devices: its texts, its order of additions, its streams (torch 2.13, NCCL 2.29.7).

`_group.py` and `_reductions.py` have ProcessGroupNCCL's calls. `_launching.py` puts them on streams, `_membership.py`
makes the communicators in the first call, `_offspring.py` splits and shrinks groups, `_arguments.py` refuses calls.
`_errors.py` has the texts of NCCL's errors, `_words.py` the errors that arise outside of calls, and `_environment.py`
the environment variables.

In `kernels`: `_folds.py` adds up as one ring over all ranks, `_algorithm.py` has results and costs, `_collisions.py`
(over `_fifos.py`) has the results of calls that do not match, and `_preferences.py` reads NCCL's own variables. In
`watch`: `_watchdog.py` ends hanging processes; `_monitor.py`, `_desync.py`, `_remote_errors.py` and `_recorder.py`
report the hang; `_information.py` and `_debug_lines.py` (NCCL_DEBUG) report the rest. `_watched.py` is the interface of
the group for them, and its shutdown, `_transport.py` has the errors of lost peers, `_rank.py` NCCL's state per process.
The engine matches the parts of a collective on streams (`c10d/engine/_streamed.py`).
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
