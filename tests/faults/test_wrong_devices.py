"""Virtual devices that compute wrongly for a while, silently."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import DeviceModel, build
from simdist.errors import FaultError
from simdist.faults import DeviceWrong, Fault, problems_of
from simdist.result import RunResult
from tests.faults.programs import MS, events_of


def _run(body: Callable[..., Any], *faults: Fault, **options: Any) -> RunResult:
    settings: dict[str, Any] = {"world_size": 1, "backend": "nccl"}
    result = simdist.run(body, faults=faults, **(settings | options))
    result.raise_for_failure()
    return result


def _products(count: int = 1) -> list[list[float]]:
    """Return products of two matrices of ones, with 16 elements each."""
    ones = torch.ones(4, 4, device="cuda")
    return [(ones @ ones).flatten().tolist() for _ in range(count)]


def _wrong(products: list[list[float]], wrong: float) -> list[int]:
    """Return the place at which each product is wrong."""
    assert all(sorted(product) == sorted([4.0] * 15 + [wrong]) for product in products)
    return [product.index(wrong) for product in products]


def test_one_element_of_each_product_is_wrong_on_one_rank_only() -> None:
    result = _run(_products, DeviceWrong(rank=1, factor=-0.5), world_size=2, args=(3,))

    assert result.values[0] == [[4.0] * 16] * 3
    assert len(set(_wrong(result.values[1], -2.0))) > 1
    assert [(event.time_ns, event.rank, event.data["text"]) for event in events_of(result, "fault")] == [
        (0, 1, "one element of each matrix product of rank 1 is -0.5 times what it should be")
    ]


def test_which_element_is_drawn_from_the_seed() -> None:
    first, again, other = (_run(_products, DeviceWrong(rank=0), args=(8,), seed=seed).values[0] for seed in (0, 0, 1))

    assert first == again
    assert _wrong(first, 8.0) != _wrong(other, 8.0)


def test_only_while_it_lasts() -> None:
    def body() -> list[float]:
        found = []
        for _ in range(4):
            found.append(max(_products()[0]))
            time.sleep(0.001)
        return found

    result = _run(body, DeviceWrong(rank=0, start_ns=MS, until_ns=3 * MS))

    assert result.values == [[4.0, 8.0, 8.0, 4.0]]
    assert result.faults[0].struck_ns == (MS,)


def test_forward_and_backward_passes_of_a_layer_are_products() -> None:
    def body() -> list[int]:
        layer = torch.nn.Linear(4, 4, device="cuda")
        for parameter in layer.parameters():
            torch.nn.init.ones_(parameter)
        inputs = torch.ones(4, 4, device="cuda", requires_grad=True)
        output = layer(inputs)
        torch.autograd.backward(output.sum())
        assert layer.weight.grad is not None
        assert inputs.grad is not None
        tensors = (output, layer.weight.grad, inputs.grad)
        return [int((each != each.flatten().median()).sum()) for each in tensors]

    assert _run(body).values == [[0, 0, 0]]
    assert _run(body, DeviceWrong(rank=0)).values == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("exp", [True, False, False]),
        ("mul_", [False, True, False]),
        ("sort", [False, False, True]),
        ("mm", [False] * 3),
    ],
)
def test_any_kernel_can_be_wrong_in_place_too_and_whole_numbers_stay_right(kernel: str, wrong: list[bool]) -> None:
    def body() -> list[bool]:
        ones = torch.ones(4, device="cuda")
        exponents = ones.exp()
        products = torch.full((4,), 2.0, device="cuda").mul_(3)
        ordered, places = torch.sort(ones)
        assert places.tolist() == [0, 1, 2, 3]
        assert (torch.arange(4, device="cuda").mul_(3)).tolist() == [0, 3, 6, 9]
        return [len(set(each.tolist())) > 1 for each in (exponents, products, ordered)]

    result = _run(body, DeviceWrong(rank=0, kernel=kernel, optional=True))

    assert result.values == [wrong]


def test_a_product_of_data_that_is_not_there_yet_is_wrong_when_it_is() -> None:
    def body() -> list[float]:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        tensor = torch.ones(4, 4, device=device)
        if dist.get_rank() == 0:
            time.sleep(1)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        product = tensor @ tensor
        return sorted(product.flatten().tolist())

    result = _run(body, DeviceWrong(rank=1), world_size=2)

    assert result.values == [[16.0] * 16, [16.0] * 15 + [32.0]]


def test_it_takes_no_time_on_the_device() -> None:
    def body() -> int:
        began_ns = time.monotonic_ns()
        _products(5)
        torch.cuda.synchronize()
        return time.monotonic_ns() - began_ns

    model = DeviceModel(flops=1e12, bytes_per_s=10**12, launch_ns=5_000)
    cluster = build(1, devices_per_host=1, device_model=model)
    plain, wrong = (_run(body, *faults, cluster=cluster) for faults in ((), (DeviceWrong(rank=0),)))

    assert plain.values == wrong.values
    assert plain.values[0] > 0


def test_a_kernel_that_never_runs_is_no_strike() -> None:
    result = simdist.run(_products, world_size=1, backend="nccl", faults=[DeviceWrong(rank=0, kernel="conv")])

    assert not result.ok
    assert result.faults[0].struck_ns == ()


def test_the_next_world_computes_as_it_should() -> None:
    _run(_products, DeviceWrong(rank=0))

    assert _run(_products).values == [[[4.0] * 16]]


def test_what_is_wrong_with_it_is_reported() -> None:
    with pytest.raises(FaultError, match=r"strikes a virtual device, and the world has none; backend=\"nccl\", or"):
        simdist.run(print, world_size=1, faults=[DeviceWrong(rank=0)])

    faults = [DeviceWrong(rank=0, factor=1), DeviceWrong(rank=3), DeviceWrong(rank=0, start_ns=5, until_ns=5)]
    assert problems_of(faults, 2) == [
        "faults[0].factor: 1 changes nothing",
        "faults[1].rank: rank 3 is outside the world of 2 ranks",
        "faults[2].until_ns: ends before it starts",
    ]
