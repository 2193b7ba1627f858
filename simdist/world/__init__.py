"""One world from start to end: the engine under `simdist.run`, `simdist.spawn`, scenarios and the pytest plugin.

Open `_world.py` first: it puts together kernel, processes, collectives, faults and disks, runs them, and makes a result
at the end; `_spec.py` has the settings that start one. `_agent.py` is torchrun's agent on each host, `_torchrun.py` the
environment that torchrun sets, `_spawn.py` the result of `simdist.spawn`, `_own_arguments.py` what a rank gets of the
arguments of its function. Programs report more with `_report.py` (state
and samples) and `_assertions.py` (always and sometimes); `_observer.py` lets observers watch every world of a block.
"""

from typing import TYPE_CHECKING

from simdist._lazy import lazily

if TYPE_CHECKING:
    from simdist.world._assertions import always, sometimes
    from simdist.world._observer import WorldEnded, observed_by
    from simdist.world._own_arguments import OwnArguments, on_each_rank
    from simdist.world._report import samples, state
    from simdist.world._spawn import SpawnContext
    from simdist.world._spec import WorldSpec
    from simdist.world._world import World

__all__ = [
    "OwnArguments",
    "SpawnContext",
    "World",
    "WorldEnded",
    "WorldSpec",
    "always",
    "observed_by",
    "on_each_rank",
    "samples",
    "sometimes",
    "state",
]

# Loaded on first use: observers need no torch.
_HOMES = {
    "OwnArguments": "_own_arguments",
    "SpawnContext": "_spawn",
    "World": "_world",
    "WorldEnded": "_observer",
    "WorldSpec": "_spec",
    "always": "_assertions",
    "observed_by": "_observer",
    "on_each_rank": "_own_arguments",
    "samples": "_report",
    "sometimes": "_assertions",
    "state": "_report",
}
__getattr__ = lazily(__name__, _HOMES)
