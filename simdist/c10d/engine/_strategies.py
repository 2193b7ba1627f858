"""What a backend defines: four strategies behind one protocol. The engine uses them, and knows no backend's name.

*Arguments* refuse calls; *Algorithm* has the message schedule, the order of additions and the closed form of the cost;
*Failure* says which rank gets which error after a timeout or a peer's death; *Completion* defines waiting for a work.

Invariants: an algorithm is a pure function of its arguments, so that all ranks may share one; its cost of an operation
without trouble equals the cost of its schedule when every message is followed, to a few per cent.
Doubt: the class of a work decides whether the work blocks its host. A check at each wait would cost as much as the rest
of a wait for an operation that is done.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from simdist.c10d.calls import COPIES
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Brought
from simdist.c10d.calls._work import SimWork
from simdist.c10d.engine._program import Program
from simdist.c10d.engine._ring import Ring
from simdist.c10d.surface._arguments import Arguments
from simdist.cluster import Cluster
from simdist.errors import InternalError

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.engine._message import P2PWork
    from simdist.c10d.engine._stream_parts import Part
    from simdist.c10d.engine._stream_work import StreamWork
    from simdist.c10d.engine._streamed import Connection

__all__ = ["Algorithm", "Backend", "Collision", "Completion", "Failure", "MonitoredBarrier", "Sizes", "StreamAlgorithm"]
__all__ += ["StreamFailure", "Unreachable"]

Tensor = torch.Tensor
Sizes = Callable[[int], tuple[list[int], list[int]]]

Left: TypeAlias = dict[Any, Any]
"""The data that mismatched calls have left on the way between ranks; its form is up to the algorithm."""


class Algorithm(ABC):
    """The message schedules of a backend, the order in which it adds up, and its cost without trouble."""

    # Operations that return at once, without any message, if there is nothing to move.
    silent_when_empty: tuple[str, ...] = ()

    @abstractmethod
    def program(self, operation: Operation, rank: int, ranks: int, sizes: Sizes) -> Program:
        """The message schedule of one rank; `sizes` gives its sends and receives in an all_to_all, in bytes.

        Where ranks may be done one by one (`lets_some_go`), a broadcast has to go down Gloo's binomial tree, and a
        gather and a scatter have no rank between the root and another: their data is handed over in this way.
        """

    @abstractmethod
    def duration_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> int:
        """The time from the last arrival to completion on an idle network, for an operation that needs everyone."""

    def costs_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> tuple[int, int]:
        """The duration, and the part of it in which bytes move."""
        return (
            self.duration_ns(operation, ranks, latency_ns, byte_ns),
            self.duration_ns(operation, ranks, 0, byte_ns),
        )

    def traffic(self, operation: Operation, ranks: int) -> Sequence[tuple[int, int, float]]:
        """The bytes that ranks send each other in such an operation: (source, target, bytes)."""
        each = operation.size // max(1, ranks)
        bytes_of: dict[tuple[int, int], int] = {}
        for rank in range(ranks):
            for step in self.program(operation, rank, ranks, lambda _: ([each] * ranks, [each] * ranks)):
                if step[0] == "send":
                    pair = rank, step[1]
                    bytes_of[pair] = bytes_of.get(pair, 0) + step[2]
        return [(*pair, amount) for pair, amount in bytes_of.items()]

    @abstractmethod
    def all_reduce(self, tensors: Sequence[Tensor], reduction: str, *, paired: bool = False) -> None:
        """Reduce the flat tensors of all ranks, in place on each of them.

        `paired`: the elements are the parts of complex numbers, and an average divides as complex numbers do.
        """

    @abstractmethod
    def reduce(self, tensors: Sequence[Tensor], reduction: str, root: int, *, paired: bool = False) -> None:
        """Reduce the flat tensors of all ranks to group rank `root`; the others keep what the backend leaves there."""

    def reduce_parts(
        self, wholes: Sequence[Tensor], parts: Sequence[tuple[int, Tensor]], reduction: str, *, paired: bool = False
    ) -> None:
        """Do an all-reduce of flat `wholes`, which stay as they are, and put parts of the total into other tensors.

        `parts`: the first element of each part, and its output tensor, which may share the memory of a whole.
        """
        copies = [whole.clone() for whole in wholes]
        self.all_reduce(copies, reduction, paired=paired)
        for start, output in parts:
            output.copy_(copies[0][start : start + output.numel()])

    @abstractmethod
    def combine(self, reduction: str, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], None]:
        """The function `(local, received, out)` of one hop; `out` may be `received`."""

    def divide(self, tensors: Sequence[Tensor], paired: bool, ranks: int) -> None:
        """Divide sums in place, to make averages."""
        for tensor in tensors:
            whole = torch.view_as_complex(tensor.view(-1, 2)) if paired else tensor
            whole.div_(ranks)

    def refused_result(self, operation: Operation) -> RuntimeError | None:
        """An error that is raised after the data has moved, or None."""
        return None

    def lets_some_go(self, operation: Operation, ranks: int) -> bool:
        """True if a rank may be done before all have arrived."""
        return operation.name in COPIES

    def leave_reduce(
        self,
        tensor: Tensor,
        inputs: Mapping[int, Tensor],
        reduction: str,
        rank: int,
        ranks: int,
        *,
        paired: bool = False,
    ) -> None:
        """Put into `tensor` the result of a reduce on a rank that is done before all have arrived.

        By default the tensor keeps its input. `inputs` are the flat tensors of the ranks that have arrived.
        """
        tensor.copy_(inputs[rank])

    def slot(self, operation: Operation) -> str:
        """The name under which the messages of the operation are matched."""
        return operation.name

    def ring(self, operation: Operation, ranks: int) -> Ring | None:
        """The operation as a ring of equal ranks, or None; a ring is followed in arrays, all ranks at a time."""
        return None


@dataclass(frozen=True, slots=True)
class Collision:
    """How mismatched calls end: those of `done` ranks end, with the data that has arrived for them.

    `cut` are messages that do not fit into the network card's buffer: sender, receiver, their bytes, the room in bytes.
    """

    done: frozenset[int]
    checksum: int
    cut: tuple[tuple[int, int, int, int], ...] = ()


class StreamAlgorithm(Algorithm):
    """The algorithm of a backend whose operations end on streams: nothing is followed message by message."""

    def program(self, operation: Operation, rank: int, ranks: int, sizes: Sizes) -> Program:
        """Refuse: a stream's operation has no schedule of messages.

        Raises:
            InternalError: always.
        """
        raise InternalError(f"{operation.name} on a stream has no schedule of messages")

    def fitted(self, cluster: Cluster, ranks: Sequence[int]) -> StreamAlgorithm:
        """The algorithm for a group of these ranks of the world; itself, if it does not depend on them."""
        return self

    @abstractmethod
    def meets(self, calls: Sequence[Brought]) -> bool:
        """True if the calls of all ranks, by rank, have matching sizes in bytes, so that `execute` can do them."""

    @abstractmethod
    def execute(self, calls: Sequence[Brought]) -> int:
        """Execute an operation for all ranks, each with its call; returns the checksum of its result."""

    @abstractmethod
    def collide(self, calls: Sequence[Brought], left: Left) -> Collision:
        """Execute calls that do not fit; `left` keeps what they leave on the way between ranks.

        While `left` is not empty, all later calls of the same connection collide, too.
        """

    @abstractmethod
    def collide_messages(self, pair: tuple[int, int], calls: Sequence[Brought], left: Left) -> Collision:
        """Execute a send and a receive of different sizes between two ranks, likewise."""


class Failure(Protocol):
    """Which rank sees which error, when, and the error texts."""

    has_timeouts: bool  # False: a wait that would time out is a deadlock
    late_ns: int  # from a timeout until the wait ends with an error
    closing_ns: int  # from a timeout until the peers see the connection close

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        """The text of a wait for a transfer that ran out of time; `kind` is "send" or "recv"."""
        ...

    def closed_by_peer(self, peer: int) -> str:
        """The text when the peer's process has gone, or has given the group up."""
        ...

    def reset_by_peer(self, peer: int) -> str:
        """The text when the peer's process ended while data was under way."""
        ...

    def pair_closed(self) -> str:
        """The text when this rank itself timed out before, and closed all its connections."""
        ...

    def overrun(self, sent: int, room: int) -> str:
        """The last words of a process that was sent more bytes than it has room for, and aborts."""
        ...


class Unreachable(Protocol):
    """The errors of a member that finds no peer at the address in the store."""

    def refused_by_peer(self, peer: int, rank: int) -> str:
        """The text for `rank` when the peer's process has ended, or the peer has given the group up."""
        ...

    def unconnected(self) -> str:
        """The text when no connection was made in time."""
        ...


class StreamFailure(Failure, Protocol):
    """The failures of a backend whose operations end on streams."""

    def refused_connection(self, connection: Connection) -> Callable[[int], BaseException] | None:
        """Why a connection that all of its ranks have joined cannot be made: an error for each rank; None: it can."""
        ...

    def first_is_missing(self, connection: Connection, rank: int, why: int | str) -> BaseException:
        """The error where the rank that all others need has not arrived: after `why` ns, or for the reason `why`."""
        ...

    def others_are_missing(self, connection: Connection) -> BaseException:
        """The error of the ranks that have arrived, where another rank has not, and there is a limit to that."""
        ...

    def wait_timed_out(self, work: StreamWork, limit_ns: int) -> BaseException:
        """The error of a wait on the host for a work that ran out of time."""
        ...

    def peer_left(self, connection: Connection, rank: int, parts: Sequence[Part]) -> None:
        """React to a rank that has left a connection on which `parts` of others have not ended."""
        ...

    def cut_off(self, connection: Connection, parts: Sequence[Part]) -> None:
        """React to a network that does not let these parts begin, although all have been called."""
        ...

    def cut_short(self, connection: Connection, part: Part, source: int, size: int, room: int) -> None:
        """React to a message from `source` that is larger than the room at the part's end; both in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Completion:
    """The meaning of `wait`, `is_completed` and futures: the work classes of collectives and of messages.

    With `on_streams`, operations end on streams of devices, and a rank's host does not wait for them.
    """

    work: type[SimWork]
    message: type[P2PWork]
    on_streams: bool = False


MonitoredBarrier = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend under the name that `init_process_group` takes.

    `connect_ns` is the time that the members take to connect once all are there. Without `moves_payloads`, large
    payloads of floating-point numbers are not moved: see `_unmoved.py`. `monitored_barrier(member, limit_ns, group_ns,
    wait_all_ranks=, prefix=)` is the backend's, if it has one. With `unreachable`, members find each other by addresses
    in the store, including those that an earlier group left there. A rank runs as many of a group's collectives at a
    time as the group has `threads` there.
    """

    name: str
    arguments: Arguments
    algorithm: Algorithm
    failure: Failure
    completion: Completion
    connect_ns: int = 200_000
    moves_payloads: bool = True
    monitored_barrier: MonitoredBarrier | None = None
    unreachable: Unreachable | None = None
    threads: int = sys.maxsize

    @property
    def uses_addresses(self) -> bool:
        """True if members find each other by what they write into the store."""
        return self.unreachable is not None or self.completion.on_streams

    def pass_monitored_barrier(self, member: Member, *limits_ns: int, **how: object) -> None:
        """Pass a monitored barrier.

        Raises:
            RuntimeError: the backend has none; or ranks did not arrive.
        """
        if self.monitored_barrier is None:
            raise RuntimeError(f"Backend {self.name} does not support monitoredBarrier")
        self.monitored_barrier(member, *limits_ns, **how)
