"""Virtual devices that break, and device memory that is unavailable for a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import switched
from simdist.errors import FaultError
from simdist.faults import DeviceError, Fault, problems_of
from simdist.result import RunResult
from tests.faults.programs import MS, events_of

SECOND = 1_000 * MS
ECC = "CUDA error: uncorrectable ECC error encountered"
USES: dict[str, Callable[[torch.Tensor], object]] = {
    "a kernel": lambda tensor: tensor + 1,
    "a kernel in place": lambda tensor: tensor.add_(1),
    "a copy to the host": lambda tensor: tensor.cpu(),
    "a copy from the host": lambda _: torch.ones(2).cuda(),
    "a value": lambda tensor: tensor[0].item(),
    "a new tensor with values": lambda _: torch.ones(2, device="cuda"),
    "a backward pass": lambda tensor: torch.autograd.backward(tensor.requires_grad_().sum()),
    "a wait for the device": lambda _: torch.cuda.synchronize(),
    "a wait for a stream": lambda _: torch.cuda.current_stream().synchronize(),
    "an event": lambda _: torch.cuda.current_stream().record_event(),
    "a stream": lambda _: torch.cuda.current_stream().query(),
}


def _tried(use: Callable[[], object]) -> str:
    """Return the error of a use of the device."""
    try:
        use()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def _run(body: Callable[..., Any], *faults: Fault, **options: Any) -> RunResult:
    settings: dict[str, Any] = {"world_size": 1, "backend": "nccl"}
    return simdist.run(body, faults=faults, **(settings | options))


@pytest.mark.parametrize("use", USES)
def test_whatever_uses_a_broken_device_raises_again_and_again(use: str) -> None:
    def body() -> list[str]:
        tensor = torch.ones(4, device="cuda")
        before = _tried(lambda: USES[use](torch.ones(4, device="cuda")))
        simdist.step(1)
        return [before, *(_tried(lambda: USES[use](tensor)) for _ in range(2))]

    result = _run(body, DeviceError(rank=0, at_step=1))

    assert result.values == [["", f"AcceleratorError: {ECC}", f"AcceleratorError: {ECC}"]]


def test_what_only_asks_goes_on() -> None:
    def body() -> tuple[list[int], bool, int]:
        tensor = torch.ones(4, device="cuda")
        simdist.step(1)
        return list(tensor.view(2, 2).shape), torch.cuda.is_available(), torch.cuda.memory_allocated()

    assert _run(body, DeviceError(rank=0, at_step=1)).values == [([2, 2], True, 512)]


@pytest.mark.parametrize(
    ("error", "first", "name", "code"),
    [
        ("ecc", "uncorrectable ECC error encountered", "cudaErrorECCUncorrectable", 214),
        ("lost", "unspecified launch failure", "cudaErrorLaunchFailure", 719),
    ],
)
def test_the_error_is_torchs_with_its_text_and_number(error: Any, first: str, name: str, code: int) -> None:
    def body() -> None:
        simdist.step(1)
        torch.ones(1, device="cuda")

    result = _run(body, DeviceError(rank=0, at_step=1, error=error))

    raised = result.ranks[0].exception
    assert type(raised) is torch.AcceleratorError
    assert (str(raised).splitlines()[0], vars(raised)["error_code"]) == (f"CUDA error: {first}", code)
    assert f"Search for `{name}' in https://docs.nvidia.com/" in str(raised)
    assert "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions." in str(raised)


def _reduced(seconds: int = 20) -> list[float]:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=seconds))
    tensor = torch.ones(4, device=device)
    for _ in range(3):
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        time.sleep(1)
    return list(tensor.tolist())


def test_its_collective_raises_and_peers_wait_until_their_watchdog_acts() -> None:
    result = _run(_reduced, DeviceError(rank=1, at_ns=SECOND // 2), world_size=2)

    broken, peer = result.ranks[1], result.ranks[0]
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.data["text"]) == (SECOND // 2, "the device of rank 1 has an uncorrectable ECC error")
    assert (broken.status, str(broken.exception).splitlines()[0]) == ("raised", ECC)
    assert broken.ended_ns == events_of(result, "complete")[0].time_ns + SECOND
    assert (peer.status, peer.exit_code) == ("killed", -6)
    assert "Watchdog caught collective operation timeout" in peer.stderr


def test_a_collective_under_way_never_ends_and_its_watchdog_has_the_error() -> None:
    def body() -> str:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=20))
        work = dist.all_reduce(torch.ones(1 << 20, device=device), async_op=True)
        assert work is not None
        work.wait()
        said = _tried(torch.cuda.synchronize)
        time.sleep(100)
        return said

    fault = DeviceError(rank=1, op="all_reduce", nth=1, when="during", error="lost")
    result = _run(body, fault, world_size=2)

    assert events_of(result, "complete") == []
    assert [rank.status for rank in result.ranks] == ["killed", "killed"]
    assert result.ranks[1].ended_ns == SECOND // 10
    assert "watchdog thread terminated with exception: CUDA error: unspecified launch" in result.ranks[1].stderr
    assert "Watchdog caught collective operation timeout" in result.ranks[0].stderr


def test_a_host_that_waits_for_its_device_gets_the_error_at_once() -> None:
    def body() -> tuple[str, int]:
        began_ns = time.monotonic_ns()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        if dist.get_rank() == 0:
            time.sleep(10)
            return "", 0
        dist.all_reduce(torch.ones(1, device=device))
        said = _tried(torch.cuda.synchronize)
        return said, time.monotonic_ns() - began_ns

    result = _run(body, DeviceError(rank=1, at_ns=3 * SECOND + 5), world_size=2)

    assert result.ranks[1].value == (f"AcceleratorError: {ECC}", 3 * SECOND + 5)


def test_other_ranks_of_the_host_keep_their_devices() -> None:
    def body() -> str:
        simdist.step(1)
        time.sleep(1)
        return _tried(lambda: torch.ones(1, device="cuda"))

    result = _run(body, DeviceError(rank=1, at_step=1), world_size=3)

    assert result.values == ["", f"AcceleratorError: {ECC}", ""]


def test_over_gloo_its_collective_raises_too() -> None:
    def body() -> str:
        dist.init_process_group("gloo")
        tensor = torch.ones(2, device="cuda")
        simdist.step(1)
        return _tried(lambda: dist.all_reduce(tensor))

    cluster = switched(1, hosts=1, devices_per_host=1)
    assert _run(body, DeviceError(rank=0, at_step=1), backend="gloo", cluster=cluster).values == [
        f"AcceleratorError: {ECC}"
    ]


@pytest.mark.parametrize(("life", "lives"), [(0, 1), (None, 2)])
def test_a_restart_has_a_device_that_works_unless_it_strikes_in_every_life(life: int | None, lives: int) -> None:
    def body() -> str:
        simdist.step(1)
        torch.ones(1, device="cuda")
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    result = _run(body, DeviceError(rank=0, at_step=1, life=life), max_restarts=1)

    assert len(result.faults[0].struck_ns) == lives
    assert [rank.status for rank in result.ranks] == ["returned" if life == 0 else "raised"]


def test_without_memory_the_next_tensor_fails_and_the_one_after_does_not() -> None:
    def body() -> list[str]:
        tensor = torch.ones(1 << 20, device="cuda")
        simdist.step(1)
        tensor.add_(1)
        return [_tried(lambda: tensor * 2), _tried(lambda: tensor * 2), str(torch.cuda.memory_stats()["num_ooms"])]

    result = _run(body, DeviceError(rank=0, at_step=1, error="oom"))

    (said,) = result.values
    assert said[0].startswith(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 80.00 GiB of "
        "which 0 bytes is free. "
    )
    assert said[1:] == ["", "1"]
    assert [event.data["text"] for event in events_of(result, "fault")] == [
        "the device of rank 0 has no memory for the next tensor"
    ]


def test_it_runs_out_of_memory_as_often_as_it_strikes() -> None:
    def body() -> list[bool]:
        found = []
        for step in range(4):
            simdist.step(step)
            found.append("out of memory" in _tried(lambda: torch.empty(8, device="cuda")))
        return found

    assert _run(body, DeviceError(rank=0, at_step=1, every=2, error="oom")).values == [[False, True, False, True]]


def test_a_world_without_devices_has_none_to_break() -> None:
    fault = DeviceError(rank=0, at_ns=0)
    with pytest.raises(FaultError, match=r"strikes a virtual device, and the world has none; backend=\"nccl\", or"):
        simdist.run(print, world_size=1, faults=[fault])

    assert problems_of([fault], 1) == []
    assert problems_of([fault], 1, has_devices=True) == []


def test_an_error_that_no_device_has_is_reported() -> None:
    problems = problems_of([DeviceError(rank=0, at_ns=0, error="ram")], 1)  # type: ignore[arg-type]

    assert len(problems) == 1
    assert "faults[0].error: " in problems[0]
    assert "ecc" in problems[0]


def test_the_same_run_twice_has_the_same_events() -> None:
    fault = DeviceError(rank=1, op="all_reduce", nth=2, when="during")
    first, second = (_run(_reduced, fault, world_size=2) for _ in range(2))

    assert first.digest == second.digest
