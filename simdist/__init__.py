"""simdist: every rank of a torch.distributed program in one process, in virtual time, with injected faults.

    import simdist

    result = simdist.run(train, world_size=4, faults=[simdist.faults.Crash(rank=2, at_step=12)])
    result.raise_for_failure()

`train` is ordinary code that imports torch.distributed. Packages, lowest first: `kernel` (virtual time and tasks),
`cluster` (hosts and links), `storage` (contents of a disk), `process` (makes a task look like a process), `files` (the
calls by which programs reach a disk), `device` (virtual CUDA devices), `c10d` (groups, stores), `faults`, `trace`,
`judges` (conditions on any training), `determinism`, `scenario`, `programs` (programs that run many times), `sweeps`
(crashes at every moment), `searches` (schedules searched, plans shrunk), `cli`. Imports point one way, towards
`kernel`; each takes place at the first use.

PYTEST_DONT_REWRITE: pytest on ranks finds simdist already imported, and this avoids its warning.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the value for type checkers; `typing` would take nearly all the time of this import

if TYPE_CHECKING:
    from simdist import cluster, faults, storage
    from simdist.api import point, run, spawn, step
    from simdist.comparisons import AgreeReport, Layout, ResumeReport, agree, resume
    from simdist.determinism import DeterminismReport, check_determinism
    from simdist.errors import SimdistError
    from simdist.result import Event, FaultResult, JudgeFinding, RankResult, RunResult
    from simdist.searches import ExploreReport, FuzzReport, ManyReport, explore, fuzz, run_many
    from simdist.shared import shared_writes
    from simdist.sweeps import SweepReport, sweep
    from simdist.world import always, samples, sometimes, state

__all__ = [
    "AgreeReport",
    "DeterminismReport",
    "Event",
    "ExploreReport",
    "FaultResult",
    "FuzzReport",
    "JudgeFinding",
    "Layout",
    "ManyReport",
    "RankResult",
    "ResumeReport",
    "RunResult",
    "SimdistError",
    "SweepReport",
    "__version__",
    "agree",
    "always",
    "check_determinism",
    "cluster",
    "explore",
    "faults",
    "fuzz",
    "point",
    "resume",
    "run",
    "run_many",
    "samples",
    "shared_writes",
    "sometimes",
    "spawn",
    "state",
    "step",
    "storage",
    "sweep",
]

__version__ = "0.2.0"

_HOMES = {
    "AgreeReport": "simdist.comparisons",
    "JudgeFinding": "simdist.result",
    "Layout": "simdist.comparisons",
    "agree": "simdist.comparisons",
    "ResumeReport": "simdist.comparisons",
    "resume": "simdist.comparisons",
    "always": "simdist.world",
    "sometimes": "simdist.world",
    "DeterminismReport": "simdist.determinism",
    "Event": "simdist.result",
    "ExploreReport": "simdist.searches",
    "FaultResult": "simdist.result",
    "FuzzReport": "simdist.searches",
    "ManyReport": "simdist.searches",
    "RankResult": "simdist.result",
    "RunResult": "simdist.result",
    "SimdistError": "simdist.errors",
    "SweepReport": "simdist.sweeps",
    "check_determinism": "simdist.determinism",
    "explore": "simdist.searches",
    "fuzz": "simdist.searches",
    "point": "simdist.api",
    "run": "simdist.api",
    "run_many": "simdist.searches",
    "samples": "simdist.world",
    "shared_writes": "simdist.shared",
    "spawn": "simdist.api",
    "state": "simdist.world",
    "step": "simdist.api",
    "sweep": "simdist.sweeps",
}


def __getattr__(name: str) -> object:
    import importlib

    if name in ("cluster", "faults", "storage"):
        return importlib.import_module(f"simdist.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)  # called once for each name
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
