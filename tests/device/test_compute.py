"""Computations on a device take the time of its model, on their stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.cluster import DEVICE_MODELS, DeviceModel, build
from simdist.errors import TopologyError
from simdist.process import current_process

# One byte, or a thousand operations, in a nanosecond.
SLOW = DeviceModel(flops=1e12, bytes_per_s=1_000_000_000, host_bytes_per_s=500_000_000)
_F = TypeVar("_F", bound=Callable[..., None])


def now_ns() -> int:
    process = current_process()
    assert process is not None
    return process.simulation.now_ns


def timed(model: DeviceModel | str | None = SLOW, *, ranks: int = 1) -> Callable[[_F], _F]:
    """Run a test as the rank, or ranks, of a world whose devices take that time."""

    def decorate(test: _F) -> _F:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            cluster = build(ranks, devices_per_host=2, device_model=model)
            body = functools.partial(test, *args, **kwargs)
            result = simdist.run(body, world_size=ranks, cluster=cluster)
            failed = next((rank.exception for rank in result.ranks if rank.exception is not None), None)
            if failed is not None:
                raise failed
            result.raise_for_failure()

        return run  # type: ignore[return-value]

    return decorate


def spent(work: Callable[[], object]) -> int:
    """Return the device's time for some work, in ns."""
    torch.cuda.synchronize()
    begin = now_ns()
    work()
    assert now_ns() == begin, "the rank itself waits for nothing"
    torch.cuda.synchronize()
    return now_ns() - begin


@timed()
def test_an_elementwise_kernel_takes_its_bytes() -> None:
    a, b = torch.ones(100, device="cuda"), torch.ones(100, device="cuda")

    assert spent(lambda: a + b) == 1200  # two read, one written
    assert spent(lambda: a.add_(b)) == 1200  # the same in place
    assert spent(lambda: torch.add(a, b, out=a)) == 1200
    assert spent(lambda: torch._foreach_add_([a, b], 1)) == 1600
    assert spent(lambda: a.sum()) == 404
    assert spent(lambda: a.expand(50, 100).sum()) == 404  # it has only 100 different numbers in memory
    assert spent(lambda: a.view(10, 10).t()[2:].unsqueeze_(0)) == 0


@timed(DeviceModel(flops=1e9, flops_float32=5e8, bytes_per_s=10**12))
def test_a_product_takes_its_arithmetic() -> None:
    a, b = torch.ones(10, 20, device="cuda"), torch.ones(20, 30, device="cuda")

    assert spent(lambda: a @ b) == 2 * 10 * 20 * 30 * 2  # at half the speed of float16
    assert spent(lambda: a.double() @ b.double()) == pytest.approx(12_000, abs=20)
    assert spent(lambda: a.half() @ b.half()) == pytest.approx(12_000, abs=20)
    convolution = nn.Conv2d(1, 2, 3, bias=False).half().cuda()
    assert spent(lambda: convolution(a.half().view(1, 1, 10, 20))) == pytest.approx(2 * 2 * 9 * 8 * 18, abs=20)


@timed(DeviceModel(flops=1e12, bytes_per_s=10**12, launch_ns=2_000))
def test_a_kernel_takes_a_launch_at_least() -> None:
    a = torch.ones(4, device="cuda")

    assert spent(lambda: a.add_(1).mul_(2)) == 4_000
    assert spent(lambda: torch.empty(100, device="cuda").view(10, 10)) == 0


@timed()
def test_who_wants_a_value_waits_for_it() -> None:
    a = torch.ones(100, device="cuda")
    torch.cuda.synchronize()
    moments = []

    for read in (a.cpu, a.tolist, lambda: a.sum().item(), lambda: a.to("cpu", non_blocking=True)):
        begin = now_ns()
        read()
        moments.append(now_ns() - begin)

    copied = 400 * 2  # at half a byte in a nanosecond
    assert moments == [copied, copied, 404 + 4 * 2, 0]


@timed()
def test_what_comes_from_the_host_takes_its_way_too() -> None:
    source, target = torch.ones(100), torch.empty(100, device="cuda")
    begin = now_ns()

    target.copy_(source)
    waited = now_ns() - begin
    target.copy_(source.pin_memory(), non_blocking=True)
    asked_not_to = now_ns() - begin
    torch.cuda.synchronize()

    assert (waited, asked_not_to, now_ns() - begin) == (800, 800, 1600)


@timed()
def test_a_copy_between_devices_is_waited_for_by_both() -> None:
    source, target = torch.ones(100, device="cuda:0"), torch.ones(50, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    begin = now_ns()

    there = source.to("cuda:1")
    target.add_(1)
    torch.cuda.synchronize(0)
    first = now_ns() - begin
    torch.cuda.synchronize(1)

    assert there.device.index == 1
    assert (first, now_ns() - begin) == (800, 1200)


@timed()
def test_streams_compute_beside_each_other_and_events_see_it() -> None:
    a, b = torch.ones(100, device="cuda"), torch.ones(200, device="cuda")
    side = torch.cuda.Stream()
    start, end, other = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    begin = now_ns()

    start.record()
    a.add_(1)
    end.record()
    with torch.cuda.stream(side):
        b.add_(1)
        other.record()
    torch.cuda.synchronize()

    assert now_ns() - begin == 1600
    assert start.elapsed_time(end) == 800 / 1e6
    assert start.elapsed_time(other) == 1600 / 1e6


@pytest.mark.parametrize("waits", [True, False])
@timed()
def test_a_backward_pass_is_waited_for_by_its_callers_stream(waits: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(100, device="cuda"))
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        loss = (weight * 2).sum()
    torch.cuda.synchronize()

    begin = now_ns()
    loss.backward()
    assert now_ns() == begin
    (torch.cuda.current_stream() if waits else other).synchronize()
    waited = now_ns() - begin
    side.synchronize()

    assert now_ns() - begin >= 400  # the product alone writes 400 bytes
    assert waited == (now_ns() - begin if waits else 0)


@timed(ranks=2)
def test_a_collective_begins_when_what_it_reads_is_computed() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    begin = now_ns()

    if rank:
        tensor.mul_(2)  # takes 8 us, for which both wait
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    late = now_ns() - begin
    dist.all_reduce(tensor)
    torch.cuda.synchronize()

    assert late - (now_ns() - begin - late) == 8_000


def step_ns(model: DeviceModel | str | None) -> int:
    """Return the virtual time of a training step."""

    def body() -> int:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64), nn.ReLU()] * 3
        ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[rank])
        optimizer = torch.optim.AdamW(ddp.parameters())
        inputs = torch.ones(16, 64, device="cuda")
        times = []
        for _ in range(3):
            begin = now_ns()
            ddp(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            times.append(now_ns() - begin)
        return times[-1]

    result = simdist.run(body, world_size=2, cluster=build(2, devices_per_host=2, device_model=model))
    result.raise_for_failure()
    first: int = result.values[0]
    assert result.values == [first] * 2
    return first


def test_training_takes_longer_on_the_slower_device() -> None:
    free, h100, a100 = step_ns(None), step_ns("h100"), step_ns("a100")

    assert free < h100 < a100


def test_a_run_with_a_model_has_the_bits_of_one_without(kernels: str) -> None:
    def body() -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 1)).cuda()
        inputs = torch.randn(4, 8, device="cuda")
        model(inputs).sum().backward()
        return [float(each.grad.sum()) for each in model.parameters() if each.grad is not None]

    runs = [
        simdist.run(body, world_size=1, cluster=build(1, devices_per_host=1, device_model=model))
        for model in (None, "a100")
    ]

    assert runs[0].values == runs[1].values
    assert runs[0].virtual_time_ns == 0 < runs[1].virtual_time_ns


def test_the_models_are_those_of_the_data_sheets() -> None:
    product = 2 * 8192**3

    a100, h100 = DEVICE_MODELS["a100"], DEVICE_MODELS["h100"]

    assert a100.kernel_ns(product, 3 * 8192**2 * 2) == round(product / 312e3)
    assert h100.kernel_ns(product, 3 * 8192**2 * 2) == round(product / 989e3)
    assert h100.kernel_ns(product, 0, element_bytes=4) == round(product / 67e3)
    assert h100.kernel_ns(0, 3_350_000) == 1_000
    assert (a100.copy_ns(32_000), h100.copy_ns(64_000)) == (1_000, 1_000)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("h200x", "device_model: unknown device 'h200x'; did you mean 'h100'?"),
        (7, "device_model: expected 'a100' or 'h100', or a simdist.cluster.DeviceModel, found the number 7"),
        ({"model": "h100", "flps": 1}, "device_model.flps: unknown key; did you mean 'flops'?"),
    ],
)
def test_what_is_no_model_is_reported(model: Any, problem: str) -> None:
    with pytest.raises(TopologyError) as caught:
        simdist.cluster.make(2, devices_per_host=1, device_model=model)

    assert problem.split(": ", 1)[1] in str(caught.value)


def test_every_bad_argument_of_a_model_is_reported_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        DeviceModel(flops=0, bytes_per_s=-1, launch_ns=-3)

    text = str(caught.value)
    assert [part.split(":")[0] for part in text.split("; ")[:1]] == ["flops"]
    assert all(name in text for name in ("flops", "bytes_per_s", "launch_ns"))
