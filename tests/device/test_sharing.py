"""Memory of devices that one process sends to another through `torch.multiprocessing`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

import simdist
from simdist.cluster import build
from tests.device.worlds import values


def answer(body: Callable[[Any], object], given: Any, to: Any) -> None:
    try:
        to.put(body(given.get()))
    except Exception as error:
        to.put(f"{type(error).__name__}: {error}".splitlines()[0])


def through_child(body: Callable[[Any], object], sent: object) -> object:
    """The result of a spawned process that receives an object through a queue."""
    context = mp.get_context("spawn")
    given, to = context.Queue(), context.Queue()
    child = context.Process(target=answer, args=(body, given, to))
    child.start()
    given.put(sent)
    result = to.get()
    child.join()
    return result


def doubled(tensor: torch.Tensor) -> tuple[str, list[float], bool]:
    tensor.mul_(2)
    torch.cuda.synchronize()
    return str(tensor.device), tensor.tolist(), tensor.is_shared()


def test_a_child_writes_the_memory_of_its_parent() -> None:
    def body() -> tuple[object, list[float]]:
        whole = torch.arange(6.0, device="cuda:1").view(2, 3)
        return through_child(doubled, whole[:, 1]), whole.flatten().tolist()

    assert values(body) == [(("cuda:1", [2.0, 8.0], True), [0.0, 2.0, 2.0, 3.0, 8.0, 5.0])]


def zeroed(model: torch.nn.Module) -> int:
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.cuda.synchronize()
    return sum(parameter.requires_grad for parameter in model.parameters())


def test_a_module_is_sent_with_its_parameters() -> None:
    def body() -> tuple[object, float]:
        model = torch.nn.Linear(2, 2, device="cuda")
        return through_child(zeroed, model), sum(each.abs().sum().item() for each in model.parameters())

    assert values(body) == [(2, 0.0)]


def resent(tensor: torch.Tensor) -> None:
    mp.get_context("spawn").SimpleQueue().put(tensor)


def resized(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(1024)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (resent, "RuntimeError: Attempted to send CUDA tensor received from another process; this is not currently"),
        (resized, "RuntimeError: Trying to resize storage that is not resizable"),
    ],
)
def test_what_a_receiver_can_not_do_is_refused(use: Callable[[torch.Tensor], None], text: str) -> None:
    (result,) = values(lambda: through_child(use, torch.ones(2, device="cuda")))

    assert str(result).startswith(text)


@pytest.mark.usefixtures("small_heap")
def test_it_stays_until_it_is_received_and_then_while_a_process_has_it() -> None:
    def body() -> tuple[list[float], int, str]:
        reduced = reduce_tensor(torch.ones(4, device="cuda"))
        gc.collect()
        rebuild, args = reduced
        received = rebuild(*args)
        found, used = received.tolist(), torch.cuda.memory_allocated()
        del received
        gc.collect()
        with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: invalid resource handle\n"):
            rebuild(*args)
        return found, used, str(torch.cuda.memory_allocated())

    assert values(body) == [([1.0] * 4, 512, "0")]


def exchanged() -> list[float] | str:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    mine = torch.full((2,), float(rank), device="cuda")
    reduced: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reduced, reduce_tensor(mine))
    rebuild, args = reduced[1 - rank]
    try:
        result: list[float] = rebuild(*args).tolist()
    except torch.AcceleratorError as error:
        return str(error).splitlines()[0]
    dist.barrier(device_ids=[torch.cuda.current_device()])
    return result


def test_ranks_of_one_host_exchange_handles_by_a_collective() -> None:
    refused = "CUDA error: invalid resource handle"

    for hosts, expected in ((1, [[1.0, 1.0], [0.0, 0.0]]), (2, [refused] * 2)):
        assert (
            simdist.run(exchanged, world_size=2, cluster=build(2, hosts=hosts, devices_per_host=2)).values == expected
        )


@pytest.mark.usefixtures("small_heap")
def test_each_receiver_gets_what_the_sender_has_dropped() -> None:
    def body() -> list[list[float]]:
        tensor = torch.ones(2, device="cuda")
        sent = [reduce_tensor(tensor), reduce_tensor(tensor)]
        del tensor
        found = []
        for rebuild, args in sent:
            found.append(rebuild(*args).tolist())
            gc.collect()
        return [*found, [float(torch.cuda.memory_allocated())]]

    assert values(body) == [[[1.0, 1.0], [1.0, 1.0], [0.0]]]


@pytest.mark.usefixtures("small_heap")
def test_what_was_sent_twice_to_the_same_process_is_not_kept() -> None:
    def body() -> int:
        tensor = torch.ones(2, device="cuda")
        sent = [reduce_tensor(tensor), reduce_tensor(tensor)]
        received = [rebuild(*args) for rebuild, args in sent]
        del tensor, received
        gc.collect()
        return torch.cuda.memory_allocated()

    assert values(body) == [0]


def used_on_streams(tensor: torch.Tensor) -> list[float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        tensor.mul_(2)
    side.synchronize()
    return tensor.tolist()


def test_uses_by_two_processes_are_no_race_of_streams() -> None:
    def body() -> tuple[object, list[float]]:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            tensor = torch.ones(2, device="cuda")
            reduced = reduce_tensor(tensor)
        return through_child(received, reduced), tensor.tolist()

    assert values(body, strict=True) == [([2.0, 2.0], [2.0, 2.0])]


def received(reduced: tuple[Callable[..., torch.Tensor], tuple[Any, ...]]) -> list[float]:
    rebuild, args = reduced
    return used_on_streams(rebuild(*args))


def waited(tensor: torch.Tensor) -> bool:
    other = torch.cuda.Event(enable_timing=True)
    tensor.add(1)
    other.record()
    return bool(other.query())


def test_the_stream_of_the_receiver_waits_for_that_of_the_sender() -> None:
    def body() -> object:
        tensor = torch.ones(2, device="cuda")
        torch.cuda._sleep(10_000_000_000)
        return through_child(waited, tensor)

    assert values(body) == [False]
