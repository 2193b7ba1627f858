"""A torch that is newer than the known ones: one warning, and it is tried."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.inside import TRIED, warn_of_newer


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    warn_of_newer.cache_clear()
    yield
    warn_of_newer.cache_clear()


def _sum_of_ranks() -> float:
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def test_a_newer_torch_is_warned_of_once_and_then_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "3.1.0a0+git123")
    with pytest.warns(UserWarning, match=r"^torch 3\.1\.0a0 is newer than .*2\.13\.0.*simdist doctor"):
        assert simdist.run(_sum_of_ranks, world_size=2).values == [2.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simdist.run(_sum_of_ranks, world_size=2).values == [2.0, 2.0]


@pytest.mark.parametrize("version", [*TRIED, "2.13.1+cpu", "2.14.9+cu130", "2.10.0"])
def test_known_and_older_ones_are_not_warned_of(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_newer()
