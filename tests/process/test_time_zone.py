"""A time zone that a rank sets is its own, from its call of `time.tzset` on."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import pytest
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system has one time zone")
TOKYO = ("JST", "JST")


def move(zone: str) -> None:
    os.environ["TZ"] = zone
    time.tzset()


def test_ranks_have_time_zones_of_their_own_in_turns() -> None:
    def program() -> list[Any]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank < 2:
            move(["Asia/Tokyo", "UTC"][rank])
        found = []
        for _ in range(2):
            dist.barrier()
            found.append((time.tzname, time.localtime(0).tm_hour))
        return found

    of_host = time.tzname, time.localtime(0).tm_hour
    assert values(program, 3) == [[(TOKYO, 9)] * 2, [(("UTC", "UTC"), 0)] * 2, [of_host] * 2]
    assert (time.tzname, time.localtime(0).tm_hour) == of_host


def test_a_variable_alone_changes_nothing_until_a_rank_asks() -> None:
    def program() -> list[Any]:
        before = time.tzname
        os.environ["TZ"] = "Asia/Tokyo"
        amid = time.tzname
        time.tzset()
        after = time.tzname
        del os.environ["TZ"]
        time.tzset()
        return [before == amid, after, time.tzname == before]

    assert values(program, 1) == [[True, TOKYO, True]]


def test_a_world_may_begin_with_one() -> None:
    def program() -> Any:
        time.tzset()
        return time.tzname

    assert simdist.run(program, world_size=2, env={"TZ": "Asia/Tokyo"}).values == [TOKYO] * 2


def test_a_forked_child_goes_on_with_that_of_its_parent() -> None:
    def program() -> Any:
        move("Asia/Tokyo")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def ask() -> None:
            before = time.tzname
            move("UTC")
            answers.put((before, time.tzname))

        child = context.Process(target=ask)
        child.start()
        child.join()
        return answers.get(), time.tzname

    assert values(program, 1) == [((TOKYO, ("UTC", "UTC")), TOKYO)]
