"""Stores of every kind for tests, as a rank makes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed

from tests.c10d.worlds import values

LATE_S = 0.001  # a store finds so much later that a wait has run out of time
dist: Any = torch.distributed  # the stubs do not export the stores
HOST = "127.0.0.1"
FILE = f"/tmp/simdist-test-{os.getpid()}"  # one for each pytest, since others may make and remove theirs
HALF = timedelta(seconds=0.5)
LOST = (
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?"
)
PIPE = "DistNetworkError: Broken pipe"


def tcp() -> Any:
    return dist.TCPStore(HOST, 1234, 1, True, HALF)


def prefixed() -> Any:
    return dist.PrefixStore("pre", tcp())


def hashed() -> Any:
    store = dist.HashStore()
    store.set_timeout(HALF)
    return store


def filed() -> Any:
    store = dist.FileStore(FILE, 1)
    store.set_timeout(HALF)
    return store


def alone(body: Callable[[], Any]) -> Any:
    """Return the result of `body` in a world of one rank."""
    return values(body, 1)[0]


def gave_up(keys: str, limit_ms: int = 500) -> str:
    return f"DistStoreError: wait timeout after {limit_ms}ms, keys: {keys}"


def shared(wait: bool = True, timeout_s: float = 300) -> Any:
    """Return this rank's client of a store that rank 0 hosts."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return dist.TCPStore(HOST, 4321, size, rank == 0, timedelta(seconds=timeout_s), wait)


def me() -> int:
    return int(os.environ["RANK"])
