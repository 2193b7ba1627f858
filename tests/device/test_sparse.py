"""Sparse tensors of devices: the values equal the CPU's, and so do the results of training with them."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simdist.errors import UnsupportedError
from tests.device.worlds import cuda, on_devices, values

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch warns each time

Tensor = torch.Tensor


def entries(device: Any = "cpu") -> Tensor:
    """Return a sparse tensor with two entries in one place."""
    indices, numbers = torch.tensor([[0, 2, 2], [1, 0, 0]]), torch.tensor([1.0, 2.0, 3.0])
    return torch.sparse_coo_tensor(indices, numbers, (3, 3), device=device, check_invariants=False)


def zeroed(tensor: Tensor) -> Tensor:
    return tensor.clone().zero_()


def added_to(dense: Tensor, tensor: Tensor) -> Tensor:
    return dense.clone().add_(tensor, alpha=0.5)


OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "coalesce": lambda tensor: tensor.coalesce(),
    "indices": lambda tensor: tensor.coalesce().indices(),
    "values": lambda tensor: tensor.coalesce().values(),
    "to_dense": lambda tensor: tensor.to_dense(),
    "add": lambda tensor: tensor + tensor,
    "add_": lambda tensor: tensor.clone().add_(tensor),
    "mul": lambda tensor: tensor * 3,
    "div_": lambda tensor: tensor.coalesce().div_(2),
    "neg": lambda tensor: -tensor,
    "abs": lambda tensor: tensor.coalesce().abs(),
    "transpose": lambda tensor: tensor.t(),
    "sum": lambda tensor: tensor.sum(),
    "sum of a dimension": lambda tensor: torch.sparse.sum(tensor, 0),
    "mm": lambda tensor: torch.sparse.mm(tensor, torch.ones(3, 2, device=tensor.device)),
    "add to dense": lambda tensor: added_to(torch.ones(3, 3, device=tensor.device), tensor),
    "sparse_mask": lambda tensor: torch.ones(3, 3, device=tensor.device).sparse_mask(tensor.coalesce()),
    "to_sparse": lambda tensor: tensor.to_dense().to_sparse(),
    "cat": lambda tensor: torch.cat([tensor, tensor]),
    "index_select": lambda tensor: tensor.coalesce().index_select(0, torch.tensor([2], device=tensor.device)),
    "zero_": zeroed,
    "clone": lambda tensor: tensor.clone(),
    "softmax": lambda tensor: torch.sparse.softmax(tensor.coalesce(), 1),
    "double": lambda tensor: tensor.double(),
    "empty_like": lambda tensor: torch.empty_like(tensor),
    "deepcopy": copy.deepcopy,
    "pickle": lambda tensor: pickle.loads(pickle.dumps(tensor)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@on_devices
def test_an_operation_has_the_values_of_the_cpu_on_the_device(name: str) -> None:
    expected, found = OPERATIONS[name](entries()), OPERATIONS[name](entries(cuda(1)))

    assert found.device == cuda(1)
    assert found.layout is expected.layout
    assert found.dtype is expected.dtype
    assert torch.equal(found.cpu().to_dense(), expected.to_dense())
    if expected.is_sparse:
        assert (found.is_coalesced(), found._nnz()) == (expected.is_coalesced(), expected._nnz())


@on_devices
def test_a_sparse_tensor_goes_to_a_device_and_back() -> None:
    there = entries().to("cuda:2")

    assert (there.device, there._values().device, there._nnz()) == (cuda(2), cuda(2), 3)
    assert "device='cuda:2'" in repr(there)
    assert torch.equal(there.cpu().to_dense(), entries().to_dense())


@on_devices
def test_what_a_sparse_tensor_takes_is_accounted() -> None:
    before = torch.cuda.memory_allocated()
    tensor = entries("cuda")
    held = torch.cuda.memory_allocated() - before
    del tensor

    assert held == 2 * 512
    assert torch.cuda.memory_allocated() == before


@on_devices
def test_other_sparse_layouts_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a virtual device has no sparse_csr tensors; keep them on the CPU"):
        torch.eye(3, device="cuda").to_sparse_csr()


@on_devices
def test_an_invariant_that_is_checked_is_refused_in_torch_s_words() -> None:
    with pytest.raises(RuntimeError, match="size is inconsistent with indices: for dim 0, size is 1 but found index 2"):
        torch.sparse_coo_tensor(torch.tensor([[2]]), torch.ones(1), (1,), device="cuda", check_invariants=True)


def trained(make: Callable[[Any], Any], device: Any) -> list[float]:
    torch.manual_seed(3)
    words = nn.Embedding(6, 2, sparse=True).to(device)
    optimizer = make(words.parameters())
    for step in range(3):
        optimizer.zero_grad()
        (words(torch.tensor([1, 2, 2, step], device=device)) ** 2).sum().backward()
        optimizer.step()
    return words.weight.flatten().tolist()


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda given: torch.optim.SGD(given, lr=0.1),
    "SGD with momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
    "Adagrad": lambda given: torch.optim.Adagrad(given, lr=0.1),
    "SparseAdam": lambda given: torch.optim.SparseAdam(list(given), lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_devices
def test_an_embedding_with_sparse_gradients_is_trained_as_on_the_cpu(name: str) -> None:
    assert trained(OPTIMIZERS[name], "cuda") == trained(OPTIMIZERS[name], "cpu")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_ddp_over_gloo_adds_sparse_gradients_up(device: str) -> None:
    def body() -> list[float]:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("gloo")
        words = nn.Embedding(4, 1, sparse=True)
        nn.init.constant_(words.weight, 1)
        model = DistributedDataParallel(words.to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([rank, 2], device=device)).sum().backward()
            assert words.weight.grad is not None
            assert words.weight.grad.is_sparse
            optimizer.step()
        return words.weight.flatten().tolist()

    assert values(body, world_size=2) == [[0.0, 0.0, -1.0, 1.0]] * 2


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@on_devices
def test_bags_of_embeddings_have_sparse_or_dense_gradients(mode: str, sparse: bool) -> None:
    indices, offsets = torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 2, 2])
    bags = [nn.EmbeddingBag(6, 3, mode=mode, sparse=sparse) for _ in range(2)]
    bags[1].load_state_dict(bags[0].state_dict())
    bags[1].cuda(1)

    for bag in bags:
        there = bag.weight.device
        bag(indices.to(there), offsets.to(there)).pow(2).sum().backward()

    gradients = [bag.weight.grad for bag in bags if bag.weight.grad is not None]
    assert [each.is_sparse for each in gradients] == [sparse] * 2
    assert torch.allclose(gradients[0].to_dense(), gradients[1].to_dense().cpu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@on_devices
def test_sparse_halves_are_added(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 2.0], dtype=dtype, device=cuda(1))
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 2]], device=cuda(1)), values, (3,))

    total = tensor + tensor
    tensor.add_(total)

    assert total.dtype is tensor.dtype is dtype
    assert total.to_dense().tolist() == [2, 0, 4]
    assert tensor.to_dense().tolist() == [3, 0, 6]


@on_devices
def test_parts_are_checked_where_asked() -> None:
    def make(*places: int) -> torch.Tensor:
        indices, values = torch.tensor([places], device=cuda(1)), torch.ones(2, device=cuda(1))
        return torch.sparse_coo_tensor(indices, values, (3,), is_coalesced=True)

    with torch.sparse.check_sparse_tensor_invariants():
        assert make(0, 1).is_coalesced()
        with pytest.raises(RuntimeError, match="cannot set is_coalesced to true if indices correspond to uncoalesced"):
            make(1, 1)
