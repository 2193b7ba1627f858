"""Faults: what can go wrong, when, and the injector that makes it so.

A fault is a frozen description: a kind (`Crash`, `Hang`, `SlowRank`, `LinkDelay`, `Partition`) and, for those that
strike a rank, a trigger. The injector turns the descriptions into verdicts on the kernel's bus; no layer below knows a
fault kind. Open `_kinds.py` first, then `_injector.py`.
"""

from simdist.faults._kinds import Crash, Fault, Hang, LinkDelay, Partition, SlowRank, When, problems_of

__all__ = ["Crash", "Fault", "Hang", "LinkDelay", "Partition", "SlowRank", "When", "problems_of"]
