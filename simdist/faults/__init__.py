"""Faults: what can go wrong, when, and the injector that makes it so.

A fault is a frozen description: a kind (`Crash`, `Hang`, `Raise`, `SlowRank`, `LinkDelay`, `Partition`, `Hold`,
`StoreDelay`, `StoreLost`) and, for those that strike a rank, a trigger. The injector turns the descriptions into
verdicts on the kernel's bus; no layer below knows a fault kind. Open `_kinds.py` first, then `_injector.py`;
`_words.py` has what events say of them.
"""

from simdist.faults._kinds import (
    Crash,
    Fault,
    Hang,
    Hold,
    LinkDelay,
    Partition,
    Raise,
    RankFault,
    SlowRank,
    StoreDelay,
    StoreLost,
    When,
    problems_of,
    rank_of,
)
from simdist.faults._words import begin_text, end_text, kind_of

__all__ = [
    "Crash",
    "Fault",
    "Hang",
    "Hold",
    "LinkDelay",
    "Partition",
    "Raise",
    "RankFault",
    "SlowRank",
    "StoreDelay",
    "StoreLost",
    "When",
    "begin_text",
    "end_text",
    "kind_of",
    "problems_of",
    "rank_of",
]
