"""PyTorch's own tests of compiled messages over NCCL (test_c10d_nccl.py, next to the flight recorder's), by name.

As in `test_torch_suite.py`. Compiling takes long, so all but the first run with `--real`.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d as c10d_names

from tests.c10d.nccl.suite import Case, cases, dist, hold, play

_c: Any = c10d_names
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler, so that no test compiles less because another one ran before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def begin(self: Case) -> Any:
    """Make the group. Messages are compiled from now on, which is a setting of the rank's thread."""
    settings: Any = torch._dynamo.config
    settings.enable_p2p_compilation = True
    torch.cuda.set_device(self.rank)
    return self.init()


def case_batched_send_recv_compiled(self: Case, timed: bool, sizes: Any) -> None:
    def pattern(tensors: list[Tensor]) -> None:
        operations = []
        for tensor in tensors:
            if self.rank == 0:
                operations.append(dist.P2POp(dist.irecv, tensor, 1))
            else:
                operations.append(dist.P2POp(dist.isend, tensor, 0))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    group = begin(self)
    if timed:
        group._enable_collectives_timing()
    compiled = torch.compile(pattern)
    for _ in range(20):
        tensors = [torch.full(size, 2.0 * self.rank, device=self.device) for size in sizes]
        compiled(tensors)
        assert all(torch.equal(each, torch.full_like(each, 2.0)) for each in tensors)
    torch.cuda.synchronize()
    time.sleep(1)
    found = pickle.loads(_c._dump_nccl_trace())["entries"]
    assert len(found) == 20 * (len(sizes) + 1)
    for last in found[len(sizes) :: len(sizes) + 1]:
        assert (last["profiling_name"], last["state"]) == ("nccl:coalesced", "completed")


def case_compiled_fire_and_forget_isend(self: Case) -> None:
    begin(self)
    rank = self.rank  # a number here, not looked up in the environment

    @torch.compile(fullgraph=True)
    def exchange(x: Tensor) -> Tensor:
        if rank == 0:
            dist.isend(x, dst=1)
        else:
            dist.irecv(x, src=0)
        return x

    x = torch.full((4,), 42.0 * (1 - rank), device=self.device)
    assert exchange(x).tolist() == x.tolist() == [42.0] * 4


def send(tensors: list[Tensor], peer: int) -> list[Any]:
    """Begin all sends, then wait for them."""
    works = [dist.isend(tensor, peer) for tensor in tensors]
    for work in works:
        work.wait()
    return works


def receive(tensors: list[Tensor], peer: int) -> list[Any]:
    """Begin all receives, then wait for them."""
    works = [dist.irecv(tensor, peer) for tensor in tensors]
    for work in works:
        work.wait()
    return works


def exchange_often(self: Case, rounds: int, count: int = 1, length: int = 10) -> None:
    """Send several tensors from rank 0 to rank 1, `rounds` times, in compiled code."""
    exchange = torch.compile(receive if self.rank else send)
    for index in range(rounds):
        tensors = [
            torch.full((length,), (index + each) * (1.0 - self.rank), device=self.device) for each in range(count)
        ]
        exchange(tensors, 1 - self.rank)
        assert [tensor.tolist() for tensor in tensors] == [[float(index + each)] * length for each in range(count)]
    torch.cuda.synchronize()


def case_compiled_isend_with_wait(self: Case) -> None:
    begin(self)
    exchange_often(self, 1)


def case_compiled_multiple_isend_with_waits(self: Case) -> None:
    begin(self)
    for count in (1, 3, 5):
        exchange_often(self, 1, count)


def case_compiled_isend_irecv_timing_stress_with_waits(self: Case) -> None:
    begin(self)._enable_collectives_timing()
    exchange_often(self, 50, length=100)


def case_compiled_paired_isend_irecv_with_waits(self: Case) -> None:
    def pattern(sent: Tensor, received: Tensor, peer: int) -> tuple[Any, Any]:
        if self.rank == 0:
            sending = dist.isend(sent, peer)
            receiving = dist.irecv(received, peer)
        else:
            receiving = dist.irecv(received, peer)
            sending = dist.isend(sent, peer)
        sending.wait()
        receiving.wait()
        return sending, receiving

    begin(self)
    compiled = torch.compile(pattern)
    peer = 1 - self.rank
    for size in ((10,), (5, 5), (2, 3, 4)):
        received = torch.zeros(size, device=self.device)
        compiled(torch.full(size, self.rank + 1.0, device=self.device), received, peer)
        assert torch.equal(received, torch.full_like(received, peer + 1.0))
    torch.cuda.synchronize()


def case_compiled_iterative_communication_with_waits(self: Case) -> None:
    def pattern(size: tuple[int, ...], rounds: int, peer: int) -> Tensor:
        for index in range(rounds):
            if self.rank == 0:
                tensor = torch.ones(size, device=self.device) * index
                dist.isend(tensor, peer).wait()
            else:
                tensor = torch.zeros(size, device=self.device)
                dist.irecv(tensor, peer).wait()
        return tensor

    begin(self)
    compiled = torch.compile(pattern)
    found = [compiled((100,), rounds, 1 - self.rank) for rounds in (5, 10)]
    torch.cuda.synchronize()
    assert [sorted(set(tensor.tolist())) for tensor in found] == [[4.0], [9.0]]


def to_the_next(sent: Tensor, received: Tensor) -> list[Any]:
    """Do a step around the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return list(
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, (rank + 1) % size),
                dist.P2POp(dist.irecv, received, (rank - 1) % size),
            ]
        )
    )


def case_compiled_with_reduce_overhead(self: Case) -> None:
    def pattern(tensor: Tensor) -> Tensor:
        received = torch.empty_like(tensor)
        for work in to_the_next(tensor, received):
            work.wait()
        return received

    begin(self)
    found = torch.compile(pattern, mode="reduce-overhead")(torch.full((10,), float(self.rank), device=self.device))
    torch.cuda.synchronize()
    assert found.tolist() == [1.0 - self.rank] * 10


def case_p2p_interleave(self: Case) -> None:
    def pattern(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        works = to_the_next(x, first)
        meanwhile = x * 2 + 1
        for work in works:
            work.wait()
        sent = first + meanwhile
        works = to_the_next(sent, second)
        meanwhile = sent * 1.000244140625
        for work in works:
            work.wait()
        return second + meanwhile

    begin(self)
    x = torch.full((256, 256), self.rank + 1.0, device="cuda")
    expected = pattern(x, torch.zeros_like(x), torch.zeros_like(x))
    compiled = torch.compile(pattern)
    for _ in range(2):
        found = compiled(x, torch.zeros_like(x), torch.zeros_like(x))
    difference = (expected - found).abs().max()
    dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    assert difference.item() < 1e-3


def case_compiled_ring_attention_pattern(self: Case) -> None:
    begin(self)
    for steps in (2, 4):

        def attend(q: Tensor, k: Tensor, steps: int = steps) -> Tensor:
            received, total, current = torch.empty_like(k), torch.zeros_like(q), k
            for step in range(steps):
                works = to_the_next(current, received)
                total = total + torch.mm(torch.mm(q, current.t()), current) * (1.0 / (step + 1))
                for work in works:
                    work.wait()
                current = received * 0.5
                received = torch.empty_like(k)
            return total + torch.mm(torch.mm(q, current.t()), current)

        for size in (64, 256):
            q, k = torch.randn(size, size, device=self.device), torch.randn(size, size, device=self.device) * 0.1
            torch.testing.assert_close(attend(q, k), torch.compile(attend)(q, k), atol=1e-3, rtol=1e-3)


CASES = cases(globals())
BATCHES = "batched_send_recv_compiled"
SIZES: Any = ([(2, 3)], [(2, 3), (5, 5), (1,)])


@pytest.mark.filterwarnings("ignore")
def test_torchs_own_batches(tmp_path: Path) -> None:
    hold(play(lambda self: case_batched_send_recv_compiled(self, True, SIZES[1]), tmp_path))


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_torchs_own_batches_of_sizes(timed: bool, sizes: Any, tmp_path: Path) -> None:
    hold(play(lambda self: case_batched_send_recv_compiled(self, timed, sizes), tmp_path))


@pytest.mark.real
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CASES if name != BATCHES])
def test_torchs_own(name: str, tmp_path: Path) -> None:
    case: Callable[[Case], None] = globals()[f"case_{name}"]
    hold(play(case, tmp_path))
