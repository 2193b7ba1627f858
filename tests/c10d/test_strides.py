"""Tensors of one element may have any stride; every operation takes them as real Gloo does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import in_group, values
from tests.real_gloo import run_real

pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")

c10d: Any = dist  # the stubs do not export every name
Tensor = torch.Tensor
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.complex64)


def wide(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return one element with a stride of 2."""
    tensor = torch.full((1, 2), value).to(dtype)[:, 0]
    assert tensor.stride() == (2,)
    return tensor


def wide_square(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return one element in two dimensions, with strides of 7 and 3."""
    return torch.full((8,), value).to(dtype).as_strided((1, 1), (7, 3))


def _send_and_receive(make: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
    rank, tensor = dist.get_rank(), make(dist.get_rank() + 1.0, dtype)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return [tensor]


def _operations(make: Callable[..., Tensor], dtype: torch.dtype) -> dict[str, Callable[[], list[Tensor]]]:
    def own() -> Tensor:
        return make(dist.get_rank() + 1.0, dtype)

    def pair() -> list[Tensor]:
        return [make(0.0, dtype), make(0.0, dtype)]

    def filled(call: Callable[..., Any], *tensors: Any, **options: Any) -> list[Tensor]:
        call(*tensors, **options)
        first = tensors[0]
        return list(first) if isinstance(first, list) else [first]

    root = {"dst": 0}
    return {
        "all_reduce": lambda: filled(dist.all_reduce, own()),
        "all_reduce async": lambda: filled(lambda t: dist.all_reduce(t, async_op=True).wait(), own()),
        "reduce": lambda: filled(dist.reduce, own(), **root) if dist.get_rank() == 0 else filled(dist.reduce, own(), 0),
        "broadcast": lambda: filled(dist.broadcast, own(), 0),
        "all_gather": lambda: filled(dist.all_gather, pair(), own()),
        "gather": lambda: filled(dist.gather, own(), pair() if dist.get_rank() == 0 else None, **root),
        "scatter": lambda: filled(dist.scatter, own(), [own(), own()] if dist.get_rank() == 0 else None, 0),
        "reduce_scatter": lambda: filled(dist.reduce_scatter, own(), [own(), own()]),
        "all_to_all": lambda: filled(dist.all_to_all, pair(), [own(), own()]),
        "all_gather_single": lambda: filled(
            dist.all_gather_into_tensor, torch.zeros(2, *own().shape[1:], dtype=dtype), own()
        ),
        "coalesced": lambda: filled(dist.all_reduce_coalesced, [own(), own()]),
        "send": lambda: _send_and_receive(make, dtype),
    }


@pytest.mark.parametrize("make", [wide, wide_square])
@pytest.mark.parametrize("name", list(_operations(wide, torch.float64)))
def test_every_operation_takes_a_single_element_with_any_stride(name: str, make: Callable[..., Tensor]) -> None:
    def body(rank: int) -> list[list[Tensor]]:
        found = []
        # Gloo has no gather of complex numbers.
        for dtype in DTYPES[:-1] if name == "gather" else DTYPES:
            strange = _operations(make, dtype)[name]()
            plain = _operations(lambda value, kind: make(value, kind).contiguous().clone(), dtype)[name]()
            found += [[a.reshape(-1), b.reshape(-1)] for a, b in zip(strange, plain, strict=True)]
        return found

    for pairs in in_group(body, 2):
        for strange, plain in pairs:
            assert torch.equal(strange, plain)


def test_a_strange_stride_survives_trouble_and_recording() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        tensor = wide(1.0)
        dist.all_reduce(tensor)
        if dist.get_rank() == 1:
            return tensor.tolist()
        with pytest.raises(RuntimeError, match="Connection"):
            dist.all_reduce(tensor)
        return tensor.tolist()

    result = simdist.run(body, world_size=2, record_results=True)

    assert result.values == [[2.0], [2.0]]


def _lazy_views() -> list[Any]:
    """Return the results in tensors that torch negates or conjugates when they are read."""
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), c10d.group.WORLD
    seen: list[Any] = []
    makers: tuple[Callable[[], Tensor], ...] = (
        lambda: torch._neg_view(torch.ones(2) * (rank + 1)),
        lambda: torch.full((2,), (rank + 1) * (1 + 2j)).conj(),
    )
    for make in makers:
        reduced, reported = make(), make()
        group.allreduce([reduced], c10d.AllreduceOptions()).wait()
        group.broadcast([reported], c10d.BroadcastOptions()).wait()
        seen += [reduced.tolist(), reported.tolist()]
    sent = torch._neg_view(torch.ones(2) * (rank + 1))
    gathered = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(gathered, sent)
    received = torch.zeros(2)
    if rank == 0:
        dist.send(sent, 1)
    else:
        dist.recv(received, 0)
    return [*seen, [each.tolist() for each in gathered], received.tolist()]


_OF_RANK_1 = [
    *([[-2.0, -2.0]] * 2),  # torch's dispatcher hands backends a copy, so results are lost
    *([[2 - 4j, 2 - 4j]] * 2),
    [[-1.0, -1.0], [-2.0, -2.0]],  # sends use the value
    [-1.0, -1.0],
]


def test_of_tensors_negated_or_conjugated_when_read_backends_get_a_copy() -> None:
    assert values(_lazy_views, 2)[1] == _OF_RANK_1


@pytest.mark.real
def test_real_gloo_gets_a_copy_of_them_too() -> None:
    outcomes = run_real(_lazy_views, 2)

    assert outcomes[1].value == _OF_RANK_1
