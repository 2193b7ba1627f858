"""Programs that keep their own facts in the launcher's store, as users do beside their process group."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def connect(timeout_seconds: float) -> Any:
    """A client of the store at MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = datetime.timedelta(seconds=timeout_seconds)
    return dist.TCPStore(host, port, None, False, limit, wait_for_workers=False)  # type: ignore[attr-defined]  # torch exports it without saying so


def counts(rounds: int = 3) -> list[int]:
    """Each rank adds to a counter of the round, and waits until all have; what the counters came to."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank, size = dist.get_rank(), dist.get_world_size()
    store = connect(30.0)
    counters = []
    for index in range(rounds):
        if store.add(f"arrived{index}", rank + 1) == size * (size + 1) // 2:
            store.set(f"all{index}", "yes")
        store.wait([f"all{index}"])
        counters.append(store.add(f"arrived{index}", 0))
    dist.barrier()
    return counters


def counts_lives() -> list[int]:
    """Each rank counts in the store how often it was started; the first time rank 1 fails once all have."""
    store = connect(30.0)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    started = store.add(f"started{rank}", 1)
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store.add(f"there{life}", 1)
    while store.add(f"there{life}", 0) < size:
        time.sleep(0.05)  # noqa: TID251 - between two questions
    if life == "0" and rank == 1:
        raise RuntimeError("once")
    if life == "0":
        time.sleep(60)  # noqa: TID251 - the launcher ends it
    return [started]


def asks_too_late(limit_seconds: float = 0.5) -> list[str]:
    """Ask for a key that is there, with little patience."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    store = connect(limit_seconds)
    store.set(f"mine{dist.get_rank()}", "yes")
    dist.barrier()
    time.sleep(1.0)  # noqa: TID251 - until the store is slow
    return [_words(lambda: store.get(f"mine{dist.get_rank()}"))]


def uses_a_lost_store() -> list[str]:
    """Three clients: one waits for a key while the store is lost, one writes and reads after that, one only reads."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    rank = dist.get_rank()
    waiting, writing, reading = (connect(30.0) for _ in range(3))
    heard = [_words(lambda: writing.set(f"mine{rank}", "here")), _words(lambda: reading.get(f"mine{rank}"))]
    heard += [_words(lambda: waiting.get("never")) for _ in range(3)]
    heard.append(_words(lambda: writing.set(f"mine{rank}", "there")))
    heard += [_words(lambda: writing.get(f"mine{rank}")) for _ in range(2)]
    heard += [_words(lambda: reading.get(f"mine{rank}")) for _ in range(2)]
    total = torch.ones(4)
    dist.all_reduce(total)  # the group has its own connections
    return [*heard, f"sum {total[0].item():g}"]


def loses_the_store(lost_after_seconds: float = 1.0) -> str:
    """Read from the store after it has been lost, and let the exception go."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    store = connect(30.0)
    store.set("epoch", "3")
    dist.barrier()
    time.sleep(lost_after_seconds * 2)  # noqa: TID251 - until it is gone
    return str(store.get("epoch"), "utf-8")


def _words(call: Callable[[], object]) -> str:
    """What the call returns, or what it says when it fails."""
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def makes_a_group_without_store() -> None:
    """Make a sub-group when the store is gone: its members find each other nowhere."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    time.sleep(2.0)  # noqa: TID251 - until it is gone
    dist.new_group(list(range(dist.get_world_size())))
