"""For authors of tests: the pytest plugin, and existing multi-process suites on simulated ranks.

pytest loads `plugin` (entry point `simdist`): the marker `@pytest.mark.simdist`, the fixture `sim` and the options
`--simdist-...`. `MultiProcessTestCase`, `MultiThreadedTestCase` and `spawn_threads_and_init_comms` replace torch's of
the same name: the same test methods, one changed import. `simulated` makes such a class from an existing one.
`run_tests` runs a whole class and reports on each test; `distributed_test_case` is the suite that the torch wheel
ships. Open `plugin.py` first, then `_plugin/__init__.py`; for the test cases `_multiprocess.py`.

Every name is loaded when it is first used: pytest imports this package in each of its runs, and torch takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily

if TYPE_CHECKING:
    from simdist.testing._conformance import Outcome, Report, run_tests
    from simdist.testing._distributed_test import distributed_test_case
    from simdist.testing._multiprocess import MultiProcessTestCase, SimulatedProcesses, simulated
    from simdist.testing._multithreaded import MultiThreadedTestCase, SimulatedThreads, spawn_threads_and_init_comms
    from simdist.testing._plugin._live import LiveWorld, RankView
    from simdist.testing._plugin._sim import FaultHandle, Sim

__all__ = [
    "FaultHandle",
    "LiveWorld",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "Outcome",
    "RankView",
    "Report",
    "Sim",
    "SimulatedProcesses",
    "SimulatedThreads",
    "distributed_test_case",
    "run_tests",
    "simulated",
    "spawn_threads_and_init_comms",
]

_HOMES = {
    "FaultHandle": "_plugin._sim",
    "LiveWorld": "_plugin._live",
    "MultiProcessTestCase": "_multiprocess",
    "MultiThreadedTestCase": "_multithreaded",
    "Outcome": "_conformance",
    "RankView": "_plugin._live",
    "Report": "_conformance",
    "Sim": "_plugin._sim",
    "SimulatedProcesses": "_multiprocess",
    "SimulatedThreads": "_multithreaded",
    "distributed_test_case": "_distributed_test",
    "run_tests": "_conformance",
    "simulated": "_multiprocess",
    "spawn_threads_and_init_comms": "_multithreaded",
}

__getattr__ = lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
