"""What becomes of calls that do not fit: NCCL compares nothing, so each rank's kernel does what its own call says.

Ranks with less to do may finish while others wait for ever; where as many chunks go around, all finish, with wrong
values at the end of the data; other types are the same bytes, read otherwise; other kinds mostly get stuck, and
sometimes mix data up. Here every rank runs the kernel of its call over the buffers between neighbours (`_fifos.py`),
chunk by chunk, as src/device of NCCL 2.29.7 has it: all_reduce.h, reduce_scatter.h, all_gather.h, broadcast.h,
reduce.h, sendrecv.h. What is left in a buffer meets the next call on the same communicator.

In doubt: the reference profile, one ring, chooses no protocol; here calls of which none is larger than a megabyte go
as LL, others as Simple, and a message as NCCL's threshold says, on one channel. LL lines that reach a Simple buffer
over the network count as stuck. All of a call's channels go on side by side, where a device may have room for fewer.
A kernel that is stuck stays so, even where a later call of its neighbour would feed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from simdist.c10d.backends.nccl import _folds
from simdist.c10d.backends.nccl._fifos import Kernel, Protocol, Wire, ll, ll128, move, settle, simple
from simdist.c10d.backends.nccl._folds import Operand, Tree
from simdist.c10d.engine import Collision
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.surface import Operation
from simdist.c10d.surface._memory import as_bytes, checksum

__all__ = ["LARGEST_LL", "Plan", "collide", "collide_messages"]

Tensor = torch.Tensor
Call = tuple[Operation, Any, Any]
Wires = dict[Any, Wire]  # by channel, protocol, source and target
LARGEST_LL = 1 << 20  # bytes of a collective
_LARGEST_LL_MESSAGE = 16384  # NCCL_P2P_LL_THRESHOLD
_MESSAGE_CHUNK = 512 << 10  # NCCL_P2P_NVL_CHUNKSIZE
_IN_ONE_SLICE = ("broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rank's call goes: in which protocol, over how many channels, up and down trees or around the ring."""

    protocol: str
    channels: int = 1
    loop_bytes: int = 0  # of a chunk; 0: as always
    trees: Sequence[tuple[int, Tree]] = ()


@dataclass(slots=True)
class _Turn:
    """What a kernel does with one chunk."""

    length: int
    receives: Sequence[Wire] = ()
    sends: Sequence[Wire] = ()
    source: Tensor | None = None
    target: Tensor | None = None
    is_total: bool = False  # it has what all ranks have put in


@dataclass(slots=True)
class _Side:
    """A rank, with its call."""

    rank: int
    ranks: int
    operation: Operation
    inputs: Any
    factor: Any
    plan: Plan
    wires: Wires
    filled: list[Tensor] = field(default_factory=list)

    def wire(self, channel: Any, protocol: Protocol, source: int, target: int) -> Wire:
        key = channel, protocol.name, source, target
        found = self.wires.get(key)
        if found is None:
            found = self.wires[key] = Wire(protocol)
        return found

    def around(self, channel: int, protocol: Protocol) -> tuple[list[Wire], list[Wire]]:
        """From the rank before, and to the next one."""
        before, following = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        return [self.wire(channel, protocol, before, self.rank)], [self.wire(channel, protocol, self.rank, following)]

    def protocol(self) -> Protocol:
        plan = self.plan
        size = plan.loop_bytes or _folds.LOOP_BYTES[plan.protocol]
        if plan.protocol != "simple":
            return ll(size) if plan.protocol == "ll" else ll128(size)
        return simple(size // 4) if plan.trees or self.operation.name in _IN_ONE_SLICE else simple(size // 4, 2, 2)

    def operand(self, data: Tensor) -> Operand:
        operation = self.operation
        return Operand(data, operation.reduction or "sum", self.factor, is_bool=operation.dtype_name == "bool")

    def parts(self, data: Tensor) -> list[tuple[int, int]]:
        """What each channel has of some data, from where to where."""
        return _folds.parts_of(data.numel(), self.plan.channels, _aligned(data))

    def kernel(self, protocol: Protocol, operand: Operand, turns: Iterator[_Turn]) -> Kernel:
        for turn in turns:
            yield from move(
                *(protocol, turn.receives, turn.sends, turn.length, operand.data.dtype),
                source=turn.source,
                target=turn.target,
                combine=operand.combine,
                finish=(lambda total: _folds.averaged(total, operand, self.ranks)) if turn.is_total else None,
            )


def collide(calls: Sequence[Call], plans: Sequence[Plan], wires: Wires) -> Collision:
    """Run the kernels of the calls of all ranks, by rank; `wires` have what calls before have left in buffers.

    Inputs and factors are those that `NcclAlgorithm.execute` takes, and are filled as far as kernels come.
    """
    sides = [
        _Side(rank, len(calls), *call, plan, wires) for rank, (call, plan) in enumerate(zip(calls, plans, strict=True))
    ]
    kernels = {side.rank: list(_KERNELS[side.operation.name](side)) for side in sides}
    return _settled(kernels, wires, {side.rank: side.filled for side in sides})


def collide_messages(pair: tuple[int, int], calls: Sequence[Call], wires: Wires) -> Collision:
    """The same of a send and a receive that have met; what they move are flat tensors."""
    sides = {rank: _Side(rank, 2, *call, Plan("simple"), wires) for rank, call in zip(pair, calls, strict=True)}
    source, target = pair
    kernels = {
        source: [_send(sides[source], target, sides[source].inputs)],
        target: [_receive(sides[target], source, sides[target].inputs)],
    }
    return _settled(kernels, wires, {target: sides[target].filled})


def _settled(
    kernels: Mapping[int, Sequence[Kernel]], wires: Wires, filled: Mapping[int, Sequence[Tensor]]
) -> Collision:
    done = settle(kernels, wires)
    cut = [found for key, wire in wires.items() if key[3] not in done and (found := _cut(key, wire, wires))]
    for key in [key for key, wire in wires.items() if wire.is_even]:
        del wires[key]
    crc = checksum([tensor for rank in done for tensor in filled.get(rank, ())], CHECKSUM_BYTES)
    return Collision(frozenset(done), crc, tuple(cut))


def _cut(key: Any, wire: Wire, wires: Wires) -> tuple[int, int, int, int] | None:
    """A message for which a network's card has no room: from whom, to whom, its bytes, the room that it has."""
    channel, protocol, source, target = key
    for (other_channel, other, *ends), found in wires.items():
        room = found.protocol.step_bytes * found.protocol.steps
        if (other_channel, *ends) == (channel, source, target) and other != protocol and wire.message_bytes > room:
            return source, target, wire.message_bytes, room
    return None


def _aligned(data: Tensor) -> int:
    return max(1, _folds.ALIGNED_BYTES // data.element_size())


def _span(data: Tensor, begin: int, size: int, end: int) -> slice:
    return slice(begin, max(begin, min(begin + size, end)))


# -- the kernels of a rank, by operation -----------------------------------------------------------------------------


def _all_reduce(side: _Side) -> Iterator[Kernel]:
    data, protocol = side.inputs, side.protocol()
    operand = side.operand(data)
    ready = _folds.scaled(operand, side.ranks)
    side.filled.append(data)
    turns = _up_and_down if side.plan.trees else _around_twice
    for channel, (first, end) in enumerate(side.parts(data)):
        for each in turns(side, protocol, channel, ready, data, first, end):
            yield side.kernel(protocol, operand, each)


def _around_twice(
    side: _Side, protocol: Protocol, channel: int, ready: Tensor, data: Tensor, first: int, end: int
) -> Iterator[Iterator[_Turn]]:
    before, following = side.around(channel, protocol)
    ranks, most = side.ranks, protocol.chunk_bytes // data.element_size()

    def turns() -> Iterator[_Turn]:
        for place in range(first, end, ranks * most):
            size = most
            if end - place < ranks * most:
                each = -(-(end - place) // ranks)
                size = -(-each // _aligned(data)) * _aligned(data)
            for step in range(1, 2 * ranks):  # at the n-th a chunk is complete
                span = _span(data, place + (side.rank - step) % ranks * size, size, end)
                yield _Turn(
                    span.stop - span.start,
                    before if step > 1 else (),
                    following if step < 2 * ranks - 1 else (),
                    ready[span] if step <= ranks else None,
                    data[span] if step >= ranks else None,
                    is_total=step == ranks,
                )

    yield turns()


def _up_and_down(
    side: _Side, protocol: Protocol, channel: int, ready: Tensor, data: Tensor, first: int, end: int
) -> Iterator[Iterator[_Turn]]:
    rank = side.rank
    root, tree = side.plan.trees[2 * channel // max(2, side.plan.channels)]
    from_children = [side.wire(channel, protocol, child, rank) for child in tree[rank]]
    to_children = [side.wire(channel, protocol, rank, child) for child in tree[rank]]
    size = protocol.chunk_bytes // data.element_size()
    spans = [_span(data, begin, size, end) for begin in range(first, end, size)]
    if rank == root:
        yield (
            _Turn(span.stop - span.start, from_children, to_children, ready[span], data[span], is_total=True)
            for span in spans
        )
        return
    parent = next(other for other, children in enumerate(tree) if rank in children)
    to_parent = [side.wire(channel, protocol, rank, parent)]
    from_parent = [side.wire(channel, protocol, parent, rank)]
    yield (_Turn(span.stop - span.start, from_children, to_parent, ready[span]) for span in spans)
    yield (_Turn(span.stop - span.start, from_parent, to_children, None, data[span]) for span in spans)


def _reduce_scatter(side: _Side) -> Iterator[Kernel]:
    output, chunks = side.inputs
    ranks, protocol, operand = side.ranks, side.protocol(), side.operand(output)
    ready = [_folds.scaled(side.operand(chunk), ranks) for chunk in chunks]
    side.filled.append(output)
    size = protocol.chunk_bytes // output.element_size()

    def turns(channel: int, first: int, end: int) -> Iterator[_Turn]:
        before, following = side.around(channel, protocol)
        for begin in range(first, end, size):
            span = _span(output, begin, size, end)
            for step in range(1, ranks + 1):
                last = step == ranks
                yield _Turn(
                    span.stop - span.start,
                    before if step > 1 else (),
                    () if last else following,
                    ready[(side.rank - step) % ranks][span],
                    output[span] if last else None,
                    is_total=last,
                )

    for channel, part in enumerate(side.parts(output)):
        yield side.kernel(protocol, operand, turns(channel, *part))


def _all_gather(side: _Side) -> Iterator[Kernel]:
    outputs, data = side.inputs
    ranks, protocol = side.ranks, side.protocol()
    side.filled.extend(outputs)
    size = protocol.chunk_bytes // data.element_size()

    def turns(channel: int, first: int, end: int) -> Iterator[_Turn]:
        before, following = side.around(channel, protocol)
        for begin in range(first, end, size):
            span = _span(data, begin, size, end)
            for step in range(ranks):
                yield _Turn(
                    span.stop - span.start,
                    before if step else (),
                    following if step < ranks - 1 else (),
                    None if step else data[span],
                    outputs[(side.rank - step) % ranks][span],
                )

    for channel, part in enumerate(side.parts(data)):
        yield side.kernel(protocol, side.operand(data), turns(channel, *part))


def _chain(side: _Side) -> Iterator[Kernel]:
    """A broadcast begins at its root, and ends before it; a reduce begins behind it, and ends there."""
    data, ranks, protocol = side.inputs, side.ranks, side.protocol()
    operand, reduces = side.operand(data), side.operation.name == "reduce"
    ready = _folds.scaled(operand, ranks) if reduces else data
    place = (side.rank - side.operation.root - reduces) % ranks
    if place == ranks - 1 or not reduces:
        side.filled.append(data)
    size = protocol.chunk_bytes // data.element_size()

    def turns(channel: int, first: int, end: int) -> Iterator[_Turn]:
        before, following = side.around(channel, protocol)
        for begin in range(first, end, size):
            span = _span(data, begin, size, end)
            yield _Turn(
                span.stop - span.start,
                before if place else (),
                following if place < ranks - 1 else (),
                ready[span] if reduces or not place else None,
                data[span] if (place == ranks - 1 if reduces else place) else None,
                is_total=reduces and place == ranks - 1,
            )

    for channel, part in enumerate(side.parts(data)):
        yield side.kernel(protocol, operand, turns(channel, *part))


def _all_to_all(side: _Side) -> Iterator[Kernel]:
    outputs, inputs = side.inputs
    return _pairs(side, dict(enumerate(inputs)), dict(enumerate(outputs)))


def _gather(side: _Side) -> Iterator[Kernel]:
    outputs, data = side.inputs
    return _pairs(side, {side.operation.root: data}, {} if outputs is None else dict(enumerate(outputs)))


def _scatter(side: _Side) -> Iterator[Kernel]:
    output, inputs = side.inputs
    return _pairs(side, {} if inputs is None else dict(enumerate(inputs)), {side.operation.root: output})


def _pairs(side: _Side, sent: Mapping[int, Tensor], received: Mapping[int, Tensor]) -> Iterator[Kernel]:
    for peer in range(side.ranks):
        if peer == side.rank and peer in sent and peer in received:
            data, room = as_bytes(sent[peer]), as_bytes(received[peer])
            room[: len(data)].copy_(data[: len(room)])
            continue
        if peer in sent and sent[peer].numel():
            yield _send(side, peer, sent[peer])
        if peer in received and received[peer].numel():
            yield _receive(side, peer, received[peer])


def _message_protocol(data: Tensor) -> Protocol:
    return ll(_folds.LOOP_BYTES["ll"]) if data.numel() <= _LARGEST_LL_MESSAGE else simple(_MESSAGE_CHUNK)


def _send(side: _Side, peer: int, tensor: Tensor) -> Kernel:
    data = as_bytes(tensor)
    protocol = _message_protocol(data)
    wires = [side.wire("message", protocol, side.rank, peer)]
    spans = [slice(begin, begin + protocol.chunk_bytes) for begin in range(0, max(1, len(data)), protocol.chunk_bytes)]
    turns = (_Turn(len(data[span]), (), wires, data[span]) for span in spans)
    return side.kernel(protocol, side.operand(data), turns)


def _receive(side: _Side, peer: int, tensor: Tensor) -> Kernel:
    data = as_bytes(tensor)
    protocol = _message_protocol(data)
    side.filled.append(tensor)
    wires = [side.wire("message", protocol, peer, side.rank)]
    spans = [slice(begin, begin + protocol.chunk_bytes) for begin in range(0, max(1, len(data)), protocol.chunk_bytes)]
    turns = (_Turn(len(data[span]), wires, (), None, data[span]) for span in spans)
    return side.kernel(protocol, side.operand(data), turns)


_KERNELS: dict[str, Callable[[_Side], Iterator[Kernel]]] = {
    "all_reduce": _all_reduce,
    "barrier": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _chain,
    "reduce": _chain,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
}
