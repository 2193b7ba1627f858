"""The results of calls that do not match: NCCL compares nothing, so each rank's kernel does what its own call says.

Ranks with less to do may finish while others wait for ever. If the same number of chunks goes around, all ranks finish,
with wrong values at the end of the data. A different type reads the same bytes differently. Different operations mostly
get stuck, and sometimes mix data up. Here every rank runs the kernel of its call over the buffers between neighbours
(`_fifos.py`), chunk by chunk, as in src/device of NCCL 2.29.7: all_reduce.h, reduce_scatter.h, all_gather.h,
broadcast.h, reduce.h, sendrecv.h. Data left in a buffer stays for the next call on the same communicator.

In doubt: the reference profile, one ring, chooses no protocol. Here calls use LL if none of them is larger than a
megabyte, else Simple; messages follow NCCL's threshold, on one channel. LL lines that reach a Simple buffer over the
network count as stuck. All channels of a call run concurrently, while a device may have room for fewer. A stuck kernel
stays stuck, even if a later call of its neighbour would feed it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from simdist.c10d.backends.nccl.kernels import _folds
from simdist.c10d.backends.nccl.kernels._fifos import (
    Arithmetic,
    Kernel,
    Protocol,
    Turn,
    Wire,
    ll,
    ll128,
    move,
    settle,
    simple,
)
from simdist.c10d.backends.nccl.kernels._folds import Operand, Tree
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Brought, Factor
from simdist.c10d.engine import Collision
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.surface._memory import as_bytes, checksum

__all__ = ["LARGEST_LL", "Plan", "Wires", "collide", "collide_messages"]

Tensor = torch.Tensor

Wires = dict[tuple[int | str, str, int, int], Wire]  # by channel, protocol, source and target
LARGEST_LL = 1 << 20  # bytes of a collective
_LARGEST_LL_MESSAGE = 16384  # NCCL_P2P_LL_THRESHOLD
_MESSAGE_CHUNK = 512 << 10  # NCCL_P2P_NVL_CHUNKSIZE
_IN_ONE_SLICE = ("broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rank's call runs: its protocol, its number of channels, and trees (or else the ring)."""

    protocol: str
    channels: int = 1
    loop_bytes: int = 0  # of a chunk; 0: the default
    trees: Sequence[tuple[int, Tree]] = ()


@dataclass(slots=True)
class _Side:
    """A rank, with its call."""

    rank: int
    ranks: int
    operation: Operation
    inputs: Any
    factor: Factor | None
    plan: Plan
    wires: Wires
    filled: list[Tensor] = field(default_factory=list)

    def wire(self, channel: int | str, protocol: Protocol, source: int, target: int) -> Wire:
        key = channel, protocol.name, source, target
        found = self.wires.get(key)
        if found is None:
            found = self.wires[key] = Wire(protocol)
        return found

    def around(self, channel: int, protocol: Protocol) -> tuple[list[Wire], list[Wire]]:
        """Return the wires from the rank before, and to the next rank."""
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

    def in_tree(self, channel: int) -> tuple[int, Sequence[int]]:
        """Return this rank's parent in a channel's tree, -1 for the root, and its children."""
        root, tree = self.plan.trees[2 * channel // max(2, self.plan.channels)]
        if self.rank == root:
            return -1, tree[self.rank]
        return next(other for other, children in enumerate(tree) if self.rank in children), tree[self.rank]

    def on_channels(
        self, data: Tensor, protocol: Protocol, operand: Operand, turns: Callable[[int, int, int], Iterator[Turn]]
    ) -> Iterator[Kernel]:
        """Yield a kernel for each channel; `turns(channel, first, end)` gives the turns for its part of `data`."""
        for channel, (first, end) in enumerate(_folds.parts_of(data.numel(), self.plan.channels, _aligned(data))):
            yield self.kernel(protocol, operand, turns(channel, first, end))

    def kernel(self, protocol: Protocol, operand: Operand, turns: Iterator[Turn]) -> Kernel:
        arithmetic = Arithmetic(
            operand.data.dtype, operand.combine, lambda total: _folds.averaged(total, operand, self.ranks)
        )
        for turn in turns:
            yield from move(protocol, turn, arithmetic)


def collide(calls: Sequence[Brought], plans: Sequence[Plan], wires: Wires) -> Collision:
    """Run the kernels of the calls of all ranks, by rank; `wires` hold the data that earlier calls left in buffers.

    Inputs and factors are as for `NcclAlgorithm.execute`; outputs are filled as far as the kernels get.
    """
    sides = [
        _Side(rank, len(calls), *call, plan, wires) for rank, (call, plan) in enumerate(zip(calls, plans, strict=True))
    ]
    kernels = {side.rank: list(_KERNELS[side.operation.name](side)) for side in sides}
    return _settled(kernels, wires, {side.rank: side.filled for side in sides})


def collide_messages(pair: tuple[int, int], calls: Sequence[Brought], wires: Wires) -> Collision:
    """Run the kernels of a matched send and receive; their payloads are flat tensors."""
    sides = {rank: _Side(rank, 2, *call, Plan("simple"), wires) for rank, call in zip(pair, calls, strict=True)}
    source, target = pair
    kernels = {
        source: [_message(sides[source], target, sides[source].inputs, sends=True)],
        target: [_message(sides[target], source, sides[target].inputs, sends=False)],
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


def _cut(key: tuple[int | str, str, int, int], wire: Wire, wires: Wires) -> tuple[int, int, int, int] | None:
    """Return a message that exceeds a network card's buffer: source, target, its bytes, the buffer's bytes."""
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


def _spans(data: Tensor, protocol: Protocol, first: int, end: int) -> Iterator[slice]:
    """Return the slices of the chunks of a part of some data."""
    size = protocol.chunk_bytes // data.element_size()
    return (_span(data, begin, size, end) for begin in range(first, end, size))


# -- the kernels of a rank, by operation -----------------------------------------------------------------------------


def _all_reduce(side: _Side) -> Iterator[Kernel]:
    data, protocol = side.inputs, side.protocol()
    operand = side.operand(data)
    ready = _folds.scaled(operand, side.ranks)
    side.filled.append(data)
    for turns in (_up, _down) if side.plan.trees else (_around_twice,):
        yield from side.on_channels(data, protocol, operand, functools.partial(turns, side, protocol, ready, data))


def _around_twice(
    side: _Side, protocol: Protocol, ready: Tensor, data: Tensor, channel: int, first: int, end: int
) -> Iterator[Turn]:
    before, following = side.around(channel, protocol)
    ranks, most = side.ranks, protocol.chunk_bytes // data.element_size()
    for place in range(first, end, ranks * most):
        size = most
        if end - place < ranks * most:
            each = -(-(end - place) // ranks)
            size = -(-each // _aligned(data)) * _aligned(data)
        for step in range(1, 2 * ranks):  # in step `ranks` a chunk is complete
            span = _span(data, place + (side.rank - step) % ranks * size, size, end)
            yield Turn(
                span.stop - span.start,
                before if step > 1 else (),
                following if step < 2 * ranks - 1 else (),
                ready[span] if step <= ranks else None,
                data[span] if step >= ranks else None,
                is_total=step == ranks,
            )


def _up(
    side: _Side, protocol: Protocol, ready: Tensor, data: Tensor, channel: int, first: int, end: int
) -> Iterator[Turn]:
    """Send up a tree; its root sends the total down."""
    parent, children = side.in_tree(channel)
    received = [side.wire(channel, protocol, child, side.rank) for child in children]
    sent = [side.wire(channel, protocol, side.rank, each) for each in ([parent] if parent >= 0 else children)]
    for span in _spans(data, protocol, first, end):
        target = data[span] if parent < 0 else None
        yield Turn(span.stop - span.start, received, sent, ready[span], target, is_total=parent < 0)


def _down(
    side: _Side, protocol: Protocol, _: Tensor, data: Tensor, channel: int, first: int, end: int
) -> Iterator[Turn]:
    parent, children = side.in_tree(channel)
    if parent < 0:
        return
    received = [side.wire(channel, protocol, parent, side.rank)]
    sent = [side.wire(channel, protocol, side.rank, child) for child in children]
    for span in _spans(data, protocol, first, end):
        yield Turn(span.stop - span.start, received, sent, None, data[span])


def _reduce_scatter(side: _Side) -> Iterator[Kernel]:
    output, chunks = side.inputs
    ranks, protocol, operand = side.ranks, side.protocol(), side.operand(output)
    ready = [_folds.scaled(side.operand(chunk), ranks) for chunk in chunks]
    side.filled.append(output)

    def turns(channel: int, first: int, end: int) -> Iterator[Turn]:
        before, following = side.around(channel, protocol)
        for span in _spans(output, protocol, first, end):
            for step in range(1, ranks + 1):
                last = step == ranks
                yield Turn(
                    span.stop - span.start,
                    before if step > 1 else (),
                    () if last else following,
                    ready[(side.rank - step) % ranks][span],
                    output[span] if last else None,
                    is_total=last,
                )

    return side.on_channels(output, protocol, operand, turns)


def _all_gather(side: _Side) -> Iterator[Kernel]:
    outputs, data = side.inputs
    ranks, protocol = side.ranks, side.protocol()
    side.filled.extend(outputs)

    def turns(channel: int, first: int, end: int) -> Iterator[Turn]:
        before, following = side.around(channel, protocol)
        for span in _spans(data, protocol, first, end):
            for step in range(ranks):
                yield Turn(
                    span.stop - span.start,
                    before if step else (),
                    following if step < ranks - 1 else (),
                    None if step else data[span],
                    outputs[(side.rank - step) % ranks][span],
                )

    return side.on_channels(data, protocol, side.operand(data), turns)


def _chain(side: _Side) -> Iterator[Kernel]:
    """A broadcast begins at the root and ends at the rank before it; a reduce begins after the root and ends there."""
    data, ranks, protocol = side.inputs, side.ranks, side.protocol()
    operand, reduces = side.operand(data), side.operation.name == "reduce"
    ready = _folds.scaled(operand, ranks) if reduces else data
    place = (side.rank - side.operation.root - reduces) % ranks
    if place == ranks - 1 or not reduces:
        side.filled.append(data)

    def turns(channel: int, first: int, end: int) -> Iterator[Turn]:
        before, following = side.around(channel, protocol)
        for span in _spans(data, protocol, first, end):
            yield Turn(
                span.stop - span.start,
                before if place else (),
                following if place < ranks - 1 else (),
                ready[span] if reduces or not place else None,
                data[span] if (place == ranks - 1 if reduces else place) else None,
                is_total=reduces and place == ranks - 1,
            )

    return side.on_channels(data, protocol, operand, turns)


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
            yield _message(side, peer, sent[peer], sends=True)
        if peer in received and received[peer].numel():
            yield _message(side, peer, received[peer], sends=False)


def _message_protocol(data: Tensor) -> Protocol:
    return ll(_folds.LOOP_BYTES["ll"]) if data.numel() <= _LARGEST_LL_MESSAGE else simple(_MESSAGE_CHUNK)


def _message(side: _Side, peer: int, tensor: Tensor, *, sends: bool) -> Kernel:
    data = as_bytes(tensor)
    protocol = _message_protocol(data)
    ends = (side.rank, peer) if sends else (peer, side.rank)
    wires = [side.wire("message", protocol, *ends)]
    if not sends:
        side.filled.append(tensor)
    size = protocol.chunk_bytes
    parts = [data[begin : begin + size] for begin in range(0, max(1, len(data)), size)]
    turns = (Turn(len(part), (), wires, part) if sends else Turn(len(part), wires, (), None, part) for part in parts)
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
