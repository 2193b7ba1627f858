"""Crash sweeps: does a program come back from a crash at any moment, and with what?

A program is run once, watched: every effect on the disk, every operation of torch.distributed, every step and point
that a rank comes to in its first life is a point. Then it is run again for each, and there a rank dies, or a host loses
power, or all hosts do; the launcher starts it again, and the oracles say whether it did what it has to. Of a loss of
power the most suspicious states that the disk's file system allows are tried.

- When all hosts are down, nothing is left but the disk. Crashes in the same step that leave the same on it are one, and
  the report says how many that were.
- Each crash is an ordinary fault with an ordinary trigger, so a failure replays with `simdist run`.
- Every run begins anew: no state of a world is copied.

Open `_sweep.py` first; `_points.py` is what can strike and when, `_programs.py` what is swept, `_report.py` what is
said of it.
"""

from simdist.sweeps._api import sweep
from simdist.sweeps._points import STRIKES, Case, Point, Strike
from simdist.sweeps._programs import FunctionProgram
from simdist.sweeps._report import Failure, Line, SweepReport
from simdist.sweeps._sweep import sweep_plan, swept

__all__ = [
    "STRIKES",
    "Case",
    "Failure",
    "FunctionProgram",
    "Line",
    "Point",
    "Strike",
    "SweepReport",
    "sweep",
    "sweep_plan",
    "swept",
]
