"""Faults: what can go wrong, when, and the injector that makes it so.

A fault is a frozen description: a kind (`Crash`, `Hang`, `Raise`, `SlowRank`, `LinkDelay`, `Partition`, `Hold`,
`StoreDelay`, `StoreLost`) and, for those that strike a rank, a trigger. The injector turns the descriptions into
verdicts on the kernel's bus; no layer below knows a fault kind. Open `_kinds.py` first, then `_injector.py`;
`_fields.py` says what fields have to be, `_operations.py` how operations are called, `_problems.py` what is wrong with
a fault, `_words.py` what events say of it.
"""

from simdist.faults._fields import file_key
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
    rank_of,
)
from simdist.faults._operations import ALIASES, OPERATIONS, operations_of
from simdist.faults._problems import problems_of
from simdist.faults._words import begin_text, end_text, fault_call, kind_of

__all__ = [
    "ALIASES",
    "OPERATIONS",
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
    "fault_call",
    "file_key",
    "kind_of",
    "operations_of",
    "problems_of",
    "rank_of",
]
