"""Waits that time out in torch end a little late, by an amount that depends on the backend or the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist

MS = 1_000_000
stores: Any = dist  # the stubs leave them out


def receive() -> None:
    dist.recv(torch.ones(1), 1 - dist.get_rank())


def receive_with_a_limit() -> None:
    work: Any = dist.irecv(torch.ones(1), 1 - dist.get_rank())
    work.wait(timedelta(seconds=2.25))


def reduce() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(10)


def wait_for_a_key() -> None:
    store: Any = dist.group.WORLD
    dist.distributed_c10d._get_default_store().wait([f"{store.rank()}"], timedelta(seconds=2.25))


def wait_in_a_hash_store() -> None:
    stores.HashStore().wait(["key"], timedelta(seconds=2.25))


CALLS: tuple[Callable[[], None], ...] = (
    receive,
    receive_with_a_limit,
    reduce,
    wait_for_a_key,
    wait_in_a_hash_store,
)


def measured(call: Callable[[], None], clock: Callable[[], float]) -> tuple[float, bool]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=2.25))
    time.sleep(0.7)
    began_ns, began = time.monotonic_ns(), clock()
    try:
        call()
    except RuntimeError:
        elapsed = clock() - began
        return time.monotonic_ns() - began_ns, elapsed >= 2.25
    return 0, True


@pytest.mark.parametrize("clock", ["monotonic", "perf_counter", "time"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_time_out_is_a_millisecond_late_and_never_early(call: Callable[[], None], clock: str) -> None:
    result = simdist.run(measured, world_size=2, args=(call, getattr(time, clock)))

    assert result.values[0] == (2251 * MS, True)


def test_what_comes_while_a_time_out_is_late_is_in_time() -> None:
    def body(extra_ms: float) -> str:
        dist.init_process_group("gloo", timeout=timedelta(seconds=2))
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(2 + extra_ms / 1000)
            dist.send(torch.ones(1), 0)
            return "sent"
        try:
            dist.recv(torch.zeros(1), 1)
        except RuntimeError:
            return "too late"
        return "received"

    assert simdist.run(body, world_size=2, args=(0.5,)).values == ["received", "sent"]
    assert simdist.run(body, world_size=2, args=(1.5,)).values[0] == "too late"
