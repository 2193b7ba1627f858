"""Libraries for asynchronous programs on ranks: uvloop and trio, here as stand-ins that have what matters of them."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import simdist

UVLOOP = """
import asyncio

class Loop(asyncio.AbstractEventLoop):
    def run_until_complete(self, future):
        return "real time"

def new_event_loop():
    return Loop()

def run(main, *, loop_factory=new_event_loop):
    async def wrapper():
        if not isinstance(asyncio.get_running_loop(), Loop):
            raise TypeError("uvloop.run() uses a non-uvloop event loop")
        return await main
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(wrapper())
"""
TRIO = """
class ThreadCache:
    def __init__(self):
        self.idle = []

THREAD_CACHE = ThreadCache()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """The stand-in, imported by the host; the mark names its file and has its text."""
    name, text = request.param
    *folders, _ = name.split(".")
    place = tmp_path
    for folder in folders:
        place /= folder
        place.mkdir()
        (place / "__init__.py").write_text("")
    (tmp_path / f"{name.replace('.', '/')}.py").write_text(text)
    for index in range(len(folders) + 1):
        monkeypatch.delitem(sys.modules, ".".join(name.split(".")[: index + 1]), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    for index in range(len(folders) + 1):
        del sys.modules[".".join(name.split(".")[: index + 1])]


@pytest.mark.parametrize("library", [("uvloop", UVLOOP)], indirect=True)
def test_a_loop_of_uvloop_waits_in_virtual_time_on_a_rank(library: Any) -> None:
    async def wait() -> float:
        before = time.time()
        await asyncio.sleep(100)
        return round(time.time() - before, 3)

    def body() -> list[object]:
        loop = library.new_event_loop()
        found = [library.run(wait()), loop.run_until_complete(wait()), isinstance(loop, library.Loop)]
        loop.close()
        return found

    assert simdist.run(body, world_size=2).values == [[100.0, 100.0, True]] * 2
    assert library.new_event_loop().run_until_complete(None) == "real time"


@pytest.mark.parametrize("library", [("trio._core._thread_cache", TRIO)], indirect=True)
def test_each_rank_has_its_own_free_threads_of_trio(library: Any) -> None:
    of_host = library.THREAD_CACHE

    def body() -> list[str]:
        dist.init_process_group("gloo")
        library.THREAD_CACHE.idle.append(f"rank {dist.get_rank()}")
        dist.barrier()
        return library.THREAD_CACHE.idle[:]  # type: ignore[no-any-return]

    assert simdist.run(body, world_size=2).values == [["rank 0"], ["rank 1"]]
    assert library.THREAD_CACHE is of_host
    assert of_host.idle == []


@pytest.mark.parametrize("running", [False, True])
def test_a_loop_that_a_rank_leaves_open_says_nothing_later(running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: said.append(error.exc_value))
    loops = []

    def body() -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        if running:
            threading.Thread(target=loop.run_forever, daemon=True).start()
            time.sleep(1)

    assert simdist.run(body, world_size=2).ok
    assert [loop.is_closed() for loop in loops] == [True, True]
    loops.clear()
    assert said == []
