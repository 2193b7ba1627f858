"""A process is a tree of tasks: they share its state, and end with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist.process import SimProcess, current_process


def me() -> SimProcess:
    process = current_process()
    assert process is not None
    return process


def beside(function: Callable[[], Any], name: str = "beside") -> Any:
    """Begin a second task of the rank, without a thread of the program."""
    return me().spawn(function, name)


def test_a_process_begins_with_one_task() -> None:
    def body() -> tuple[bool, int, object]:
        process = me()
        assert process.main is not None
        return process.main is process.simulation.current, len(process.tasks), process.main.parent

    assert simdist.run(body, world_size=2).values == [(True, 1, None)] * 2


def test_a_task_beside_sees_the_same_process_and_knows_its_parent() -> None:
    def body() -> list[Any]:
        seen: list[Any] = []

        def other() -> None:
            os.environ["SET"] = "beside"
            task = me().simulation.current
            assert task is not None
            seen.append((os.getpid(), os.environ["RANK"], task.parent is me().main))

        beside(other)
        time.sleep(1)
        return [*seen, os.environ["SET"]]

    assert simdist.run(body, world_size=2).values == [[(1000 + r, str(r), True), "beside"] for r in range(2)]


def test_two_tasks_of_a_rank_wait_for_two_operations_at_a_time() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        found: list[float] = []

        def other() -> None:
            total = torch.ones(1)
            time.sleep(int(os.environ["RANK"]))
            dist.all_reduce(total, group=group)
            found.append(time.monotonic())

        beside(other)
        time.sleep(2 * (1 - int(os.environ["RANK"])))
        dist.all_reduce(torch.ones(1))
        found.append(time.monotonic())
        return [round(each, 2) for each in found]

    assert simdist.run(body, world_size=2).values == [[1.0, 2.0]] * 2


def test_two_tasks_may_wait_for_the_same_work_and_the_same_key() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        rank, done = dist.get_rank(), list[str]()
        if rank == 1:
            time.sleep(1)
            store.set("key", "there")
            dist.all_reduce(torch.ones(1))
            return done
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None

        def wait(name: str) -> None:
            store.wait(["key"])
            work.wait()
            done.append(f"{name} {time.monotonic():.1f}")

        beside(lambda: wait("beside"))
        wait("main")
        time.sleep(1)
        return sorted(done)

    assert simdist.run(body, world_size=2).values == [["beside 1.0", "main 1.0"], []]


def test_all_tasks_end_with_their_process() -> None:
    log: list[str] = []

    def body() -> None:
        rank = os.environ["RANK"]

        def ticks() -> None:
            for number in range(10):
                log.append(f"{rank} {number}")
                time.sleep(1)

        beside(ticks)
        time.sleep(1.5)
        if rank == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rank == "1":
            os._exit(3)

    result = simdist.run(body, world_size=3)

    assert [rank.exit_code for rank in result.ranks] == [-9, 3, 0]
    assert log == ["0 0", "1 0", "2 0", "0 1", "1 1", "2 1"]
    assert result.virtual_time_ns == 1_500_000_000


def test_a_task_beside_may_end_the_process() -> None:
    def body() -> None:
        if os.environ["RANK"] == "0":
            beside(lambda: os._exit(7))
        time.sleep(1)

    result = simdist.run(body, world_size=2)

    assert [(rank.exit_code, rank.ended_ns) for rank in result.ranks] == [(7, 0), (0, 10**9)]


def test_a_stop_stops_all_tasks() -> None:
    def body() -> list[float]:
        ticks: list[float] = []

        def other() -> None:
            time.sleep(2)
            ticks.append(time.monotonic())

        beside(other)
        if os.environ["RANK"] == "0":
            time.sleep(5)
            return ticks
        time.sleep(1)
        os.kill(1000, signal.SIGSTOP)
        time.sleep(3)
        os.kill(1000, signal.SIGCONT)
        return ticks

    assert simdist.run(body, world_size=2).values == [[4.0], [2.0]]
