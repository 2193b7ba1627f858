"""torch.distributed, simulated: groups, works, stores and their behaviour when something breaks.

Five parts, each importing only those before it: `calls` lists the collectives and has the life cycle of a call, with
its works and events; `surface` is what torch calls; `engine` brings ranks together; `backends` has the differences
between Gloo and others; `watch` has the listeners and judges on the bus (calls report and announce there:
`calls/_events.py`). `_install.py` puts all of it where torch looks, and swaps the state that torch keeps per process
(`_rank_state.py`); `_makers.py` makes groups and stores; `_replacements.py` has the functions that replace torch's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simdist._lazy import lazily

if TYPE_CHECKING:
    from simdist.c10d._broken_devices import break_devices_of
    from simdist.c10d._install import TorchState
    from simdist.c10d._makers import group_maker
    from simdist.c10d._rank_state import RankState
    from simdist.c10d.backends import GLOO, IDEAL
    from simdist.c10d.calls._events import OperationAdmitted, OperationCalled, PayloadSampled
    from simdist.c10d.calls._member import MembersAwaited, MembersMet
    from simdist.c10d.calls._operation import Operation
    from simdist.c10d.calls._unseen import unseen_steps
    from simdist.c10d.calls._work import CollectiveRead, SimWork, WorkIssued, WorkWaited
    from simdist.c10d.engine import Backend, Done, Flow
    from simdist.c10d.engine._message import MessageRead
    from simdist.c10d.surface._callsite import issued_by_torch
    from simdist.c10d.surface._store_server import StoreRequested, StoreServed, StoreServer
    from simdist.c10d.surface._tcp_store import host_server
    from simdist.c10d.surface.state._generators import torch_generator
    from simdist.c10d.watch._strict import problems_at_end

__all__ = [
    "GLOO",
    "IDEAL",
    "Backend",
    "CollectiveRead",
    "Done",
    "Flow",
    "MembersAwaited",
    "MembersMet",
    "MessageRead",
    "Operation",
    "OperationAdmitted",
    "OperationCalled",
    "PayloadSampled",
    "RankState",
    "SimWork",
    "StoreRequested",
    "StoreServed",
    "StoreServer",
    "TorchState",
    "WorkIssued",
    "WorkWaited",
    "break_devices_of",
    "group_maker",
    "host_server",
    "issued_by_torch",
    "problems_at_end",
    "torch_generator",
    "unseen_steps",
]

# Loaded on first use: code that checks files and command lines needs the names of collectives, and no torch.
_HOMES = dict.fromkeys((name for name in __all__ if name[0].isupper()), "calls._events") | {
    **dict.fromkeys(("GLOO", "IDEAL"), "backends"),
    **dict.fromkeys(("Backend", "Done", "Flow"), "engine"),
    **dict.fromkeys(("CollectiveRead", "SimWork", "WorkIssued", "WorkWaited"), "calls._work"),
    **dict.fromkeys(("MembersAwaited", "MembersMet"), "calls._member"),
    "MessageRead": "engine._message",
    "Operation": "calls._operation",
    "RankState": "_rank_state",
    **dict.fromkeys(("StoreRequested", "StoreServed", "StoreServer"), "surface._store_server"),
    "TorchState": "_install",
    "break_devices_of": "_broken_devices",
    "group_maker": "_makers",
    "host_server": "surface._tcp_store",
    "issued_by_torch": "surface._callsite",
    "problems_at_end": "watch._strict",
    "torch_generator": "surface.state._generators",
    "unseen_steps": "calls._unseen",
}

__getattr__ = lazily(__name__, _HOMES)
