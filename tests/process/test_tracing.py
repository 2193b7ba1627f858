"""Tools that trace threads of the host also trace ranks: coverage, debuggers, profilers."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import coverage
import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash


def in_a_thread() -> None: ...


def in_a_child() -> None: ...


def body() -> None:
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    child = multiprocessing.get_context("fork").Process(target=in_a_child)
    child.start()
    child.join()


def recovers() -> str:
    dist.init_process_group("gloo")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        return "recovered"
    return "nothing happened"


@pytest.fixture
def unset() -> Iterator[None]:
    before = threading.gettrace(), threading.getprofile()
    yield
    threading.settrace(before[0])
    threading.setprofile(before[1])


@pytest.mark.parametrize("way", ["trace", "profile"])
def test_each_thread_of_each_process_is_traced_once(way: str, unset: None) -> None:
    calls = Counter[tuple[str, str]]()

    def hook(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "call" and frame.f_code.co_filename == __file__:
            calls[frame.f_code.co_name, os.environ["RANK"]] += 1
        return hook

    before = sys.gettrace(), sys.getprofile()
    getattr(threading, f"set{way}")(hook)
    result = simdist.run(body, world_size=2)

    result.raise_for_failure()
    assert getattr(threading, f"get{way}")() is hook
    names = ("body", "in_a_thread", "in_a_child")
    assert calls == {(name, rank): 1 for name in names for rank in ("0", "1")}
    assert (sys.gettrace(), sys.getprofile()) == before


def test_what_a_rank_sets_traces_its_own_threads_alone() -> None:
    def traced() -> tuple[list[str], bool]:
        dist.init_process_group("gloo")
        seen: list[str] = []
        if dist.get_rank() == 0:
            threading.settrace(lambda frame, *_: seen.append(frame.f_code.co_name))
            threading.setprofile(lambda *_: None)
        dist.barrier()
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
        return seen, threading.gettrace() is None and threading.getprofile() is None

    before = threading.gettrace(), threading.getprofile()

    (first, unset), second = simdist.run(traced, world_size=2).values

    assert "in_a_thread" in first
    assert (unset, second) == (False, ([], True))
    assert (threading.gettrace(), threading.getprofile()) == before


def test_a_debugger_that_starts_threads_itself_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = simdist.run(body, world_size=2)
    starts = _thread.start_new_thread

    class Started:
        def __init__(self, function: Callable[..., None], args: Any, kwargs: Any) -> None:
            self.original_func, self.args, self.kwargs = function, args, kwargs

        def __call__(self) -> None:
            self.original_func(*self.args, **self.kwargs)

    def start(function: Callable[..., None], args: Any = (), kwargs: Any = None) -> int:
        return starts(Started(function, args, kwargs or {}), ())

    monkeypatch.setattr(_thread, "_original_start_new_thread", starts, raising=False)
    monkeypatch.setattr(_thread, "start_new_thread", start)
    if hasattr(threading, "_start_new_thread"):  # until Python 3.12
        monkeypatch.setattr(threading, "_start_new_thread", start)

    result = simdist.run(body, world_size=2)

    result.raise_for_failure()
    assert result.digest == plain.digest


def test_coverage_has_the_lines_that_ranks_run_and_changes_nothing() -> None:
    faults = [Crash(rank=1, op="all_reduce", nth=1, when="during")]
    plain = simdist.run(recovers, world_size=2, faults=faults)
    measured = coverage.Coverage(data_file=None, include=[__file__])
    measured.start()
    try:
        result = simdist.run(recovers, world_size=2, faults=faults)
    finally:
        measured.stop()

    assert result.values[0] == "recovered"
    assert result.digest == plain.digest
    first = recovers.__code__.co_firstlineno
    assert sorted(set(measured.get_data().lines(__file__) or ()) & set(range(first, first + 7))) == [
        *range(first + 1, first + 6)
    ]
