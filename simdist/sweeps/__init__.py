"""Crash sweeps: does a program come back from a crash at any moment, and with what?

A program is run once, watched: every effect on the disk, every operation of torch.distributed, every step and point
that a rank comes to in its first life is a point. Then it is run again for each, and there a rank dies, or a host loses
power, or all hosts do; the launcher starts it again, and the oracles say whether it did what it has to. Of a loss of
power the most suspicious states that the disk's file system allows are tried.

- When all hosts are down, nothing is left but the disk. Crashes in the same step that leave the same on it are one, and
  so are two of a rank between which nothing happened anywhere; the report says how many that were.
- All ranks begin anew after a crash, from nothing but the files. A run whose second life begins with the same files as
  that of a run which has been seen to its end, or with others that differ only in what that one has overwritten
  unread, is ended there: it goes on alike (`_second_lives.py`).
- Each crash is an ordinary fault with an ordinary trigger, so a failure replays with `simdist run`.
- Every run begins anew: no state of a world is copied. Ranks are threads, and a process that is forked in the middle of
  a run would have only the one of them that called `fork`, so nothing is forked from a common beginning.
- With `second_crash` the recovery itself is crashed: each second life that begins with other files is watched, and
  struck at each of its points.

Open `_sweep.py` first; `_points.py` is what can strike and when, `_crashes.py` what a crash comes to, `_report.py` what
is said of it, `_cures.py` what usually helps, `_kept.py` how a sweep goes on that was interrupted, `_replays.py` and
`_picture.py` what is written of a failure. What is swept, and the processes that do it, are in `simdist.programs`.
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
