"""Tools of `sys.monitoring` are each rank's own, since Python 3.12."""

from __future__ import annotations

import cProfile
import os
import sys
import time
from types import CodeType
from typing import Any

import pytest

import simdist
from simdist.faults import Crash

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")

MONITORING: Any = getattr(sys, "monitoring", None)
PROFILER = 2


def work() -> None:
    time.sleep(1)


def calls_of_work(profile: cProfile.Profile) -> int:
    return sum(each.callcount for each in profile.getstats() if each.code is work.__code__)


def test_ranks_profile_themselves_at_the_same_time() -> None:
    def body() -> int:
        with cProfile.Profile() as profile:
            for _ in range(1 + int(os.environ["RANK"])):
                work()
        return calls_of_work(profile)

    result = simdist.run(body, world_size=3)

    assert result.values == [1, 2, 3]
    assert MONITORING.get_tool(PROFILER) is None


def test_events_of_single_functions_go_to_the_rank_that_asked() -> None:
    def body() -> list[Any]:
        rank, seen = int(os.environ["RANK"]), list[str]()
        before = MONITORING.get_tool(PROFILER)
        time.sleep(1)
        MONITORING.use_tool_id(PROFILER, f"of {rank}")
        MONITORING.register_callback(PROFILER, MONITORING.events.PY_START, lambda code, _: seen.append(code.co_name))
        if rank:
            MONITORING.set_local_events(PROFILER, work.__code__, MONITORING.events.PY_START)
        work()
        if rank == 1:
            MONITORING.free_tool_id(PROFILER)
        work()
        return [before, seen, MONITORING.get_tool(PROFILER)]

    result = simdist.run(body, world_size=3)

    assert result.values == [[None, [], "of 0"], [None, ["work"], None], [None, ["work", "work"], "of 2"]]


def test_what_a_rank_disables_others_still_hear() -> None:
    def body() -> int:
        rank, seen = int(os.environ["RANK"]), list[str]()

        def heard(code: CodeType, _: int) -> object:
            if code is work.__code__:
                seen.append(code.co_name)
            return None if rank else MONITORING.DISABLE

        MONITORING.use_tool_id(PROFILER, "counts")
        MONITORING.register_callback(PROFILER, MONITORING.events.PY_START, heard)
        MONITORING.set_events(PROFILER, MONITORING.events.PY_START)
        work()
        work()
        MONITORING.restart_events()
        work()
        MONITORING.set_events(PROFILER, 0)
        work()
        return len(seen)

    assert simdist.run(body, world_size=2).values == [2, 3]


def test_a_tool_of_the_host_is_in_use_for_ranks_and_stays() -> None:
    seen: list[str] = []

    def body() -> str:
        with pytest.raises(ValueError, match="already in use"):
            MONITORING.use_tool_id(PROFILER, "mine")
        work()
        return str(MONITORING.get_tool(PROFILER))

    MONITORING.use_tool_id(PROFILER, "of the host")
    try:
        MONITORING.register_callback(PROFILER, MONITORING.events.PY_START, lambda code, _: seen.append(code.co_name))
        MONITORING.set_local_events(PROFILER, work.__code__, MONITORING.events.PY_START)
        result = simdist.run(body, world_size=2)
    finally:
        MONITORING.set_local_events(PROFILER, work.__code__, 0)
        MONITORING.register_callback(PROFILER, MONITORING.events.PY_START, None)
        MONITORING.free_tool_id(PROFILER)

    assert result.values == ["of the host"] * 2
    assert seen == ["work"] * 2


def test_tools_of_killed_ranks_are_gone_with_their_world() -> None:
    def body() -> None:
        cProfile.Profile().enable()
        work()
        work()

    simdist.run(body, world_size=2, faults=[Crash(rank=1, at_ns=1_500_000_000)])

    assert MONITORING.get_tool(PROFILER) is None
    MONITORING.use_tool_id(PROFILER, "of the host")
    assert MONITORING.get_events(PROFILER) == 0
    assert MONITORING.register_callback(PROFILER, MONITORING.events.PY_START, None) is None
    MONITORING.free_tool_id(PROFILER)
