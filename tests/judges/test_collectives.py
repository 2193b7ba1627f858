"""Operations that are left at the end: collectives of one rank, works without a wait, lost messages."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import simdist
from tests.judges.programs import gradient_in_memory_of_sums, line_of, net, only_finding, run

Body: TypeAlias = Callable[[int], None]


def one_more(rank: int) -> None:
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        dist.broadcast(torch.ones(2), 0, async_op=True)


def forgotten(rank: int) -> None:
    total = torch.ones(2)
    dist.all_reduce(total, async_op=True)
    dist.barrier()


def lost(rank: int) -> None:
    if rank == 1:
        dist.isend(torch.ones(2), 2, tag=5)


def test_a_rank_that_is_one_ahead_is_found_with_its_line() -> None:
    found = only_finding(run(one_more))

    assert (found.judge, found.rank) == ("collectives", 0)
    assert found.where == line_of(one_more, "dist.broadcast")
    assert found.against == line_of(one_more, "dist.all_reduce")
    assert found.problem == "2 collectives in group '0', ranks 1, 2 1: its last, broadcast #1, has no counterpart"


def test_a_work_that_nobody_waited_for_is_found() -> None:
    result = run(forgotten)

    assert [found.problem for found in result.findings] == ["nobody waited for all_reduce #0 in group '0'"] * 3
    assert result.findings[0].where == line_of(forgotten, "async_op=True")


def test_a_message_that_nobody_received_is_found() -> None:
    found = only_finding(run(lost))

    assert (found.rank, found.where) == (1, line_of(lost, "dist.isend"))
    assert found.problem == "send(dst=2, tag=5) in group '0' was never received"


def test_works_that_are_waited_for_are_left_alone() -> None:
    def body(rank: int) -> None:
        dist.all_reduce(torch.ones(2), async_op=True).wait()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        while not work.is_completed():
            pass
        dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
        messages = [
            dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % 3),
            dist.P2POp(dist.irecv, torch.ones(2), (rank - 1) % 3),
        ]
        for each in dist.batch_isend_irecv(messages):
            each.wait()

    assert run(body).ok


def test_groups_of_some_ranks_are_counted_by_themselves() -> None:
    def body(rank: int) -> None:
        group = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(torch.ones(2), group=group)

    assert run(body).ok


def test_a_group_whose_error_the_program_has_caught_has_no_findings() -> None:
    """What is left there follows from the error."""

    def body(rank: int) -> None:
        group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=1))
        if rank == 1:
            time.sleep(3)
            return
        with pytest.raises(RuntimeError, match=r"Timed out|Connection"):
            dist.all_reduce(torch.ones(2), group=group)

    result = run(body)

    assert [rank.status for rank in result.ranks] == ["returned"] * 3
    assert result.findings == ()


def test_a_run_that_failed_has_no_findings_about_what_is_left() -> None:
    import simdist

    def body() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2), async_op=True)
        raise ValueError("the reason")

    assert simdist.run(body, world_size=2, judges=["collectives"]).findings == ()


def test_strict_worlds_say_it_themselves() -> None:
    import simdist

    def body() -> None:
        dist.init_process_group("gloo")
        forgotten(dist.get_rank())
        dist.destroy_process_group()

    result = simdist.run(body, world_size=2, judges=["collectives"], strict=True)

    assert not result.ok
    assert result.findings == ()


def gradients(*, wrapped: bool = False, again: bool = True, accumulates: bool = False, hooked: bool = False) -> Body:
    def body(rank: int) -> None:
        model = net()
        trained: Any = DistributedDataParallel(model) if wrapped else model
        if hooked:
            trained.register_comm_hook(None, noop_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2 if accumulates else 1):
                trained(torch.randn(3, 4)).sum().backward()
                for parameter in [] if wrapped else model.parameters():
                    dist.all_reduce(parameter.grad)  # the first
            for parameter in model.parameters() if again else []:
                dist.all_reduce(parameter.grad)  # the second
            optimizer.step()

    return body


def test_gradients_that_a_program_sums_twice_are_found() -> None:
    body = gradients()
    found = only_finding(run(body))

    first, second = line_of(body, "# the first"), line_of(body, "# the second")
    assert (found.judge, found.rank, found.where, found.subject) == ("collectives", 0, second, "0.weight")
    assert found.problem == (
        f"the gradient of 0.weight is reduced twice: by all_reduce #0 in group '0' ({first}), "
        "then by all_reduce #4 in group '0'"
    )


def test_gradients_that_ddp_has_averaged_and_a_program_sums_are_found() -> None:
    body = gradients(wrapped=True)
    found = only_finding(run(body))

    assert (found.judge, found.rank, found.where) == ("collectives", 0, line_of(body, "# the second"))
    assert found.problem.startswith("the gradient of 0.weight is reduced twice: by DistributedDataParallel, then by")


@pytest.mark.parametrize(
    "body",
    [
        gradients(again=False),
        gradients(again=False, accumulates=True),
        gradients(again=False, wrapped=True),
        gradients(wrapped=True, hooked=True),  # the hook leaves the sum to the program
    ],
)
def test_gradients_that_are_summed_once_for_each_backward_are_left_alone(body: Body) -> None:
    assert run(body).findings == ()


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_gradients_that_replace_what_ddp_averaged_are_reduced_once(own: bool, backend: str) -> None:
    """As opacus clips: the program replaces what DDP has averaged, and reduces that."""

    def body() -> None:
        dist.init_process_group(backend)
        rank = dist.get_rank()
        device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        model = net().to(device)
        trained = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            trained(torch.randn(3, 4, device=device)).sum().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = torch.full_like(parameter, rank) if own else parameter.grad / 2
                dist.all_reduce(parameter.grad)
            optimizer.step()
        dist.destroy_process_group()

    findings = simdist.run(body, world_size=2, backend=backend, judges=True).findings

    assert [found.subject for found in findings] == ([] if own else ["0.weight"])


def flat_gradients(*, divides: bool = False, copies_back: bool = True, ddp: bool = True) -> Body:
    def body(rank: int) -> None:
        model: Any = DistributedDataParallel(net()) if ddp else net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            flat = torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])
            dist.all_reduce(flat)
            if divides:
                flat /= 3
            for parameter in model.parameters() if copies_back else []:
                parameter.grad.copy_(flat[: parameter.numel()].view_as(parameter))
                flat = flat[parameter.numel() :]
            optimizer.step()

    return body


def test_a_copy_of_gradients_that_a_program_sums_after_ddp_is_found() -> None:
    body = flat_gradients()
    found = only_finding(run(body, "collectives"))

    assert (found.rank, found.where, found.subject) == (0, line_of(body, "dist.all_reduce(flat)"), "0.weight")
    assert found.problem == (
        "the gradient of 0.weight is reduced twice: by DistributedDataParallel, then by all_reduce #4 in group '0', "
        "of a copy"
    )


@pytest.mark.parametrize(
    "body", [flat_gradients(divides=True), flat_gradients(copies_back=False), flat_gradients(ddp=False)]
)
def test_copies_of_gradients_that_change_nothing_are_left_alone(body: Body) -> None:
    assert run(body, "collectives").findings == ()


def test_a_gradient_in_the_memory_of_earlier_sums_is_left_alone() -> None:
    def body(rank: int) -> None:
        weight = torch.nn.Parameter(torch.randn(1000))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            weight.grad = gradient_in_memory_of_sums(1000)
            optimizer.step()

    assert run(body).findings == ()


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_gradients_that_ddp_leaves_to_the_program_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = net()
        trained = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trained.no_sync():
            loss = trained(torch.randn(3, 4)).sum()
            total = torch.distributed.nn.functional.all_reduce(loss)  # type: ignore[no-untyped-call]  # its backward reduces, too
            total.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        optimizer.step()

    assert run(body).findings == ()


def test_gradients_summed_over_groups_of_other_ranks_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        model(torch.randn(3, 4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=pairs[rank // 2])
            dist.all_reduce(parameter.grad, group=across[rank % 2])
        optimizer.step()

    assert run(body, world_size=4).findings == ()


def in_threads(*, group_of_its_own: bool = False, waits: str = "") -> Body:
    def body(rank: int) -> None:
        other = dist.new_group() if group_of_its_own else None
        begin, done = threading.Event(), threading.Event()
        items: queue.Queue[int] = queue.Queue()
        simple: queue.SimpleQueue[int] = queue.SimpleQueue()
        between_processes = multiprocessing.get_context("fork").Semaphore(0)
        packets = multiprocessing.get_context("fork").Queue()
        reads, writes = multiprocessing.Pipe()
        one, other_end = socket.socketpair()

        def beside() -> None:
            if waits == "event":
                begin.wait()
            elif waits == "queue":
                items.get()
            elif waits == "simple queue":
                simple.get()
            elif waits == "semaphore of multiprocessing":
                between_processes.acquire()
            elif waits == "queue of multiprocessing":
                packets.get()
            elif waits == "pipe":
                reads.recv()
            elif waits == "socket":
                one.recv(1)
            dist.all_reduce(torch.ones(1), group=other)  # beside
            done.set()

        thread = threading.Thread(target=beside)
        thread.start()
        if waits == "join":
            thread.join()
        dist.all_reduce(torch.ones(1))  # in front
        begin.set()
        items.put(0)
        simple.put(0)
        between_processes.release()
        packets.put(0)
        writes.send(0)
        other_end.send(b"0")
        if waits not in ("", "join"):
            time.sleep(1)  # the other collective is over long before the wait
            done.wait()
            dist.all_reduce(torch.ones(1))
        thread.join()
        for end in (reads, writes, one, other_end):
            end.close()
        packets.close()
        dist.all_reduce(torch.ones(1))

    return body


def test_two_threads_that_use_a_group_in_no_order_are_found() -> None:
    body = in_threads()
    result = run(body)
    found = only_finding(result)

    lines = {line_of(body, "# beside"), line_of(body, "# in front")}
    assert (found.judge, found.subject, {found.where.split(" in ")[0], found.against.split(" in ")[0]}) == (
        "collectives",
        "0",
        {line.split(" in ")[0] for line in lines},
    )
    assert "is called by rank" in found.problem
    assert found.problem.endswith("and neither waits for the other")


@pytest.mark.parametrize(
    "waits",
    [
        "join",
        "event",
        "queue",
        "simple queue",
        "semaphore of multiprocessing",
        "queue of multiprocessing",
        "pipe",
        "socket",
    ],
)
def test_threads_that_wait_for_each_other_are_left_alone(waits: str) -> None:
    assert run(in_threads(waits=waits)).findings == ()


def test_threads_with_a_group_each_are_left_alone() -> None:
    assert run(in_threads(group_of_its_own=True)).findings == ()


def test_pools_whose_results_are_waited_for_are_left_alone() -> None:
    def body(rank: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                pool.submit(dist.all_reduce, torch.ones(1)).result()
                dist.all_reduce(torch.ones(1))

    assert run(body).findings == ()


def test_tasks_of_an_event_loop_that_await_threads_are_left_alone() -> None:
    async def both() -> None:
        for _ in range(3):
            await asyncio.to_thread(dist.all_reduce, torch.ones(1))
            dist.all_reduce(torch.ones(1))

    def body(rank: int) -> None:
        asyncio.run(both())

    assert run(body).findings == ()
