"""The recorder of a real run does not change how torch's operators run."""

from __future__ import annotations

from pathlib import Path

from simdist.hardware import replay
from simdist.scenario import load

WORKLOAD = '''
import threading
import time

import torch.distributed as dist


def rounds_of_another_thread() -> int:
    """How often another thread of rank 0 runs while its main thread is inside an operator."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(1.0)
        dist.monitored_barrier()
        return 0
    rounds, over = 0, threading.Event()

    def count() -> None:
        nonlocal rounds
        while not over.wait(0.01):
            rounds += 1

    thread = threading.Thread(target=count)
    thread.start()
    dist.monitored_barrier()
    over.set()
    thread.join()
    return rounds
'''


def test_an_operator_that_blocks_leaves_the_interpreter_to_other_threads(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WORKLOAD)
    scenario = tmp_path / "waiting.toml"
    scenario.write_text('world_size = 2\n\n[workload]\ntarget = "waiting:rounds_of_another_thread"\n')

    report = replay(load(str(scenario)))

    assert report is not None
    assert report.ok, report.verdicts
    assert report.result.values[0] > 20  # in a second
    assert [event.data["op"] for event in report.result.events if event.kind == "issue"] == ["monitored_barrier"] * 2


BY_HAND = """
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import _dist2


def total():
    dist.init_process_group("gloo")
    tensor = torch.ones(2)
    _dist2.new_group("gloo", timedelta(seconds=30), "cpu").allreduce([tensor]).wait()
    dist.barrier()
    dist.destroy_process_group()
    return tensor.tolist()
"""


def test_calls_over_a_group_that_torch_does_not_know_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    scenario = tmp_path / "by_hand.toml"
    scenario.write_text('world_size = 2\n\n[workload]\ntarget = "by_hand:total"\n')

    report = replay(load(str(scenario)))

    assert report is not None
    assert report.ok, report.verdicts
    assert report.result.values == [[2.0, 2.0]] * 2
    assert [event.data["op"] for event in report.result.events if event.kind == "issue"].count("all_reduce") == 2
