"""CUDA in forked children: as the driver of a GPU, it does not work in one whose parent has begun it."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.device.worlds import values

REFUSED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
    "start method"
)


def ones(_: object = None) -> float:
    return torch.ones(2, device="cuda").sum().item()


def answer(body: Callable[[Any], object], given: object, to: Any) -> None:
    try:
        to.put(body(given))
    except Exception as error:
        to.put(f"{type(error).__name__}: {error}")


def in_child(body: Callable[[Any], object], given: object = None, *, method: str = "fork") -> Any:
    context: Any = multiprocessing.get_context(method)
    answers: queue.Queue[object] = context.Queue()
    child = context.Process(target=answer, args=(body, given, answers))
    child.start()
    found = answers.get()
    child.join()
    return found


def bad(_: object) -> tuple[bool, bool, bool]:
    return torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized(), torch.cuda.is_available()


@pytest.mark.parametrize("begin", [ones, torch.cuda.is_available, torch.cuda.init])
def test_a_forked_child_cannot_begin_cuda_after_its_parent(begin: Callable[[], object]) -> None:
    def rank() -> Any:
        begin()
        return in_child(ones), in_child(bad), torch.cuda._is_in_bad_fork()

    assert values(rank) == [(f"RuntimeError: {REFUSED}", (True, False, True), False)]


def test_children_begin_cuda_where_nothing_was_forked_from_it() -> None:
    def rank() -> Any:
        first = torch.cuda.device_count(), in_child(ones), in_child(bad)
        ones()
        return first, in_child(ones, method="spawn"), in_child(bad, method="spawn")

    assert values(rank) == [((4, 2.0, (False, False, True)), 2.0, (False, False, True))]


def test_availability_by_nvml_leaves_forked_children_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

    def rank() -> Any:
        return torch.cuda.is_available(), in_child(ones)

    assert values(rank) == [(True, 2.0)]


def test_a_child_of_a_forked_child_cannot_begin_either() -> None:
    def rank() -> Any:
        ones()
        return in_child(lambda _: in_child(ones))

    assert values(rank) == [f"RuntimeError: {REFUSED}"]


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.tolist])
def test_a_tensor_of_the_parent_is_not_read(read: Callable[[Any], object]) -> None:
    def rank() -> Any:
        return in_child(read, torch.ones((), device="cuda"))

    assert values(rank)[0].startswith("AcceleratorError: CUDA error: initialization error\n")


class Made(Dataset[torch.Tensor]):
    def __init__(self, device: str) -> None:
        self.device = device

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((), float(index), device=self.device)


def test_workers_of_a_loader_load_on_the_host_alone() -> None:
    def rank() -> Any:
        ones()
        found = [batch.cuda().item() for batch in DataLoader(Made("cpu"), num_workers=1)]
        with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
            list(DataLoader(Made("cuda"), num_workers=1))
        return found

    assert values(rank) == [[0.0, 1.0]]
