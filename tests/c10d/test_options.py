"""The arguments of `ProcessGroupGloo`: a timeout or options, and devices. Texts and types are torch 2.13's."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import simdist
from simdist.inside.torch import Place

stores: Any = dist  # the stubs leave them out

INVALID = f"[enforce fail at {Place.TIMEOUT_IS_NEGATIVE.path}] timeout.count() >= 0. "
KNOWN = "1. torch._C._distributed_c10d.ProcessGroupGloo(store: torch._C._distributed_c10d.Store, rank: "


def gloo_class() -> Any:
    """Return the class, which on a rank is another one than on the host."""
    return c10d.ProcessGroupGloo


def gloo(*args: Any, rank: int = 0, size: int = 1, **kwargs: Any) -> Any:
    """Make a group of one rank with these arguments after its size."""
    return gloo_class()(stores.HashStore(), rank, size, *args, **kwargs)


def reported(call: Callable[[], Any]) -> str:
    """Return the error that `call` raises."""
    try:
        call()
    except (TypeError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (10.0, timedelta(seconds=10)),
        (0.0015, timedelta(milliseconds=1)),
        (timedelta(microseconds=1500), timedelta(milliseconds=1)),
        (timedelta(microseconds=-500), timedelta(0)),
        (-1.0, f"RuntimeError: {INVALID}Invalid timeout"),
        (float("nan"), f"RuntimeError: {INVALID}Invalid timeout"),
        (float("inf"), f"RuntimeError: {INVALID}Invalid timeout"),
    ],
)
def test_a_timeout_is_a_duration_or_seconds_as_a_float(simulated: bool, given: Any, kept: Any) -> None:
    def body() -> list[Any]:
        makers: list[Callable[[], Any]] = [lambda: gloo(given), lambda: gloo(timeout=given)]
        return [reported(make) if isinstance(kept, str) else make().options._timeout for make in makers]

    found = simdist.run(body, world_size=1).values[0] if simulated else body()

    assert found == [kept, kept]


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_what_is_no_duration_is_refused_by_the_same_type(simulated: bool) -> None:
    def body() -> list[str]:
        makers: list[Callable[[], Any]] = [
            lambda: gloo(timeout=10),
            lambda: gloo(timeout=None),
            lambda: gloo(timeout="10"),
            lambda: gloo(options=10.0),
            lambda: gloo(1.0, timeout=1.0),
        ]
        return [reported(make) for make in makers]

    found = simdist.run(body, world_size=1).values[0] if simulated else body()

    assert all(text.startswith("TypeError: __init__(): incompatible constructor arguments.") for text in found)
    assert all(KNOWN in text for text in found)


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
def test_a_place_outside_the_group_and_options_with_no_device_are_refused(simulated: bool) -> None:
    def body() -> list[str]:
        makers: list[Callable[[], Any]] = [
            lambda: gloo(rank=1),
            lambda: gloo(rank=-1),
            lambda: gloo(gloo_class()._Options()),
        ]
        return [reported(make).split("] ")[-1] for make in makers]

    found = simdist.run(body, world_size=1).values[0] if simulated else body()

    assert found == ["rank < size. 1 vs 1", "rank >= 0. -1 vs 0", "RuntimeError: No device(s) specified"]


def test_a_timeout_in_seconds_is_what_an_operation_waits() -> None:
    def body() -> float:
        rank = int(os.environ["RANK"])
        made = gloo_class()(stores.FileStore("meeting"), rank, 2, timeout=10.0)
        with pytest.raises(RuntimeError, match="Timed out waiting 10000ms"):
            made.recv([torch.ones(1)], 1 - rank, 0).wait()
        return simdist.process.current_process().simulation.now_ns / 1e9  # type: ignore[union-attr]

    assert simdist.run(body, world_size=2).values == [pytest.approx(10, abs=0.01)] * 2


def test_a_group_has_what_its_class_makes_devices_and_options_with() -> None:
    def body() -> list[Any]:
        dist.init_process_group("gloo")
        real = gloo_class()
        backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        options = backend._Options()
        options._devices = [backend.create_device(interface="lo"), backend.create_default_device(True)]
        options._timeout = 5.0
        with pytest.raises(TypeError, match="incompatible function arguments"):
            options._timeout = 5
        made = real(stores.PrefixStore(os.environ["RANK"], stores.HashStore()), 0, 1, options)
        made._set_default_timeout(6.0)
        return [
            isinstance(options, real._Options),
            all(isinstance(device, real.Device) for device in options._devices),
            options._timeout,
            made.options._timeout,
            isinstance(backend.Options("x"), real.Options),
            reported(lambda: backend.create_device()),
            reported(lambda: backend.create_device(3)).split(" The following")[0],
        ]

    assert (
        simdist.run(body, world_size=2).values
        == [
            [
                True,
                True,
                timedelta(seconds=5),
                timedelta(seconds=6),
                True,
                "ValueError: Specify either `hostname` or `interface` argument.",
                "TypeError: create_device(): incompatible function arguments.",
            ]
        ]
        * 2
    )
