"""Which rank gets which bytes of a collective whose ranks end one by one.

When all end at once, `_data.execute` does the whole operation for everyone. A rank that ends alone gets its part
then, because its program goes on and may change its tensors; a rank whose part fails keeps what had arrived by then.
There are four ways, in this order:

- Its bytes are followed, and the copies are put into its tensors, whether it is done or failed. See `Movement`, and
  `RingFlow` for large rings.
- Ranks disagree and the bytes are not followed: only gather and scatter give what fits to ranks that call the same
  with the same root; the other tensors stay as they were.
- A rooted operation moves a transfer's data when the first of its two ends is done (`Rooted`).
- All have arrived: the first rank to end executes it for everyone. If not all have arrived, which only a reduce allows:
  see `leave_reduce`.

Invariants: bytes are followed from the first rank's end on, or never, since later the tensors of finished ranks
may hold something else. Following starts from copies that are taken once, when a rank's program is first made.
An operation is executed for everyone, or its transfers one by one, never both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simdist.c10d.calls import COPIES, names_where
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload
from simdist.c10d.calls._work import CollectiveRead
from simdist.c10d.engine import _data
from simdist.c10d.engine._movement import LARGEST, SMALL, Movement
from simdist.c10d.engine._program import Program
from simdist.c10d.engine._ring import RingFlow
from simdist.c10d.surface._memory import checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from simdist.c10d.engine._collective import Collective

__all__ = ["HandOver"]

_BYTES_FOLLOWED = names_where(lambda row: row.payload in ("flat", "exchanged") and not row.is_message)


class HandOver:
    """The data of one followed collective."""

    __slots__ = ("_collective", "_executed", "_payloads", "_rooted", "follows_bytes", "movement")

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self.follows_bytes = False  # they are to be followed, if they can be; stays True once set
        # The copies of the current flow. None: bytes are not followed. A ring keeps its own.
        self.movement: Movement | RingFlow | None = None
        self._executed: int | None = None  # the checksum of the whole result; None: no rank has ended yet
        self._rooted: dict[tuple[str, int], _data.Rooted] = {}  # by name and root: ranks may disagree
        self._payloads: dict[int, Payload] = {}  # of all that have arrived, as long as they agree

    def decide(self, wanted: bool) -> None:
        """Decide whether to follow the bytes, before another flow is built; `wanted` if the caller knows of trouble.

        A broadcast that goes well needs no copies, and a large tensor is worth them only in trouble.
        """
        if self.follows_bytes:
            return
        collective = self._collective
        if any(arrival.settled is not None for arrival in collective.arrivals.values()):
            return
        communicator = collective.communicator
        early = collective.operation.name != "broadcast" and collective.operation.size <= SMALL
        trouble = wanted or collective.mismatched or bool(communicator.shut or communicator.gone)
        self.follows_bytes = early or trouble

    def begin_messages(self) -> Movement | None:
        """Return the copies for a flow that follows message by message; None if bytes are not followed."""
        combine = self._collective.communicator.backend.algorithm.combine
        self.movement = movement = Movement(combine) if self.follows_bytes else None
        return movement

    @property
    def has_tensors(self) -> bool:
        """True if ranks that call the same operation as the first are in the copies, if there are any."""
        return self.follows_bytes and self._collective.operation.name in _BYTES_FOLLOWED

    def ring_combine(self) -> tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None], torch.dtype] | None:
        """What a ring needs to follow the bytes: the function of one hop and the element type; None if it does not."""
        collective = self._collective
        operation, communicator = collective.operation, collective.communicator
        small = operation.size * communicator.size <= LARGEST
        if not (self.follows_bytes and operation.name in _BYTES_FOLLOWED and small):
            return None
        dtype = next(iter(collective.arrivals.values())).tensor.dtype
        return communicator.backend.algorithm.combine(operation.reduction, dtype), dtype

    def enter(self, rank: int, program: Program) -> None:
        """Follow a rank's messages from now on. Does nothing if they already are."""
        movement = self.movement
        arrival = self._collective.arrivals[rank]
        operation = arrival.operation
        if not isinstance(movement, Movement) or operation.name not in _BYTES_FOLLOWED or movement.follows(rank):
            return
        if operation.size * self._collective.communicator.size > LARGEST:
            return
        if operation.name == "all_to_all":
            if arrival.held is None:
                arrival.held = _data.exchange_buffers(arrival.exchanged, rank)
            outgoing, incoming = arrival.held
            movement.enter(rank, incoming, program, "", outgoing)
            return
        if arrival.held is None:
            arrival.held = arrival.tensor.clone()
        movement.enter(rank, arrival.held, program, operation.reduction)

    def enter_ring(self, ring: RingFlow, rank: int) -> None:
        """Let a rank take part in a ring from now on."""
        if ring.moves:
            arrival = self._collective.arrivals[rank]
            if arrival.held is None:
                arrival.held = arrival.tensor.clone()
            ring.enter(rank, arrival.held)

    def finish(self, rank: int) -> int:
        """Give a rank that is done its result; returns the result's checksum, 0 if there is none."""
        collective = self._collective
        if self.movement is not None and self.movement.follows(rank):
            return self._finish_followed(rank, self.movement.result(rank))
        if collective.mismatched:
            return self._finish_mismatched(rank)
        operation = collective.operation
        if operation.name in COPIES:
            return self._finish_rooted(rank, operation)
        communicator = collective.communicator
        algorithm = communicator.backend.algorithm
        arrivals = collective.arrivals
        if len(arrivals) == communicator.size:
            if self._executed is None:
                bus = communicator.simulation.bus
                if bus.heard and bus.hears(CollectiveRead):
                    bus.report(CollectiveRead([arrival.work for arrival in arrivals.values()]))
                payloads = [arrivals[other].payload for other in range(communicator.size)]
                self._executed = _data.execute(algorithm, operation, payloads, _data.CHECKSUM_BYTES)
            return self._executed
        # A reduce in which this rank has no more part: its tensor belongs to the caller again, so remember its content.
        arrival = arrivals[rank]
        tensor = arrival.tensor
        arrival.payload = tensor.clone()
        present = {other: entry.tensor for other, entry in arrivals.items()}
        _data.leave_reduce(algorithm, operation, rank, communicator.size, tensor, present)
        return 0

    def leave_partial(self, rank: int) -> None:
        """Put the data that had arrived into the tensors of a rank whose part failed."""
        operation = self._collective.arrivals[rank].operation
        if operation.name == "all_to_all" and operation.extra is not None and len(operation.extra.inputs) > 1:
            return  # the outputs are a list, which torch fills at the end
        if self.movement is not None and self.movement.follows(rank):
            self._take_over(rank, self.movement.result(rank))

    def _finish_followed(self, rank: int, result: Any) -> int:
        collective = self._collective
        arrival = collective.arrivals[rank]
        operation = arrival.operation
        self._take_over(rank, result)
        if operation.name == "all_to_all":
            return checksum(arrival.exchanged.filled, _data.CHECKSUM_BYTES)
        algorithm = collective.communicator.backend.algorithm
        if operation.reduction == "avg" and algorithm.refused_result(operation) is None:
            _data.divide(algorithm, operation, arrival.tensor, collective.communicator.size)
        return checksum([arrival.tensor], _data.CHECKSUM_BYTES)

    def _take_over(self, rank: int, result: Any) -> None:
        arrival = self._collective.arrivals[rank]
        if arrival.operation.name == "all_to_all":
            _data.end_exchange(arrival.exchanged, result)
        else:
            arrival.tensor.copy_(result)

    def _finish_mismatched(self, rank: int) -> int:
        """Give a rank its data although ranks disagree: only those that gather or scatter still get what fits."""
        arrivals = self._collective.arrivals
        operation = arrivals[rank].operation
        root = arrivals.get(operation.root)
        if operation.name in ("gather", "scatter") and root is not None and _meet(root.operation, operation):
            return self._finish_rooted(rank, operation)
        return 0

    def _finish_rooted(self, rank: int, operation: Operation) -> int:
        collective = self._collective
        rooted = self._rooted.get((operation.name, operation.root))
        if rooted is None:
            rooted = _data.Rooted(operation, collective.communicator.size)
            self._rooted[operation.name, operation.root] = rooted
        payloads, arrivals = self._payloads, collective.arrivals
        if collective.mismatched:
            payloads = {
                other: arrival.payload for other, arrival in arrivals.items() if _meet(arrival.operation, operation)
            }
        elif len(payloads) != len(arrivals):
            payloads = self._payloads = {other: arrival.payload for other, arrival in arrivals.items()}
        return rooted.finish(rank, payloads, _data.CHECKSUM_BYTES)


def _meet(one: Operation, other: Operation) -> bool:
    """True if the calls are of one kind, with one root: they give each other data, though sizes may not fit."""
    return one.name == other.name and one.root == other.root
