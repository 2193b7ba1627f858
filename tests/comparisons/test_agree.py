"""`simdist.agree`: the same training in other layouts, and where it first differs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import simdist
from simdist import Layout
from simdist.errors import ArgumentError, RunFailedError


def train(layout: Layout, *, factor: float = 1.0, late: float = 1.0, name: str = "parameters") -> dict[str, Any]:
    """Return two losses and a gradient; with several ranks `late` multiplies the second loss, `factor` the gradient."""
    several = layout.world_size > 1
    gradient = torch.tensor([1.0, -2.0, 4.0]) * (factor if several else 1.0)
    return {"loss": [1.0, 0.5 * (late if several else 1.0)], "gradient": [gradient], name: {"weight": gradient}}


def test_layouts_that_agree() -> None:
    report = simdist.agree(train, layouts=[2, {"tp": 2, "dp": 2}])

    assert report.ok
    assert str(report) == "dp=2: 4 values as on one rank\ntp=2, dp=2: 4 values as on one rank"
    report.raise_for_failure()


def test_the_first_step_and_name_that_differ_are_named_with_the_factor() -> None:
    (found,) = simdist.agree(partial(train, factor=2.0), layouts=[2]).differences

    assert (found.step, found.name, found.ratio) == (0, "gradient", 2.0)
    assert str(found) == (
        "dp=2, step 0: gradient of rank 0 differs by 1 of its largest element, and may by 0.00012: it is 2 times that "
        "of one rank"
    )


def test_steps_come_in_their_order() -> None:
    (found,) = simdist.agree(partial(train, late=1.5), layouts=[2]).differences

    assert (found.step, found.name) == (1, "loss")


def test_what_sums_in_another_order_make_is_allowed() -> None:
    assert simdist.agree(partial(train, factor=1.0 + 1e-6), layouts=[2]).ok
    assert not simdist.agree(partial(train, factor=1.0 + 1e-6), layouts=[2], tolerance=1e-8).ok


@pytest.mark.parametrize(
    ("dtype", "noise", "ok"),
    [(torch.bfloat16, 0.02, True), (torch.float32, 0.02, False), (torch.float64, 1e-10, False)],
)
def test_tolerances_follow_from_the_type(dtype: torch.dtype, noise: float, ok: bool) -> None:
    def body(layout: Layout) -> dict[str, Any]:
        return {"value": torch.ones(4, dtype=dtype) * (1.0 + noise * (layout.world_size > 1))}

    assert simdist.agree(body, layouts=[2]).ok is ok


@pytest.mark.parametrize("transposed", [False, True])
def test_parts_are_put_together_in_the_order_of_ranks(transposed: bool) -> None:
    def body(layout: Layout) -> dict[str, Any]:
        whole = torch.arange(12.0).reshape(4, 3)
        size = layout["tp"]
        rank = 0 if layout.world_size == 1 else int(dist_rank())
        at = rank // layout["dp"] if transposed else rank % size
        return {"weight": whole.chunk(size)[at]}

    assert simdist.agree(body, layouts=[{"dp": 2, "tp": 2}, {"tp": 4}]).ok


def dist_rank() -> str:
    import os

    return os.environ["RANK"]


def test_parts_that_lie_otherwise_differ() -> None:
    def body(layout: Layout) -> dict[str, Any]:
        size = layout["tp"]
        return {"weight": torch.arange(4.0).chunk(size)[size - 1 - int(dist_rank())]}

    assert not simdist.agree(body, layouts=[{"tp": 2}]).ok


def test_dtensors_are_put_together_by_their_placements() -> None:
    def body(layout: Layout) -> dict[str, Any]:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (layout.world_size,))
        found = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(1)])
        dist.destroy_process_group()
        return {"weight": found}

    assert simdist.agree(body, layouts=[2, 4]).ok


def test_a_value_that_only_some_ranks_have_is_compared_there() -> None:
    def body(layout: Layout) -> dict[str, Any]:
        last = int(dist_rank()) == layout.world_size - 1
        return {"loss": 1.0} if last else {}

    assert simdist.agree(body, layouts=[{"pp": 2}]).ok


def test_a_value_that_no_rank_has_or_one_too_many_is_a_difference() -> None:
    def body(layout: Layout) -> dict[str, Any]:
        return {"loss" if layout.world_size == 1 else "lost": 1.0}

    (found,) = simdist.agree(body, layouts=[2]).differences

    assert found.problem == "no rank returned loss"


def test_a_layout_that_fails_is_a_difference() -> None:
    def body(layout: Layout) -> dict[str, Any]:
        if layout.world_size > 1:
            raise ValueError("no such layout")
        return {"loss": 1.0}

    report = simdist.agree(body, layouts=[2])

    with pytest.raises(RunFailedError, match="1 of 1 layouts differ from one rank"):
        report.raise_for_failure()
    assert str(report) == "dp=2: the run failed: 2 of 2 ranks failed, rank 0 first: raised ValueError: no such layout"


def test_bad_arguments_are_reported_at_once() -> None:
    wrong: Any = [0, {"tp": "2"}]

    with pytest.raises(ArgumentError) as caught:
        simdist.agree(train, layouts=wrong, world_size=3)  # type: ignore[call-arg]

    assert str(caught.value).count("layouts[") == 2
    assert "world_size: follows from the layout" in str(caught.value)


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="returned nothing to compare"):
        simdist.agree(lambda layout: None, layouts=[2])
