"""The events of torch.distributed that are announced on the bus before they happen, and those that are reported.

An operation lives through four moments. It is *called*: announced here, before any counter moves or anyone learns of
it, so that an exception in its place leaves no trace. It is *admitted* if the backend accepts the arguments, and then
announced again for listeners that look at its tensors; otherwise it is refused. It is *issued*:
`simdist.records.Issued` in the log, and a `WorkIssued` for listeners that want the work itself. It is *settled* by a
record `Completed` or `Failed`. The helper groups that torch makes for itself announce no calls and record nothing; the
profiler sees their works, as torch's does.

An event that carries a work is defined next to `SimWork`; likewise those of messages, groups and stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.calls._payload import Outputs

__all__ = ["OperationAdmitted", "OperationCalled", "PayloadSampled"]


@dataclass(frozen=True, slots=True)
class OperationCalled:
    """Announced: a rank has called an operation; no other rank has noticed yet."""

    process: SimProcess
    operation: str
    group: str
    sequence: int  # the one that it will have


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class OperationAdmitted:
    """Announced: the backend accepts a collective's arguments, and its number is taken; no work exists yet.

    The verdict can only refuse it: to delay it or strike, judge the call.
    `operands` are what a reduction works on, `tensors` what is filled: tensors, and lists of them.
    """

    process: SimProcess
    operation: str
    reduction: str
    operands: object
    tensors: Outputs


@dataclass(frozen=True, slots=True)
class PayloadSampled:
    """Reported: an operation's result was too large to be summed up whole for the log; `crc` covers all of it."""

    crc: int
