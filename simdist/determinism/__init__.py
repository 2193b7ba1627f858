"""Does a program do the same again? And if it does not, from which line on?

A program (any number of worlds) runs here and in a fresh process, and its events are compared one by one; see
`_check.py` for the passes, and `_slice.py` for how the line is found that began the difference. A new kind of program
needs two things: a call that runs it here, and a `Job` that runs it elsewhere.

    program -> `_recorder` -> Recording -> `_compare` -> Difference -> `_slice` -> Origin -> `_causes` -> Cause

`_describe.py` puts values into words, `_lines.py` traces lines, `_surroundings.py` watches files and reverses orders
that are not guaranteed, `_fresh.py` is the other process.
"""

from simdist.determinism._causes import Cause
from simdist.determinism._check import check, check_recording, explained
from simdist.determinism._compare import Difference, Version, compare
from simdist.determinism._fresh import Fresh, Job, do, in_fresh_process, main
from simdist.determinism._functions import check_determinism
from simdist.determinism._recorder import record, recording
from simdist.determinism._recording import Recording
from simdist.determinism._report import DeterminismReport
from simdist.determinism._sites import CallStacks

__all__ = [
    "CallStacks",
    "Cause",
    "DeterminismReport",
    "Difference",
    "Fresh",
    "Job",
    "Recording",
    "Version",
    "check",
    "check_determinism",
    "check_recording",
    "compare",
    "do",
    "explained",
    "in_fresh_process",
    "main",
    "record",
    "recording",
]
