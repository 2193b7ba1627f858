"""The times of kernels by stream, and their picture."""

from __future__ import annotations

import torch
import torch.distributed as dist

import simdist
from simdist.cluster import DeviceModel, build
from simdist.device import KernelRun, KernelTimes
from simdist.result import RunResult
from simdist.trace import stream_timeline, trace_of
from simdist.world import observed_by


def multiply_on_two_streams() -> None:
    dist.init_process_group("gloo")
    matrix = torch.ones(64, 64, device="cuda")
    side = torch.cuda.Stream()
    matrix @ matrix
    with torch.cuda.stream(side):
        matrix @ matrix
    torch.cuda.synchronize()


def watched(model: DeviceModel | str | None) -> tuple[RunResult, list[KernelRun]]:
    cluster = build(1, devices_per_host=1, device_model=model)
    with observed_by(KernelTimes()) as kernels:
        result = simdist.run(multiply_on_two_streams, world_size=1, cluster=cluster)
    result.raise_for_failure()
    return result, list(kernels.runs())


def test_kernels_of_two_streams_run_side_by_side() -> None:
    _, runs = watched(DeviceModel(flops=1e9, bytes_per_s=10**12, host_bytes_per_s=10**12))

    products = [each for each in runs if each.name == "mm"]
    assert [(each.rank, each.device, each.stream) for each in products] == [(0, 0, 0), (0, 0, 1)]
    assert [each.end_ns - each.start_ns for each in products] == [524_288, 524_288]  # 2 x 64^3 operations
    assert [each.start_ns for each in products] == [33, 0]  # the default stream fills the matrix first


def test_without_a_compute_model_there_is_nothing_to_see() -> None:
    assert watched(None)[1] == []


def test_each_stream_has_a_row() -> None:
    result, runs = watched("h100")

    figure = stream_timeline(trace_of(result), runs)

    words = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"rank 0", "cuda:0, default", "cuda:0, stream 1", "collectives"} <= words
