"""`simdist launch`: torchrun's command line, over simulated nodes.

    words -> `_options` (torchrun's own parser, and ours) -> Launch -> `_run` (a world) -> RunResult -> `_failures`

Every node and every worker is simulated in this process, so that one command line is enough for all nodes. The script
runs as `__main__` on each rank, with modules of its own (`simdist.process.Isolation`), under the agent that restarts
workers and forms a new group from the remaining nodes (`simdist.world._agent`).

Workers get the variables of the launcher that `--launcher` names (`_launchers`), and their output has torchrun's places
(`_logs`).

In doubt: each life has a store of its own. Under torchrun 2.13 all lives of a job share one store, unless
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set: workers of the second life may find addresses of the first there, and fail
again with "Connection refused", depending on timing. The fault `StoreStale` does so here.

Open `_options.py` for accepted and refused options, `_run.py` for the steps of a run.
"""

from simdist.launch._failures import failure_summary, restart_lines
from simdist.launch._options import LaunchError, parsed
from simdist.launch._plan import Launch
from simdist.launch._run import free_again, launch, log_folder, repeat, workers_path

__all__ = [
    "Launch",
    "LaunchError",
    "failure_summary",
    "free_again",
    "launch",
    "log_folder",
    "parsed",
    "repeat",
    "restart_lines",
    "workers_path",
]
