"""The same scenario on real processes: replay over Gloo or NCCL, the parity comparison, and calibration of cost models.

    Plan -> `compare/_portable` (what a machine can inject) -> `Job` -> `_launch` -> `_keeper`, whose end ends all
    keeper -> `_agent`: torchrun's, in a process of its own
    agent -> `rank/_supervisor`, one per rank -> `_worker`, the rank itself: `_recorder`, `_strikes`, `_scaling`
    worker -> `_journal` (events as in a simulation, one file per rank and life) -> `compare/_outcome` -> RunResult
    worker or torch's watchdog -> `_flight` (torch's own record) -> `compare/_match` (do both agree?) -> `_dumps`

A real run leaves the same `RunResult` as a simulated one, with real time in place of virtual time, so oracles, traces
and figures serve both. `compare/_parity` compares the two. The processes of a run report their progress to each other
through the `Board`, a small server in the process that launched them: it lets every rank begin at one instant, lets a
fault strike while all peers are inside an operation, and keeps the agent from stopping survivors where the scenario has
no restarts.

Nothing of a run outlives the process that started it, however that process ends: as soon as it is gone, the keeper
kills all processes below itself and removes the run's folder. A process with a parent in the run dies with its parent
(`_lifeline`).

Faults of links act in a switch in user space: with link faults each rank has a network namespace of its own
(`links/_namespaces`) whose packets pass through the `_wire`, under the `_conditions` of the moment. Faults of the
launcher's store act in each supervisor's `links/_proxy`.

Code that runs inside a rank imports only torch, the standard library and simdist's plain data types. Wall clocks and
real sleeps are used here and nowhere else. Open `compare/_replay.py` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily

if TYPE_CHECKING:
    from simdist.hardware._launch import Nodes
    from simdist.hardware.compare._calibrate import calibrate, rows_of
    from simdist.hardware.compare._compare import Point
    from simdist.hardware.compare._dumps import write_dumps
    from simdist.hardware.compare._match import Match
    from simdist.hardware.compare._page import html_page
    from simdist.hardware.compare._parity import ParityReport, check_parity, exit_code
    from simdist.hardware.compare._portable import NotReplayed
    from simdist.hardware.compare._replay import RealReport, replay, unavailable
    from simdist.hardware.links._namespaces import why_no_namespaces

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

# Loaded on first use: ranks and their supervisors import this package too, and need none of these.
_HOMES = {
    "Match": "compare._match",
    "Nodes": "_launch",
    "NotReplayed": "compare._portable",
    "ParityReport": "compare._parity",
    "Point": "compare._compare",
    "RealReport": "compare._replay",
    "calibrate": "compare._calibrate",
    "check_parity": "compare._parity",
    "exit_code": "compare._parity",
    "html_page": "compare._page",
    "replay": "compare._replay",
    "rows_of": "compare._calibrate",
    "unavailable": "compare._replay",
    "why_no_namespaces": "links._namespaces",
    "write_dumps": "compare._dumps",
}

__getattr__ = lazily(__name__, _HOMES)
