"""Crash sweeps: does a program recover from a crash at any moment, and with which result?

A program is run once, watched: every effect on the disk, every operation of torch.distributed, every step and point
that a rank reaches in its first life is a point. Then the program is run again for each point, and there a rank dies,
or a host loses power, or all hosts do; the launcher starts it again, and the oracles judge the result. For a loss of
power the most suspicious states that the disk's file system allows are tried.

- When all hosts are down, only the disk is left. Crashes in the same step that leave the same disk count as one, and so
  do two crashes of a rank between which nothing happened anywhere; the report says how many these were.
- After a crash all ranks begin anew, with nothing but the files. A run is ended early if its second life begins with
  the same files as one that has been seen to its end, or with others that differ only in contents that the other one
  has overwritten unread: it would go on alike (`_second_lives.py`).
- Each crash is an ordinary fault with an ordinary trigger, so a failure replays with `simdist run`.
- Every run begins anew: no state of a world is copied. Ranks are threads, and a process that is forked in the middle of
  a run would have only the thread that called `fork`, so nothing is forked from a common beginning.
- With `second_crash` the recovery itself is crashed: each second life that begins with other files is watched, and
  struck at each of its points.

Open `_sweep.py` first; `_points.py` has the moments and strikes, `_crashes.py` runs a crash and judges it, `_report.py`
reports, `_cures.py` has usual remedies, `_kept.py` continues a sweep that was interrupted, `_replays.py` and
`_picture.py` write the files of a failure. The programs, and the processes that run them, are in `simdist.programs`.
"""

from simdist.sweeps._api import sweep
from simdist.sweeps._crashes import CameBack, Crashes
from simdist.sweeps._failure import Failure, Tried
from simdist.sweeps._picture import picture
from simdist.sweeps._points import STRIKES, Case, Point, Strike
from simdist.sweeps._replays import test_text, write_replays
from simdist.sweeps._report import Line, SweepReport, alike, counted, unseen_words
from simdist.sweeps._sweep import sweep_plan, swept
from simdist.sweeps._tries import Tries

__all__ = [
    "STRIKES",
    "CameBack",
    "Case",
    "Crashes",
    "Failure",
    "Line",
    "Point",
    "Strike",
    "SweepReport",
    "Tried",
    "Tries",
    "alike",
    "counted",
    "picture",
    "sweep",
    "sweep_plan",
    "swept",
    "test_text",
    "unseen_words",
    "write_replays",
]
