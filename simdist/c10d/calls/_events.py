"""What torch.distributed announces on the bus before it happens, and what it reports there.

An operation lives through four moments. It is *called*: announced here, before any counter moves or anyone hears of it,
so that an exception in its place leaves no trace. It is *admitted* where the backend's arguments hold, and announced
again for who looks at its tensors; else it is refused. It is *issued*: `simdist.records.Issued` in the log, a
`WorkIssued` for those who want the work itself. It is *settled* by a record `Completed` or `Failed`. The helper groups
that torch makes for itself announce no calls and record nothing; the profiler sees their works, as torch's does.

An event that carries a work stands beside `SimWork`, as those of messages, groups and stores stand beside these.
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
    """Announced: a rank has called an operation; nobody else has noticed yet."""

    process: SimProcess
    operation: str
    group: str
    sequence: int  # that it will have


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class OperationAdmitted:
    """Announced: the backend takes a collective's arguments, and its number is taken; no work exists yet.

    It can only be refused: to delay it or strike, judge the call.
    `operands` is what a reduction works on, `tensors` what is filled: tensors, and lists of them.
    """

    process: SimProcess
    operation: str
    reduction: str
    operands: object
    tensors: Outputs


@dataclass(frozen=True, slots=True)
class PayloadSampled:
    """Reported: what an operation left was too much to be summed up whole for the log; `crc` covers all of it."""

    crc: int
