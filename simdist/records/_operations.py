"""What happens in torch.distributed: groups, operations from their issue to their end, requests to stores.

Two moments of an operation are recorded. It is *issued* when it gets its number, after the judges of calls have let it
pass: an error that a fault raises in place of a call leaves no record. It is *settled* when it is completed or has
failed; one that is neither was cut off by the end of its process or of the world.
"""

from __future__ import annotations

from typing import Annotated, Any

from simdist.records._record import Record, packer, record
from simdist.values import Duration, ListOf, Maybe, Text, Truth, Whole

__all__ = ["Completed", "Delayed", "Failed", "Issued", "MessageCompleted", "MessageIssued", "NewGroup", "ResultNoted"]
__all__ += ["StoreAsked", "completed", "delayed", "failed", "issued", "message_completed", "message_issued"]
__all__ += ["new_group", "result_noted", "store_asked"]

_NUMBER, _TEXT = Maybe(Whole()), Maybe(Text())
_RANKS, _SIZES = ListOf(Whole(least=0), of="ranks"), ListOf(Whole(least=0), of="sizes")


@record("group")
class NewGroup(Record):
    """A process group was made: its members' ranks in the world, and the user's description of it."""

    group: Annotated[str, _TEXT]
    ranks: Annotated[tuple[int, ...], _RANKS]
    desc: Annotated[str, _TEXT]


@record("delay")
class Delayed(Record):
    """A judge of calls delays one: an operation, or "store.get"."""

    duration_ns: Annotated[int, Duration()]
    op: Annotated[str, _TEXT]


@record("issue")
class Issued(Record):
    """A rank issued the `seq`-th collective of its group; `peer` is the root's group rank, or -1."""

    op: Annotated[str, _TEXT]
    group: Annotated[str, _TEXT]
    seq: Annotated[int, _NUMBER]
    nbytes: Annotated[int, _NUMBER]
    dtype: Annotated[str, _TEXT]
    shape: Annotated[tuple[int, ...], _SIZES]
    peer: Annotated[int, _NUMBER]
    async_op: Annotated[bool, Truth()]


@record("issue")
class MessageIssued(Issued):
    """A rank issued a send, a receive, or a monitored barrier, which consists of them; `peer` is the other side's."""

    tag: Annotated[Any, _NUMBER]


@record("complete")
class Completed(Record):
    """A collective is done, for one rank or with rank -1 for all; its data began to move at `begin_ns`.

    `crc` is a checksum over its result, or over a sample if the result is large.
    """

    op: Annotated[str, _TEXT]
    group: Annotated[str, _TEXT]
    seq: Annotated[int, _NUMBER]
    begin_ns: Annotated[int, Maybe(Duration())]
    crc: Annotated[int, _NUMBER]


@record("complete")
class MessageCompleted(Completed):
    """A send or a receive is done; `peer` is the other side's group rank."""

    peer: Annotated[int | None, _NUMBER]


@record("error")
class Failed(Record):
    """An operation failed, with an exception of this class and text."""

    op: Annotated[str, _TEXT]
    group: Annotated[str, _TEXT]
    seq: Annotated[int, _NUMBER]
    error: Annotated[str, _TEXT]
    message: Annotated[str, _TEXT]


@record("result")
class ResultNoted(Record):
    """The result of an operation in a rank's tensors, when the rank has waited for it, as a checksum over all of it."""

    op: Annotated[str, _TEXT]
    group: Annotated[str, _TEXT]
    seq: Annotated[int, _NUMBER]
    crc: Annotated[int, _NUMBER]


@record("store")
class StoreAsked(Record):
    """A rank asks a store for something: `op` is the method, such as "get"."""

    op: Annotated[str, _TEXT]
    key: Annotated[str, _TEXT]


new_group = packer(NewGroup)
delayed = packer(Delayed)
issued = packer(Issued)
message_issued = packer(MessageIssued)
completed = packer(Completed)
message_completed = packer(MessageCompleted)
failed = packer(Failed)
result_noted = packer(ResultNoted)
store_asked = packer(StoreAsked)
