"""When a work completes, and its errors: sends and receives, refused calls, all-to-alls. Two arms."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed

from tests.parity.arms import Case, Log, story_test

# torch 2.13 renames some collectives; the old names are the ones that every supported version has
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

dist: Any = torch.distributed  # the stubs do not export every name
Tensor = torch.Tensor


def ones(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(count, dtype=dtype)


def shorts() -> Tensor:
    return ones(dtype=torch.int16)


def reported(act: Callable[[Log, int], object], end_s: float = 1.2) -> Callable[[], Log]:
    def body() -> Log:
        log = Log.of_world(1.0)
        act(log, dist.get_rank())
        log.sleep_until(end_s)
        return log

    return body


def state(work: Any) -> tuple[object, ...]:
    return work.is_completed(), work.is_success(), type(work.exception()).__name__


def issue_and_wait(log: Log, name: str, issue: Callable[[], Any]) -> None:
    work = log.call(f"{name}: issue", issue)
    if work is not None:
        log.call(f"{name}: wait", work.wait)


def completed_after_the_wait(log: Log, rank: int) -> None:
    pairs: dict[str, Callable[[], Any]] = {
        "send and recv": lambda: dist.irecv(ones(), 0) if rank else dist.isend(ones(), 1),
        "from any": lambda: dist.irecv(ones()) if rank else dist.isend(ones(), 1),
        "of the group": lambda: (
            dist.group.WORLD.recv([ones()], 0, 0) if rank else dist.group.WORLD.send([ones()], 1, 0)
        ),
        "all_reduce": lambda: dist.all_reduce(ones(), async_op=True),
    }
    works = [(name, issue()) for name, issue in pairs.items()]
    both = [dist.P2POp(dist.isend, ones(), 1 - rank), dist.P2POp(dist.irecv, ones(), 1 - rank)]
    works += [("of a batch", work) for work in dist.batch_isend_irecv(both)]
    time.sleep(0.1)
    for name, work in works:
        log.call(f"{name}: before", partial(state, work), str)
        log.call(f"{name}: wait", work.wait)
        log.call(f"{name}: after", partial(state, work), str)


def waited_again(log: Log, rank: int) -> None:
    work = dist.irecv(ones(), 0) if rank else dist.isend(ones(), 1)
    for _ in range(3):
        log.call("wait", work.wait)
        log.call("state", lambda: state(work), str)
    log.call("then", dist.barrier)


def without_a_partner(log: Log, rank: int) -> None:
    if rank == 0:
        work = dist.isend(ones(), 1)
        for _ in range(2):
            log.call("state", lambda: state(work), str)
            log.call("wait", work.wait)


def refusals(log: Log, rank: int) -> None:
    root = rank == 0
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(shorts(), async_op=True),
        "all_reduce BAND": lambda: dist.all_reduce(ones(), dist.ReduceOp.BAND, async_op=True),
        "all_reduce AVG": lambda: dist.all_reduce(ones(dtype=torch.int32), dist.ReduceOp.AVG, async_op=True),
        "all_reduce of two": lambda: dist.group.WORLD.allreduce([shorts(), shorts()]),
        "broadcast": lambda: dist.broadcast(shorts(), 0, async_op=True),
        "reduce": lambda: dist.reduce(shorts(), 0, async_op=True),
        "all_gather": lambda: dist.all_gather([shorts(), shorts()], shorts(), async_op=True),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(shorts().repeat(2), shorts(), async_op=True),
        "gather": lambda: dist.gather(shorts(), [shorts(), shorts()] if root else None, async_op=True),
        "scatter": lambda: dist.scatter(shorts(), [shorts(), shorts()] if root else None, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter(shorts(), [shorts(), shorts()], async_op=True),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shorts(), shorts().repeat(2), async_op=True),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([shorts()], async_op=True),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([[shorts()], [shorts()]], [shorts()], async_op=True),
        "all_to_all": lambda: dist.all_to_all([shorts(), shorts()], [shorts(), shorts()], async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(shorts(), shorts(), async_op=True),
        "then": lambda: dist.all_reduce(ones(), async_op=True),
    }
    for name, issue in calls.items():
        issue_and_wait(log, name, issue)
    work = dist.all_reduce(shorts(), async_op=True)
    time.sleep(0.1)
    log.call("state", lambda: state(work), str)
    log.call("future", lambda: work.get_future().wait())
    log.call("sequence", dist.group.WORLD._get_sequence_number_for_group, str)


def one_is_refused(log: Log, rank: int) -> None:
    tensor = torch.full((4,), float(rank))
    first = dist.all_reduce(shorts() if rank == 1 else tensor, async_op=True)
    second = ones()
    log.call("second", dist.all_reduce(second, async_op=True).wait)
    log.call("second's sum", second.tolist, str)
    log.call("first", first.wait)
    log.call("first's tensor", tensor.tolist, str)


def exchange(
    log: Log, name: str, output: Tensor, given: Tensor, received: list[int] | None = None, sent: list[int] | None = None
) -> None:
    issue_and_wait(log, name, partial(dist.all_to_all_single, output, given, received, sent, async_op=True))
    log.call(f"{name}: left", output.tolist, str)


def row(count: int, rank: int = 0) -> Tensor:
    return torch.arange(count) + 10 * rank


def blank(count: int) -> Tensor:
    return torch.full((count,), -1)


def exchanges(log: Log, rank: int) -> None:
    exchange(log, "bytes that divide", blank(10).view(5, 2), row(10, rank).view(5, 2))
    exchange(log, "inside an element", torch.full((3,), -1, dtype=torch.int16).bool(), row(3).bool())
    exchange(log, "bools", torch.zeros(3, dtype=torch.bool), torch.ones(3, dtype=torch.bool))
    exchange(log, "half an int", torch.full((3,), -1, dtype=torch.int32), row(3, rank).int())
    exchange(log, "more than fits", blank(4), row(5))
    exchange(log, "less than expected", blank(6), row(4))
    exchange(log, "no dimension", torch.tensor(-1, dtype=torch.int32), torch.tensor(rank, dtype=torch.int32))
    exchange(log, "empty", blank(0), row(0))
    exchange(log, "output splits", blank(4), row(4, rank), [2, 2])
    exchange(log, "output splits, indivisible", blank(5), row(5), [3, 2])
    exchange(log, "input splits, indivisible", blank(5), row(5), None, [3, 2])
    exchange(log, "sums", blank(4), row(4), [1, 2], [3, 1])
    exchange(log, "counts", blank(4), row(4), [1, 2, 1], [3, 1, 0])
    exchange(log, "own parts", blank(4), row(4), [1, 3], [3, 1])
    exchange(log, "strided output", blank(8).view(4, 2)[:, 0], row(4, rank))
    exchange(log, "strided input", blank(4), row(8).view(4, 2)[:, 0])


def an_exchange_that_one_refuses(log: Log, rank: int) -> None:
    splits = ([1, 3], [1, 3]) if rank == 0 else ([2, 2], [3, 1])
    exchange(log, "exchange", blank(4), row(4, rank), *splits)


def an_exchange_without_one(log: Log, rank: int) -> None:
    if rank != 1:
        exchange(log, "exchange", blank(6), row(6, rank))


def three_for_three(log: Log, rank: int) -> None:
    exchange(log, "7 for 3", torch.full((7,), -1.0), torch.ones(7))
    exchange(log, "int8, 6 for 3", torch.full((6,), -1, dtype=torch.int8), row(6, rank).to(torch.int8))


def lists_that_differ(log: Log, rank: int) -> None:
    lengths = [4 + (index != rank) for index in range(3)]
    outputs = torch.zeros(4)
    log.call("reduce_scatter~", lambda: dist.reduce_scatter(outputs, [ones(length) for length in lengths]))


STORIES: dict[str, tuple[Callable[[], Log], int]] = {
    "completed after the wait": (reported(completed_after_the_wait), 2),
    "waited for again": (reported(waited_again, end_s=2.5), 2),
    "without a partner": (reported(without_a_partner), 2),
    "refused calls": (reported(refusals), 2),
    "a call that one is refused": (reported(one_is_refused), 2),
    "exchanges": (reported(exchanges), 2),
    "an exchange that one refuses": (reported(an_exchange_that_one_refuses), 2),
    "an exchange without one": (reported(an_exchange_without_one), 3),
    "three ranks": (reported(three_for_three), 3),
    "lists whose entries differ": (reported(lists_that_differ), 3),
}
CASES = [Case(name, body, size) for name, (body, size) in STORIES.items()]


test_the_same_story = story_test(CASES)
