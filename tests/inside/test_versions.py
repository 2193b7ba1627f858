"""A torch or a Python that is newer than the known ones: simdist warns once, and runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.inside import PYTHONS, TRIED, warn_of_newer


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


def test_a_newer_python_is_warned_of_and_known_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (4, 0, 1, "final", 0))
    monkeypatch.setattr(sys, "version", "4.0.1 (main)")
    with pytest.warns(UserWarning, match=r"^Python 4\.0\.1 is newer than .*3\.11 to 3\.\d\d\).*simdist doctor"):
        warn_of_newer()
    for known in PYTHONS:
        warn_of_newer.cache_clear()
        monkeypatch.setattr(sys, "version_info", (*map(int, known.split(".")), 1, "final", 0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_newer()
