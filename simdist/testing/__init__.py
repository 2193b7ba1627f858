"""For people who write tests: existing multi-process suites on simulated ranks.

`MultiProcessTestCase`, `MultiThreadedTestCase` and `spawn_threads_and_init_comms` stand in for torch's of the same
name: the same test methods, one changed import. `simulated` makes such a class from one that exists already.
`run_tests` runs a whole class and reports on each test; `distributed_test_case` is the suite that the torch wheel
ships. `bits_cases` is a list of collectives that `run_bits` runs on a rank, simulated or real, to compare results in
every bit. Open `_multiprocess.py` first.
"""

from simdist.testing._bits import BITS_FAMILIES, Bench, BitsCase, bits_cases, digest, name_difference, run_bits
from simdist.testing._conformance import Outcome, Report, run_tests
from simdist.testing._distributed_test import distributed_test_case
from simdist.testing._multiprocess import MultiProcessTestCase, SimulatedProcesses, simulated
from simdist.testing._multithreaded import MultiThreadedTestCase, SimulatedThreads, spawn_threads_and_init_comms

__all__ = [
    "BITS_FAMILIES",
    "Bench",
    "BitsCase",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "Outcome",
    "Report",
    "SimulatedProcesses",
    "SimulatedThreads",
    "bits_cases",
    "digest",
    "distributed_test_case",
    "name_difference",
    "run_bits",
    "run_tests",
    "simulated",
    "spawn_threads_and_init_comms",
]
