"""The same scenario on real processes: replay over Gloo or NCCL, the parity comparison, the calibration of cost models.

    Plan -> `_portable` (what a machine can inject) -> `Job` -> `_launch` -> `_keeper`, whose end is the end of all
    keeper -> `_agent`: torchrun's, in a process of its own
    agent -> `_supervisor`, one per rank -> `_worker`, the rank itself: `_recorder`, `_strikes`, `_scaling`
    worker -> `_journal` (events as in a simulation, one file per rank and life) -> `_outcome` -> RunResult
    worker or torch's watchdog -> `_flight` (torch's own record) -> `_match` (do both recorders agree?) -> `_dumps`

A real run leaves the same `RunResult` as a simulated one, with real time in place of virtual time, so oracles, traces
and figures serve both. `_parity` compares the two. The processes of a run tell each other where they are through the
`Board`, a small server in the process that launched them: it lets every rank begin at one instant, lets a fault strike
while all peers are inside an operation, and keeps the agent from stopping survivors where the scenario has no restarts.

Nothing of a run outlives the process that started it, however that ends: the keeper kills what lives below it and
removes the run's folder as soon as its starter is gone, and a process with a parent in the run dies with it
(`_lifeline`).

Faults of links lie on a switch in user space: with link faults each rank has a network namespace of its own
(`_namespaces`) whose packets pass through the `_wire`, under the `_conditions` of the moment. Faults of the launcher's
store lie in wait in each supervisor's `_proxy`.

What runs inside a rank imports torch, the standard library and simdist's plain data types only. Wall clocks and real
sleeps belong here and nowhere else. Open `_replay.py` first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simdist.hardware._calibrate import calibrate, rows_of
    from simdist.hardware._compare import Point
    from simdist.hardware._dumps import write_dumps
    from simdist.hardware._launch import Nodes
    from simdist.hardware._match import Match
    from simdist.hardware._namespaces import why_no_namespaces
    from simdist.hardware._page import html_page
    from simdist.hardware._parity import ParityReport, check_parity, exit_code
    from simdist.hardware._portable import NotReplayed
    from simdist.hardware._replay import RealReport, replay, unavailable

__all__ = [
    "Match",
    "Nodes",
    "NotReplayed",
    "ParityReport",
    "Point",
    "RealReport",
    "calibrate",
    "check_parity",
    "exit_code",
    "html_page",
    "replay",
    "rows_of",
    "unavailable",
    "why_no_namespaces",
    "write_dumps",
]

# Loaded on first use: ranks and their supervisors import this package too, and need none of it.
_HOMES = {
    "Match": "simdist.hardware._match",
    "Nodes": "simdist.hardware._launch",
    "NotReplayed": "simdist.hardware._portable",
    "ParityReport": "simdist.hardware._parity",
    "Point": "simdist.hardware._compare",
    "RealReport": "simdist.hardware._replay",
    "calibrate": "simdist.hardware._calibrate",
    "check_parity": "simdist.hardware._parity",
    "exit_code": "simdist.hardware._parity",
    "html_page": "simdist.hardware._page",
    "replay": "simdist.hardware._replay",
    "rows_of": "simdist.hardware._calibrate",
    "unavailable": "simdist.hardware._replay",
    "why_no_namespaces": "simdist.hardware._namespaces",
    "write_dumps": "simdist.hardware._dumps",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
