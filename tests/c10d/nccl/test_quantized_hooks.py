"""The needs of DDP's quantization hooks: the value of an all-gather's future, and torch's operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.nccl.worlds import join, of, results


def test_the_future_of_an_all_gather_has_one_tensor() -> None:
    def body() -> list[Any]:
        rank = join()
        room = [of(0, 0) for _ in range(2)]
        work: Any = dist.all_gather(room, of(rank, rank + 10), async_op=True)
        first = work.get_future().wait()
        then = work.get_future().then(lambda future: future.value()[0] * 2).wait()
        return [len(first), first[0].tolist(), then.tolist()]

    assert results(body) == [[1, [[0, 10], [1, 11]], [[0, 20], [2, 22]]]] * 2


@pytest.mark.parametrize("name", ["quantization_pertensor_hook", "quantization_perchannel_hook"])
def test_hooks_that_quantize_average_gradients(name: str) -> None:
    def body() -> list[float]:
        rank = join()
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False).cuda(), device_ids=[rank])
        model.register_comm_hook(None, getattr(quantization_hooks, name))
        model(of(rank + 1, rank + 1).reshape(1, 2)).sum().backward()
        return next(model.parameters()).grad.flatten().tolist()  # type: ignore[union-attr]

    for found in results(body):
        assert found == pytest.approx([1.5, 1.5], abs=0.05)


def test_bfloat16_travels_in_halves() -> None:
    def body() -> list[Any]:
        join()
        operators: Any = torch.ops.quantization
        packed = operators._FloatToBfloat16Quantized(of(1.5, -2.3, 3.25).reshape(1, 3))
        return [str(packed.device.type), packed.dtype, operators._Bfloat16QuantizedToFloat(packed).tolist()]

    assert results(body) == [["cuda", torch.float16, [[1.5, -2.296875, 3.25]]]] * 2
