"""Threads of a rank that use torch: groups, collectives, DDP, checkpoints, and libraries that start threads."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint

import simdist
from simdist.faults import Crash

RANK = "RANK"
BEGIN_S = 1_767_225_600  # the begin of virtual time, in seconds since 1970
dcp: Any = torch.distributed.checkpoint  # the stubs export little of it


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


# -- groups ---------------------------------------------------------------------------------------------------------


def test_every_thread_of_a_rank_sees_its_groups() -> None:
    def body() -> list[Any]:
        before = in_thread(dist.is_initialized)
        in_thread(lambda: dist.init_process_group("gloo"))
        group = dist.new_group([0, 1])

        def look() -> list[Any]:
            total = torch.tensor([dist.get_rank() + 1.0])
            dist.all_reduce(total)
            # C++ finds groups by name, if they existed when the thread began.
            other = functional.all_reduce(torch.ones(1), "sum", group)
            return [dist.get_rank(), dist.get_world_size(group), total.item(), other.item()]

        found = [before, in_thread(look), look()]
        dist.destroy_process_group()
        return [*found, in_thread(dist.is_initialized)]

    seen = [[r, 2, 3.0, 2.0] for r in range(2)]
    assert simdist.run(body, world_size=2).values == [[False, seen[r], seen[r], False] for r in range(2)]


def test_the_host_sees_no_group_of_a_thread() -> None:
    simdist.run(lambda: in_thread(lambda: dist.init_process_group("gloo")), world_size=2).raise_for_failure()

    assert not dist.is_initialized()


def test_what_torch_keeps_for_each_thread_starts_at_its_defaults() -> None:
    def body() -> list[Any]:
        def look() -> list[Any]:
            return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()]

        with torch.inference_mode():
            return [look(), in_thread(look)]

    assert simdist.run(body, world_size=2).values == [[[False, True, 1], [True, False, 1]]] * 2


def test_ranks_compute_with_the_threads_that_they_have_asked_for() -> None:
    def body() -> int:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            torch.set_num_threads(3)
        dist.barrier()
        return torch.get_num_threads()

    assert simdist.run(body, world_size=2).values == [3, 1]


# -- checkpoints ----------------------------------------------------------------------------------------------------


def state(rank: int) -> dict[str, Any]:
    return {"weight": torch.arange(6.0).reshape(2, 3), "nested": {"bias": torch.ones(3)}, f"own{rank}": torch.ones(1)}


def loaded(folder: Path, rank: int) -> list[Any]:
    found: dict[str, Any] = {
        "weight": torch.zeros(2, 3),
        "nested": {"bias": torch.zeros(3)},
        f"own{rank}": torch.zeros(1),
    }
    dcp.load(found, checkpoint_id=folder)
    return [found["weight"].tolist(), found["nested"]["bias"].tolist(), found[f"own{rank}"].tolist()]


EXPECTED = [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [1.0] * 3, [1.0]]


def test_a_checkpoint_is_written_by_several_threads(tmp_path: Path) -> None:
    def body() -> list[Any]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        dcp.save(state(rank), storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=2))
        return loaded(tmp_path, rank)

    assert simdist.run(body, world_size=2).values == [EXPECTED] * 2


def test_an_asynchronous_checkpoint_is_written_beside_training(tmp_path: Path) -> None:
    def body() -> list[Any]:
        dist.init_process_group("gloo")
        rank, group = dist.get_rank(), dist.new_group([0, 1])
        tensors = state(rank)
        saved: Any = dcp.async_save(tensors, checkpoint_id=tmp_path)
        tensors["weight"].zero_()  # the checkpoint has the staged values
        total = torch.ones(1)
        for _ in range(3):
            dist.all_reduce(total, group=group)
        saved.result()
        return [total.item(), *loaded(tmp_path, rank)]

    assert simdist.run(body, world_size=2).values == [[8.0, *EXPECTED]] * 2


def test_a_rank_that_dies_while_a_thread_writes_fails_the_save(tmp_path: Path) -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        saved: Any = dcp.async_save(state(dist.get_rank()), checkpoint_id=tmp_path)
        return type(saved.exception()).__name__

    fault = Crash(rank=1, op="gather")
    result = simdist.run(body, world_size=2, faults=[fault])

    assert [rank.status for rank in result.ranks] == ["returned", "killed"]
    assert result.ranks[0].value == "RuntimeError"


# -- libraries ------------------------------------------------------------------------------------------------------


def test_the_monitor_of_tqdm_runs_in_virtual_time_and_ends_with_its_rank() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm

    def body() -> list[Any]:
        names = []
        for _ in tqdm(range(3), mininterval=0, file=sys.stderr):
            time.sleep(11)
            names = [thread.name for thread in threading.enumerate()]
        return [names, time.monotonic()]

    first, second = (simdist.run(body, world_size=2) for _ in range(2))

    assert first.values[0] == [["MainThread", "tqdm_monitor"], 33.0]
    assert first.values[1][1] == 33.0
    assert "3/3 [00:33<00:00, 11.00s/it]" in first.ranks[1].stderr
    assert second.ranks[0].stderr == first.ranks[0].stderr


def test_the_writer_of_tensorboard_writes_in_virtual_time(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    writing = importlib.import_module("torch.utils.tensorboard")

    def body() -> None:
        dist.init_process_group("gloo")
        with writing.SummaryWriter(tmp_path / os.environ[RANK]) as writer:
            for step in range(5):
                total = torch.ones(1) * step
                dist.all_reduce(total)
                writer.add_scalar("total", total.item(), step)
                time.sleep(60)

    simdist.run(body, world_size=2).raise_for_failure()

    for rank in range(2):
        events = reading.EventAccumulator(str(tmp_path / str(rank)))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("total")] == [(n, 2.0 * n) for n in range(5)]
        times_s = [round(event.wall_time) - BEGIN_S for event in events.Scalars("total")]
        assert times_s == [60 * n for n in range(5)]


def test_the_progress_of_rich_is_drawn_by_a_thread_of_the_rank() -> None:
    import io

    from rich.console import Console
    from rich.progress import Progress

    def body() -> tuple[bool, float]:
        drawn = io.StringIO()
        with Progress(console=Console(file=drawn, force_terminal=True, width=80)) as progress:
            task = progress.add_task("training", total=3)
            for _ in range(3):
                time.sleep(1)
                progress.advance(task)
        return "100%" in drawn.getvalue(), time.monotonic()

    assert simdist.run(body, world_size=2).values == [(True, 3.0)] * 2
