"""Gloo's message schedules: the posts and waits of each rank of a collective, in order.

Sources: gloo/allreduce.cc, allgather.cc, broadcast.cc, barrier.cc, gather.cc, scatter.cc, alltoall.cc, reduce.cc. The
order of the waits decides which error text a rank shows when a peer is missing (checked against real Gloo).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simdist.c10d.backends.gloo._costs import reduce_segments, segments
from simdist.c10d.engine import Program, ProgramBuilder

__all__ = ["allgather", "allreduce", "allreduces", "alltoall", "barrier", "broadcast", "gather", "reduce", "scatter"]


def allreduce(rank: int, ranks: int, size: int, element: int) -> Program:
    """Segmented ring: data flows to the rank below, two segments in flight in each direction."""
    program = ProgramBuilder()
    if ranks > 1 and size:
        count, per_rank, segment = segments(size, element, ranks)
        _reduce_phase(program, rank, ranks, size, count, per_rank, segment, count - per_rank)
        length = _clipper(size, segment)
        _ring(
            program,
            steps=count - per_rank,
            below=(rank - 1) % ranks,
            above=(rank + 1) % ranks,
            segment=segment,
            sent=lambda i: (rank * per_rank + i) % count,
            received=lambda i: ((rank + 1) * per_rank + i) % count,
            length=length,
            reduced=False,
        )
    return program.steps


def allreduces(rank: int, ranks: int, sizes: Sequence[int], element: int) -> Program:
    """Several all-reduces, one after the other; messages only match messages of the same all-reduce."""
    steps: Program = []
    sends = receives = 0
    for index, size in enumerate(sizes):
        program = allreduce(rank, ranks, size, element)
        steps.append(("slot", f"all_reduce {index}"))
        for step in program:
            if step[0] == "wait_send" or step[0] == "wait_recv":
                steps.append((step[0], step[1] + (sends if step[0] == "wait_send" else receives)))
            else:
                steps.append(step)
        sends += sum(step[0] == "send" for step in program)
        receives += sum(step[0] == "recv" for step in program)
    return steps


def reduce(rank: int, ranks: int, size: int, element: int, root: int) -> Program:
    """The ring of `allreduce` with its own segment arithmetic, then every chunk goes straight to the root."""
    program = ProgramBuilder()
    if ranks == 1 or not size:
        return program.steps
    count, per_rank, segment = reduce_segments(size, element, ranks)
    _reduce_phase(program, rank, ranks, size, count, per_rank, segment, count - 2)
    chunk = per_rank * segment

    def chunk_size(owner: int) -> int:
        return max(0, min(chunk, size - owner * chunk))

    if rank == root:
        posted = [program.recv(q, chunk_size(q), q * chunk) for q in range(ranks) if q != root and chunk_size(q)]
        for index in posted:
            program.wait_recv(index)
    elif chunk_size(rank):
        program.wait_send(program.send(root, chunk_size(rank), rank * chunk))
    return program.steps


def broadcast(rank: int, ranks: int, size: int, root: int) -> Program:
    """Binomial tree; sends are not awaited between rounds."""
    program = ProgramBuilder()
    virtual = (rank - root) % ranks
    sends = []
    distance = 1
    while distance < ranks:
        if virtual < distance:
            if virtual + distance < ranks:
                sends.append(program.send((virtual + distance + root) % ranks, size))
        elif virtual < 2 * distance:
            program.wait_recv(program.recv((virtual - distance + root) % ranks, size))
        distance *= 2
    for index in sends:
        program.wait_send(index)
    return program.steps


def allgather(rank: int, ranks: int, block: int) -> Program:
    """Ring; each block is cut in two halves, two in flight. Empty blocks are not sent."""
    program = ProgramBuilder()
    if not block:
        return program.steps
    first, second = block // 2, block - block // 2
    sends: list[int] = []
    receives: list[int] = []
    for i in range(2 * (ranks - 1)):
        if i >= 2:
            program.wait_send(sends[i - 2])
            program.wait_recv(receives[i - 2])
        half = second if i % 2 else first
        sends.append(program.send((rank + 1) % ranks, half))
        receives.append(program.recv((rank - 1) % ranks, half))
    for i in range(max(0, len(sends) - 2), len(sends)):
        program.wait_send(sends[i])
        program.wait_recv(receives[i])
    return program.steps


def alltoall(rank: int, ranks: int, sent: list[int], received: list[int]) -> Program:
    """Everything is posted at once, pairwise offsets; `sent[q]` and `received[q]` are bytes to and from rank q."""
    program = ProgramBuilder()
    for offset in range(1, ranks):
        to, origin = (rank + offset) % ranks, (rank - offset) % ranks
        program.send(to, sent[to], sum(sent[:to]))
        program.recv(origin, received[origin], sum(received[:origin]))
    for index in range(ranks - 1):
        program.wait_send(index)
    for index in range(ranks - 1):
        program.wait_recv(index)
    return program.steps


def gather(rank: int, ranks: int, block: int, root: int) -> Program:
    """The root receives from everyone at once."""
    program = ProgramBuilder()
    if rank != root:
        program.wait_send(program.send(root, block))
        return program.steps
    for index in [program.recv(q, block) for q in range(ranks) if q != root]:
        program.wait_recv(index)
    return program.steps


def scatter(rank: int, ranks: int, block: int, root: int) -> Program:
    """The root sends to everyone at once."""
    program = ProgramBuilder()
    if rank != root:
        program.wait_recv(program.recv(root, block))
        return program.steps
    for index in [program.send(q, block) for q in range(ranks) if q != root]:
        program.wait_send(index)
    return program.steps


def barrier(rank: int, ranks: int) -> Program:
    """Dissemination: in round d the rank hears from r - d and informs r + d."""
    program = ProgramBuilder()
    distance = 1
    while distance < ranks:
        received = program.recv((rank - distance) % ranks, 0)
        sent = program.send((rank + distance) % ranks, 0)
        program.wait_recv(received)
        program.wait_send(sent)
        distance *= 2
    return program.steps


def _reduce_phase(
    program: ProgramBuilder, rank: int, ranks: int, size: int, count: int, per_rank: int, segment: int, steps: int
) -> None:
    _ring(
        program,
        steps=steps,
        below=(rank - 1) % ranks,
        above=(rank + 1) % ranks,
        segment=segment,
        sent=lambda i: ((rank + 1) * per_rank + i) % count,
        received=lambda i: ((rank + 2) * per_rank + i) % count,
        length=_clipper(size, segment),
        reduced=True,
    )


def _ring(
    program: ProgramBuilder,
    *,
    steps: int,
    below: int,
    above: int,
    segment: int,
    sent: Callable[[int], int],
    received: Callable[[int], int],
    length: Callable[[int], int],
    reduced: bool,
) -> None:
    """`sent(i)` and `received(i)` are the segments of step i; both sides leave out empty segments."""
    sends: dict[int, int] = {}
    receives: dict[int, int] = {}
    for i in range(steps + 2):
        if i >= 2:
            if i - 2 in receives:
                program.wait_recv(receives[i - 2])
            if i - 2 in sends:
                program.wait_send(sends[i - 2])
        if i < steps:
            coming, going = received(i), sent(i)
            if length(coming) > 0:
                receives[i] = program.recv(above, length(coming), coming * segment, reduced=reduced)
            if length(going) > 0:
                sends[i] = program.send(below, length(going), going * segment)


def _clipper(size: int, segment: int) -> Callable[[int], int]:
    def length(index: int) -> int:
        return max(0, min(segment, size - index * segment))

    return length
