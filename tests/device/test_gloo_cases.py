"""The cases of torch's own tests for Gloo on CUDA tensors (test_c10d_gloo.py), called as those call them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as c10d

from tests.device.worlds import values

Group = Any
SIZE = 4


def there(number: float) -> torch.Tensor:
    return torch.tensor([number]).cuda()


def settled(work: Any) -> Any:
    future = work.get_future()
    future.wait()
    return future.value()


def numbers(tensors: Any) -> list[float]:
    assert all(each.is_cuda for each in tensors)
    return [each.item() for each in tensors]


def broadcasts(group: Group, rank: int) -> None:
    for root in range(SIZE):
        for root_tensor in range(2):
            tensors = [there(rank * 2 + 0.0), there(rank * 2 + 1.0)]
            options = c10d.BroadcastOptions()
            options.rootRank, options.rootTensor = root, root_tensor

            assert numbers(settled(group.broadcast(tensors, options))) == [root * 2 + root_tensor] * 2


def all_reduces(group: Group, rank: int) -> None:
    expected: dict[Any, int] = {
        c10d.ReduceOp.SUM: 10,
        c10d.ReduceOp.PRODUCT: 24,
        c10d.ReduceOp.MIN: 1,
        c10d.ReduceOp.MAX: 4,
    }
    for operation, result in expected.items():
        options = c10d.AllreduceOptions()
        options.reduceOp = operation
        tensor = there(rank + 1.0)

        assert numbers(settled(group.allreduce([tensor], options))) == [result]
        assert tensor.item() == result
    several = [there(2 * rank + 0.0), there(2 * rank + 1.0)]
    assert numbers(settled(group.allreduce(several, c10d.AllreduceOptions()))) == [28, 28]
    assert numbers(settled(group.allreduce(there(rank + 1.0)))) == [10]


def reduces(group: Group, rank: int) -> None:
    for root in range(SIZE):
        options = c10d.ReduceOptions()
        options.rootRank = root
        tensor = there(rank + 1.0)

        group.reduce([tensor], options).wait()

        assert rank != root or tensor.item() == 10


def gathers_under_stress(group: Group, rank: int) -> None:
    futures = []
    for index in range(50):
        for root in range(SIZE):
            options = c10d.GatherOptions()
            options.rootRank = root
            outputs = [[there(-1) for _ in range(SIZE)]] if root == rank else []
            futures.append((index, root, group.gather(outputs, [there(index + rank)], options).get_future()))
    for index, root, future in futures:
        future.wait()

        assert rank != root or numbers(future.value()) == [index + other for other in range(SIZE)]


def all_gathers(group: Group, rank: int) -> None:
    for count in (1, 2, 3):
        inputs = [there(count * rank + index) for index in range(count)]
        outputs = [[there(-1) for _ in range(count * SIZE)] for _ in range(count)]
        result = settled(group.allgather(outputs, inputs))

        for each in [result] if count == 1 else result:
            assert numbers(each) == list(range(count * SIZE))
    column = there(rank).expand(2, 2).tril().contiguous()[:, 0]
    received = settled(group.allgather([[torch.zeros(2).cuda() for _ in range(SIZE)]], [column.float()]))
    assert [each.tolist() for each in received] == [[other, other] for other in range(SIZE)]


def scatters(group: Group, rank: int) -> None:
    for root in range(SIZE):
        options = c10d.ScatterOptions()
        options.rootRank = root
        output = [there(-1)]
        inputs = [[there(root * 10 + other) for other in range(SIZE)]] if rank == root else []

        assert numbers(settled(group.scatter(output, inputs, options))) == [root * 10 + rank]


def inference_mode(group: Group, rank: int) -> None:
    with torch.inference_mode():
        outputs = [torch.zeros(2).cuda() for _ in range(SIZE)]
        group.allgather([outputs], [torch.ones(2).cuda() * rank]).wait()

    assert [each.tolist() for each in outputs] == [[other, other] for other in range(SIZE)]


def wrong_types(group: Group, rank: int) -> None:
    with pytest.raises(RuntimeError, match="invalid tensor type"):
        group.allreduce([there(1.0), there(1)])
    with pytest.raises(RuntimeError, match="invalid tensor size"):
        group.allgather([[torch.zeros(2).cuda() for _ in range(SIZE)]], [there(1.0)])


@pytest.mark.parametrize(
    "case",
    [broadcasts, all_reduces, reduces, gathers_under_stress, all_gathers, scatters, inference_mode, wrong_types],
    ids=lambda case: case.__name__,
)
def test_gloo_on_tensors_of_devices(case: Callable[[Group, int], None]) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        names: Any = c10d
        store = names.TCPStore("localhost", 29511, SIZE, rank == 0)
        gloo = names.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface="lo")]
        case(gloo(store, rank, SIZE, options), rank)

    values(body, world_size=SIZE)
