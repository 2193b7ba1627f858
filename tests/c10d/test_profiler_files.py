"""Traces of torch's profiler are files in Kineto's format (torch 2.13), which other tools can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, tensorboard_trace_handler

import simdist
from simdist.errors import UnsupportedError
from tests.c10d.worlds import values


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch before 2.13
def test_the_trace_handler_writes_what_kineto_writes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> str:
        dist.init_process_group("gloo")
        handler = tensorboard_trace_handler(str(tmp_path), f"rank{dist.get_rank()}")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, on_trace_ready=handler) as profiler:
            profiler.add_metadata("who", "me")
            with record_function("mine"):
                torch.ones(2, 3) @ torch.ones(3, 2)
            dist.all_reduce(torch.ones(4))
        return f"rank{dist.get_rank()}"

    for rank, worker in enumerate(values(main, 2)):
        (file,) = tmp_path.glob(f"{worker}.*.pt.trace.json")
        trace: dict[str, Any] = json.loads(file.read_text())
        assert trace["schemaVersion"] == 1
        assert trace["who"] == "me"
        assert trace["distributedInfo"]["rank"] == rank
        spans = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "X"}
        assert {"mine", "aten::ones", "aten::mm", "gloo:all_reduce"} <= spans.keys()
        assert spans["mine"]["cat"] == "user_annotation"
        assert spans["aten::mm"]["cat"] == "cpu_op"
        assert spans["aten::mm"]["args"]["Input Dims"][:2] == [[2, 3], [3, 2]]
        assert spans["gloo:all_reduce"]["pid"] == 1000 + rank
        assert spans["gloo:all_reduce"]["dur"] >= 0
    assert "Profiler is not initialized" not in capfd.readouterr().err


def test_averages_are_made_of_a_profile_with_stacks() -> None:
    def main() -> dict[str, int]:
        dist.init_process_group("gloo")
        with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
            for _ in range(3):
                dist.all_reduce(torch.ones(4))
        counts = {each.key: each.count for each in profiler.key_averages()}
        assert profiler.key_averages(group_by_stack_n=2).table()
        return {name: counts[name] for name in ("aten::ones", "gloo:all_reduce")}

    assert values(main, 2) == [{"aten::ones": 3, "gloo:all_reduce": 3}] * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of `export_memory_timeline`
def test_a_memory_timeline_is_refused_by_name(tmp_path: Path) -> None:
    def body() -> None:
        with profile(profile_memory=True, record_shapes=True, with_stack=True) as profiler:
            torch.ones(3)
        profiler.export_memory_timeline(str(tmp_path / "timeline.json"))

    error = simdist.run(body, world_size=1).ranks[0].exception

    assert isinstance(error, UnsupportedError)
    assert str(error).startswith("rank 0: Kineto's tree of events, which export_memory_timeline ")
