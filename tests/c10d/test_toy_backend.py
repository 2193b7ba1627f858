"""A third backend, from outside: a hub that adds up in rank order, with its own texts, on a stream.

It has all that a new backend needs: four strategies, and a name for torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d import group_maker
from simdist.c10d.backends import GLOO
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._work import SimWork
from simdist.c10d.engine import Algorithm, Backend, Completion, P2PWork, Program, ProgramBuilder, Sizes
from simdist.faults import Crash
from simdist.process import current_process

Tensor = torch.Tensor
HUB_RANK = 0


class HubAlgorithm(Algorithm):
    """All ranks send to rank 0, which adds up in rank order and sends the sum back."""

    def program(self, operation: Operation, rank: int, ranks: int, sizes: Sizes) -> Program:
        builder = ProgramBuilder()
        others = [rank] if rank != HUB_RANK else list(range(1, ranks))
        for other in others:
            if rank == HUB_RANK:
                builder.wait_recv(builder.recv(other, operation.size, reduced=True))
            else:
                builder.wait_send(builder.send(HUB_RANK, operation.size))
        for other in others:
            if rank == HUB_RANK:
                builder.wait_send(builder.send(other, operation.size))
            else:
                builder.wait_recv(builder.recv(HUB_RANK, operation.size))
        return builder.steps

    def duration_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> int:
        return 4 * latency_ns + 2 * (ranks - 1) * round(operation.size * byte_ns)

    def all_reduce(self, tensors: Sequence[Tensor], reduction: str, *, paired: bool = False) -> None:
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            self.combine(reduction, total.dtype)(total, tensor, total)
        for tensor in tensors:
            tensor.copy_(total)

    def reduce(self, tensors: Sequence[Tensor], reduction: str, root: int, *, paired: bool = False) -> None:
        copies = [tensor.clone() for tensor in tensors]
        self.all_reduce(copies, reduction)
        tensors[root].copy_(copies[root])

    def combine(self, reduction: str, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], None]:
        functions: dict[str, Any] = {"sum": torch.add, "product": torch.mul}

        def hop(local: Tensor, received: Tensor, out: Tensor) -> None:
            functions[reduction](local, received, out=out)

        return hop


class HubFailure:
    """The hub's own error texts."""

    has_timeouts = True
    late_ns = 3_000
    closing_ns = 5_000

    def timed_out(self, kind: str, timeout_ns: int) -> str:
        return f"HUB: no answer to {kind} in {timeout_ns} ns"

    def closed_by_peer(self, peer: int) -> str:
        return f"HUB: spoke {peer} left"

    def reset_by_peer(self, peer: int) -> str:
        return f"HUB: spoke {peer} broke"

    def pair_closed(self) -> str:
        return "HUB: gave up before"

    def overrun(self, sent: int, room: int) -> str:
        return f"HUB: {sent} bytes for {room}"


class StreamWork(SimWork):
    """A work whose `wait` makes the stream wait and returns at once; `synchronize` blocks the host."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def synchronize(self) -> None:
        super().wait()


HUB = Backend(
    name="hub",
    arguments=GLOO.arguments,
    algorithm=HubAlgorithm(),
    failure=HubFailure(),
    completion=Completion(work=StreamWork, message=P2PWork),
    connect_ns=7_000,
)


def start() -> int:
    dist.Backend.register_backend("hub", group_maker(HUB), devices=["cpu"])
    dist.init_process_group("hub", timeout=timedelta(seconds=2))
    return dist.get_rank()


def now_ns() -> int:
    process = current_process()
    assert process is not None
    return process.simulation.now_ns


def test_its_order_of_additions_is_its_own() -> None:
    def body() -> list[float]:
        tensor = torch.tensor([[1e8, 1.0, -1e8, 1.0][start()]])
        dist.all_reduce(tensor, async_op=True).synchronize()
        return [tensor.item()]

    result = simdist.run(body, world_size=4)
    result.raise_for_failure()

    in_rank_order = torch.tensor(1e8) + 1.0 + -1e8 + 1.0
    assert list(result.values) == [[in_rank_order.item()]] * 4


def test_its_works_are_ordered_on_a_stream_and_its_times_are_its_own() -> None:
    def body() -> list[Any]:
        start()
        tensor = torch.ones(1000)
        begin = now_ns()
        work = dist.all_reduce(tensor, async_op=True)
        seen = [begin, work.wait(), now_ns() - begin, tensor[0].item()]
        work.synchronize()
        return [*seen, now_ns() - begin, tensor[0].item()]

    result = simdist.run(body, world_size=3)
    result.raise_for_failure()

    cost_ns = 4 * 50_000 + 4 * 1000  # four latencies, and twice two payloads at 4 bytes per ns
    assert list(result.values) == [[7_000, True, 0, 1.0, cost_ns, 3.0]] * 3


@pytest.mark.parametrize(
    ("when", "text"), [("before", "HUB: spoke 1 left"), ("during", "HUB: spoke 1 broke"), ("after", "")]
)
def test_a_dead_spoke_is_reported_in_its_words(when: Any, text: str) -> None:
    def body() -> float:
        start()
        tensor = torch.ones(8 << 20)
        dist.all_reduce(tensor, async_op=True).synchronize()
        return float(tensor[0].item())

    result = simdist.run(body, world_size=2, faults=[Crash(rank=1, op="all_reduce", when=when)])

    assert str(result.ranks[0].exception or "") == text
    assert result.ranks[0].value == (None if text else 2.0)


def test_who_never_comes_is_waited_for_as_long_as_the_timeout_says() -> None:
    def body() -> None:
        if start() == 1:
            time.sleep(10)
        dist.all_reduce(torch.ones(1), async_op=True).synchronize()

    result = simdist.run(body, world_size=2)

    assert str(result.ranks[0].exception) == "HUB: no answer to recv in 2000000000 ns"
    assert result.ranks[0].ended_ns == 2_000_010_000


def test_it_has_no_monitored_barrier_and_exists_on_ranks_only() -> None:
    group: Any = dist.group
    result = simdist.run(lambda: (start(), group.WORLD.monitored_barrier()), world_size=2)

    assert str(result.ranks[0].exception) == "Backend hub does not support monitoredBarrier"
    store: Any = None
    with pytest.raises(simdist.SimdistError, match="'hub' backend exists only inside simulated ranks"):
        group_maker(HUB)(store, 0, 1, timedelta(seconds=1))
