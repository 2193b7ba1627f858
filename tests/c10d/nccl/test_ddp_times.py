"""The times that DDP logs for a module on devices, and the bytes that object collectives log."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.nccl.worlds import join, results

TIMES = ("forward_compute_time", "backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time")
CYCLES_PER_MS = 1_755_000
_cuda: Any = torch.cuda
_registry: Any = torch._C._distributed_c10d


def logged(model: Any, *names: str) -> list[Any]:
    data = model._get_ddp_logging_data()
    return [data.get(name) for name in names]


def test_times_of_a_module_on_devices_are_those_of_its_stream() -> None:
    def body() -> list[list[Any]]:
        rank = join()
        model: Any = DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[rank])
        found = []
        for _ in range(4):
            output = model(torch.ones(2, 4, device="cuda"))
            _cuda._sleep(CYCLES_PER_MS)
            output.sum().backward()
            found.append(logged(model, "iteration", *TIMES, "avg_backward_comm_time"))
        return found[1:]

    first, second = results(body)

    # Times of the iteration before: the forward pass takes no time, but each reading of the clock is a bit later; the
    # backward pass begins on the stream at once, and its gradients are there when the kernel has ended.
    usual = [1, 1_000_000, 100_020, 1, 100_020]
    assert [first[0], first[2]] == [[1, *usual], [3, *usual]]
    assert second[2] == [3, *usual]


def test_iterations_are_sampled_after_the_tenth() -> None:
    def body() -> list[int]:
        rank = join()
        model: Any = DistributedDataParallel(nn.Linear(1, 1).cuda(), device_ids=[rank])
        model._set_ddp_runtime_logging_sample_rate(4)
        found = []
        for _ in range(18):
            model(torch.ones(1, 1, device="cuda")).sum().backward()
            found += logged(model, "iteration")
        return found[8:]

    assert results(body)[0] == [8, 9, 10, 10, 12, 12, 12, 12, 16, 16]


@pytest.mark.parametrize("find_unused", [False, True])
def test_what_else_is_logged_of_a_module_on_devices_is_up_to_date(find_unused: bool) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

        def forward(self, taken: torch.Tensor) -> Any:
            return self.used(taken) + (0 if find_unused else self.unused(taken))

    def body() -> list[Any]:
        rank = join()
        model: Any = DistributedDataParallel(Half().cuda(), device_ids=[rank], find_unused_parameters=find_unused)
        for _ in range(3):
            model(torch.ones(1, 1, device="cuda")).sum().backward()
        return logged(model, "has_rebuilt_buckets", "unused_parameter_size", "rebuilt_bucket_sizes")

    assert results(body)[1] == ([0, 4, None] if find_unused else [1, 0, "8"])


def test_object_collectives_log_the_hash_of_what_they_send(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []
    logger = dist.distributed_c10d.logger
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append((text.split(" size")[0], *values)))

    def body() -> list[Any]:
        rank = join()
        found: list[Any] = [None, None]
        dist.all_gather_object(found, {"rank": rank})
        return found

    assert results(body, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) == [[{"rank": 0}, {"rank": 1}]] * 2
    assert [each[0] for each in said] == ["_object_to_tensor"] * 2 + ["_tensor_to_object"] * 4
    assert len({each[2] for each in said[:2]}) == 2  # the pickles differ


def test_the_hash_of_tensors_is_that_of_a_build_with_nccl() -> None:
    def body() -> int:
        join()
        memory = torch.tensor([index * 7 & 255 for index in range(300)], dtype=torch.uint8, device="cuda")
        found: int = _registry._hash_tensors([memory[1:2]])
        return found

    assert results(body) == [2759264832948263272] * 2
