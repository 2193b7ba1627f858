"""all_to_all over NCCL where some messages are empty: torch leaves each of these out."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from tests.c10d.worlds import values

Sizes = list[list[int]]  # elements that rank i sends to rank j
FORMS = ("lists", "single")
LAZY = {0: 2.0}


def exchange(sizes: Sizes, form: str) -> list[list[float]]:
    """Exchange with all ranks; returns what this rank receives from each."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    sent = [torch.full((sizes[rank][other],), 10.0 * rank + other, device="cuda") for other in ranks]
    counts = [sizes[other][rank] for other in ranks]
    if form == "lists":
        received = [torch.zeros(count, device="cuda") for count in counts]
        dist.all_to_all(received, sent)
    else:
        whole = torch.zeros(sum(counts), device="cuda")
        dist.all_to_all_single(whole, torch.cat(sent), counts, sizes[rank])
        received = list(torch.split_with_sizes(whole, counts))
    return [part.tolist() for part in received]


def expected(sizes: Sizes) -> list[list[list[float]]]:
    ranks = range(len(sizes))
    return [[[10.0 * other + rank] * sizes[other][rank] for other in ranks] for rank in ranks]


def run(sizes: Sizes, form: str, late: dict[int, float] | None = None, absent: tuple[int, ...] = ()) -> Any:
    """Run a world that exchanges; each rank returns what it got, and the seconds until its device was done."""

    def body() -> Any:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        begin = time.monotonic()
        time.sleep((late or {}).get(rank, 0))
        if rank in absent:
            time.sleep(5)
            return None
        received = exchange(sizes, form)
        torch.cuda.synchronize()
        return received, round(time.monotonic() - begin, 2)

    return values(body, len(sizes), backend="nccl")


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_sends_nothing_receives(form: str) -> None:
    sizes = [[0, 0, 0], [1, 0, 1], [1, 1, 0]]

    assert [received for received, _ in run(sizes, form)] == expected(sizes)


@pytest.mark.parametrize("form", FORMS)
def test_nobody_waits_for_a_rank_that_has_nothing_to_exchange(form: str) -> None:
    sizes = [[0, 0, 0], [0, 0, 2], [0, 1, 0]]

    received, seconds = zip(*run(sizes, form, late=LAZY), strict=True)

    assert list(received) == expected(sizes)
    assert seconds == (2.0, 0.0, 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_never_calls_holds_up_only_those_it_has_something_for(form: str) -> None:
    sizes = [[0, 0, 0], [0, 0, 2], [0, 1, 0]]

    assert run(sizes, form, absent=(0,))[1:] == [(part, 0.0) for part in expected(sizes)[1:]]


@pytest.mark.parametrize("form", FORMS)
def test_pairs_that_exchange_among_themselves_do_not_wait_for_other_pairs(form: str) -> None:
    sizes = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]

    received, seconds = zip(*run(sizes, form, late={3: 1.0}), strict=True)

    assert list(received) == expected(sizes)
    assert seconds == (0.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_ranks_wait_for_those_that_their_partners_wait_for(form: str) -> None:
    sizes = [[0, 1, 0], [0, 0, 1], [0, 0, 0]]  # one kernel sends and receives

    assert [seconds for _, seconds in run(sizes, form, late={2: 1.0})] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("form", FORMS)
def test_an_exchange_of_nothing_waits_for_nobody(form: str) -> None:
    sizes = [[0, 0], [0, 0]]

    assert run(sizes, form, late=LAZY) == [([[], []], 2.0), ([[], []], 0.0)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [[[0] * 4] * 4, [[0] * 4, [0] * 4, [0, 0, 0, 1 << 20], [0, 0, 1 << 20, 0]]])
def test_a_rank_that_destroys_its_group_ends_only_exchanges_with_it(sizes: Sizes, form: str) -> None:
    def body() -> float:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        time.sleep(rank == 3)  # ranks 0 and 1 leave while rank 2 waits for it
        begin = time.monotonic()
        received = exchange(sizes, form)
        dist.destroy_process_group()
        assert received == expected(sizes)[rank]
        return round(time.monotonic() - begin, 1)

    assert values(body, 4, backend="nccl") == [0.0, 0.0, 1.0 if any(map(any, sizes)) else 0.0, 0.0]


def test_a_peer_that_expects_nothing_leaves_the_sender_to_its_watchdog() -> None:
    def body() -> str:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        sent = [torch.ones(rank, device="cuda"), torch.ones(0, device="cuda")]
        dist.all_to_all([torch.zeros(0, device="cuda") for _ in range(2)], sent)
        torch.cuda.synchronize()
        return "ended"

    result = simdist.run(body, world_size=2, backend="nccl")

    assert [rank.status for rank in result.ranks] == ["returned", "killed"]


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_messages_of_nothing_are_waited_for(name: str) -> None:
    def body() -> float:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        begin = time.monotonic()
        time.sleep(rank)
        tensor, parts = torch.ones(0, device="cuda"), [torch.ones(0, device="cuda") for _ in range(2)]
        if name == "gather":
            dist.gather(tensor, parts if rank == 0 else None, 0)
        else:
            dist.scatter(tensor, parts if rank == 0 else None, 0)
        torch.cuda.synchronize()
        return round(time.monotonic() - begin, 2)

    assert simdist.run(body, world_size=2, backend="nccl").values == [1.0, 1.0]


@settings(max_examples=20)
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    st.sampled_from(FORMS),
)
def test_whatever_is_empty_all_receive_what_was_sent(sizes: Sizes, form: str) -> None:
    def body() -> Any:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        received = [exchange(sizes, form), exchange(sizes, form)]
        after = torch.ones(1, device="cuda")
        dist.all_reduce(after)
        return received, after.item()

    result = simdist.run(body, world_size=len(sizes), backend="nccl", seed=1, policy="random")

    result.raise_for_failure()
    assert result.values == [([part] * 2, float(len(sizes))) for part in expected(sizes)]
