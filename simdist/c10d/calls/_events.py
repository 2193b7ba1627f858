"""What torch.distributed announces on the bus before it happens, and what it tells of there.

An operation lives through four moments. It is *called*: announced here, before any counter moves or anyone is told, so
that an exception in its place leaves no trace. It is *admitted* where the backend's arguments hold, and announced once
more for who looks at its tensors; else it is refused. It is *issued*: `simdist.records.Issued` in the log, a
`WorkIssued` here for those who want the work itself. It is *settled* by a record `Completed` or `Failed`. The helper
groups that torch makes for itself announce no calls and record nothing; the profiler sees their works, as torch's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.process import SimProcess

if TYPE_CHECKING:
    from torch import Tensor

    from simdist.c10d.calls._payload import Outputs
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.engine import Communicator, P2PWork
    from simdist.c10d.surface._store_server import StoreServer

__all__ = ["CollectiveRead", "MembersAwaited", "MembersMet", "MessageRead", "OperationAdmitted", "OperationCalled"]
__all__ += ["PayloadSampled", "StoreRequested", "StoreServed", "WorkIssued", "WorkWaited"]


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
class MessageRead:
    """Announced: the buffer of a send is about to be read for the receiver. It can only be refused."""

    send: P2PWork


@dataclass(frozen=True, slots=True)
class StoreRequested:
    """Announced: a rank asks a store for something, which has not reached it yet.

    `launchers` is True for the launcher's store. A strike "during" comes when the request is half way to the server,
    one "after" when the caller goes on.
    """

    process: SimProcess
    operation: str
    key: str
    launchers: bool


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class WorkIssued:
    """Told: there is a work for an operation that was issued, a part of a larger one included.

    `name` is what torch's profiler calls it. `asynchronous` is False for a collective that waits for itself. `root` is
    the group rank of a rooted operation, else -1. `reads` are the rank's tensors in the CPU's memory that it reads.
    `reduction` is the name of the reduce operation ("sum"), "" where nothing is reduced.
    """

    work: SimWork
    name: str
    shapes: Sequence[Sequence[int]]
    asynchronous: bool
    root: int = -1
    reads: Sequence[Tensor] = ()
    reduction: str = ""


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class WorkWaited:
    """Told: a rank has waited for a work, which is over, or its future completes."""

    work: SimWork


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class CollectiveRead:
    """Told: the tensors of a collective, of all its ranks that have come, are about to be read."""

    works: Sequence[SimWork]


@dataclass(frozen=True, slots=True)
class MembersAwaited:
    """Told: a rank begins to wait for all members of a group: connecting it (`number` -1), or in monitored barriers."""

    process: SimProcess
    communicator: Communicator
    number: int


@dataclass(frozen=True, slots=True)
class MembersMet:
    """Told: all of them have come. The fields are those of `MembersAwaited`."""

    process: SimProcess
    communicator: Communicator
    number: int


@dataclass(frozen=True, slots=True)
class StoreServed:
    """Told: a store does what a rank has asked for, or is on its way to: what has no answer is told when it is sent.

    `values` are what the keys hold then, as far as the request says so.
    """

    process: SimProcess
    server: StoreServer
    operation: str
    keys: Sequence[str]
    values: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class PayloadSampled:
    """Told: what an operation left was too much to be summed up whole for the log; `crc` covers all of it."""

    crc: int
