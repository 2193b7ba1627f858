"""Torch's own tests of Gloo on CUDA tensors (test_c10d_gloo.py of 2.13), by name, on virtual devices.

`STATE` has every test with `cuda` in its name in the available part of that file, and its cases here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
    for index in range(25):
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


def broadcasts_under_stress(group: Group, rank: int) -> None:
    inputs = [torch.tensor([index * SIZE + rank]).cuda() for index in range(60)]
    works = [group.broadcast(tensor, root=index % SIZE) for index, tensor in enumerate(inputs)]
    for index, work in enumerate(works):
        work.wait()

        assert inputs[index].item() == index * SIZE + index % SIZE


def all_reduces_under_stress(group: Group, rank: int) -> None:
    inputs = [torch.tensor([index + rank]).cuda() for index in range(60)]
    futures = [group.allreduce(tensor).get_future() for tensor in inputs]
    for index, future in enumerate(futures):
        future.wait()

        assert numbers(future.value()) == [index * SIZE + SIZE * (SIZE - 1) // 2]


def all_reduce_of_halves(group: Group, rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    tensor = ((torch.rand(200, 1, generator=generator) * 2 - 1) * 65504 / SIZE).half().cuda()
    everything = settled(group.allgather([[torch.zeros_like(tensor) for _ in range(SIZE)]], [tensor]))
    total = torch.stack(everything, dim=0).sum(dim=0)

    (reduced,) = settled(group.allreduce([tensor], c10d.AllreduceOptions()))

    torch.testing.assert_close(total, reduced, rtol=1e-2, atol=1e-3)


def coalesced_all_reduces_are_refused(group: Group, rank: int) -> None:
    options: Any = c10d.AllreduceCoalescedOptions()
    with pytest.raises(RuntimeError, match="unsupported device type"):
        group.allreduce_coalesced([there(0.0), there(0.0)], options)


def scatters_under_stress(group: Group, rank: int) -> None:
    futures = []
    for index in range(25):
        for root in range(SIZE):
            options = c10d.ScatterOptions()
            options.rootRank = root
            inputs = [[there(index + rank) for _ in range(SIZE)]] if root == rank else []
            futures.append((index, root, group.scatter([there(-1)], inputs, options).get_future()))
    for index, root, future in futures:
        future.wait()

        assert numbers(future.value()) == [index + root]


def all_gathers_under_stress(group: Group, rank: int) -> None:
    inputs = [there(index + rank) for index in range(60)]
    futures = [group.allgather([[there(-1) for _ in range(SIZE)]], [tensor]).get_future() for tensor in inputs]
    for index, future in enumerate(futures):
        future.wait()

        assert numbers(future.value()) == [index + other for other in range(SIZE)]


def sparse_of(rank: int, size: int, sparse: int, dense: int) -> torch.Tensor:
    indices = torch.zeros(sparse, rank + 1, dtype=torch.int64)
    indices[0] = torch.arange(rank + 1)
    shape = [size] * sparse + [2] * dense
    return torch.sparse_coo_tensor(indices, torch.ones([rank + 1, *shape[sparse:]]), shape, check_invariants=False)


KINDS = ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3))  # numbers of sparse and of dense dimensions


def sum_of(size: int, sparse: int, dense: int) -> torch.Tensor:
    total = sparse_of(0, size, sparse, dense)
    for rank in range(1, size):
        total = total + sparse_of(rank, size, sparse, dense)
    return total.to_dense()


def sparse_all_reduces(group: Group, rank: int) -> None:
    for count in (1, 2):
        for kind in KINDS:
            size = count * SIZE
            tensors = [sparse_of(count * rank + index, size, *kind).cuda() for index in range(count)]
            results = settled(group.allreduce(tensors))

            for each in (*tensors, *results):
                assert each.is_cuda
                assert each.is_sparse
                assert torch.equal(each.to_dense().cpu(), sum_of(size, *kind))


def sparse_all_reduces_of_the_default_group(group: Group, rank: int) -> None:
    dist: Any = c10d
    dist.init_process_group("gloo", rank=rank, world_size=SIZE)
    for kind in KINDS:
        tensor = sparse_of(rank, SIZE, *kind).cuda()
        dist.all_reduce(tensor, async_op=True).wait()

        assert tensor.is_cuda
        assert torch.equal(tensor.cpu().to_dense(), sum_of(SIZE, *kind))


STATE: dict[str, Sequence[Callable[[Group, int], None]]] = {
    "test_broadcast_basics_cuda": [broadcasts],
    "test_broadcast_stress_cuda": [broadcasts_under_stress],
    "test_allreduce_basics_cuda": [all_reduces, reduces, all_reduce_of_halves],
    "test_allreduce_stress_cuda": [all_reduces_under_stress],
    "test_allreduce_coalesced_checks_cuda": [coalesced_all_reduces_are_refused, wrong_types],
    "test_sparse_allreduce_basics_cuda": [sparse_all_reduces],
    "test_sparse_allreduce_cuda_dispatched": [sparse_all_reduces_of_the_default_group],
    "test_scatter_basics_cuda": [scatters],
    "test_scatter_stress_cuda": [scatters_under_stress],
    "test_gather_basics_cuda": [gathers_under_stress],
    "test_gather_stress_cuda": [gathers_under_stress],
    "test_allgather_basics_cuda": [all_gathers, inference_mode],
    "test_allgather_stress_cuda": [all_gathers_under_stress],
}


@pytest.mark.parametrize("name", list(STATE))
def test_torchs_own(name: str) -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        names: Any = c10d
        store = names.TCPStore("localhost", 29511, SIZE, rank == 0)
        gloo = names.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface="lo")]
        group = gloo(store, rank, SIZE, options)
        for case in STATE[name]:
            case(group, rank)

    values(body, world_size=SIZE)


def test_all_of_them_pass() -> None:
    assert len(STATE) == 13
