"""A spawned child begins with what a process keeps when it runs another program: mask, limits, time zone."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import pytest

import simdist

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="these settings are POSIX")


def settings() -> tuple[int, Any, int, int]:
    import resource

    mask = os.umask(0)
    os.umask(mask)
    return mask, resource.getrlimit(resource.RLIMIT_CORE), time.localtime(0).tm_hour, sys.getrecursionlimit()


def report(results: Any) -> None:
    results.put(settings())


def program(method: str) -> list[tuple[int, Any, int, int]]:
    import resource

    if os.environ.get("RANK") != "1":
        os.umask(0o077)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["TZ"] = "Asia/Tokyo"
        time.tzset()
        sys.setrecursionlimit(1777)
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=report, args=(results,))
    child.start()
    found = results.get()
    child.join()
    return [settings(), found]


@pytest.mark.parametrize(("method", "recursion"), [("fork", 1777), ("spawn", sys.getrecursionlimit())])
def test_a_child_keeps_some_settings_of_its_parent(method: str, recursion: int) -> None:
    host = settings()

    (own, child), other = simdist.run(program, args=(method,), world_size=2, env={"TZ": "UTC"}).values

    assert own == (0o077, (0, 0), 9, 1777)
    assert child == (0o077, (0, 0), 9, recursion)
    assert other == [(*host[:2], 0, host[3])] * 2
    assert settings() == host


@pytest.mark.real
@pytest.mark.parametrize(("method", "recursion"), [("fork", 1777), ("spawn", sys.getrecursionlimit())])
def test_a_real_child_keeps_the_same(method: str, recursion: int) -> None:
    context: Any = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        own, child = pool.apply(_in_a_pool, (method,))

    assert own == (0o077, (0, 0), 9, 1777)
    assert child == (0o077, (0, 0), 9, recursion)


def _in_a_pool(method: str) -> list[tuple[int, Any, int, int]]:
    multiprocessing.current_process().daemon = False  # daemons may have no children
    return program(method)
