"""A report names a module that ranks share and that keeps something of one rank."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import simdist
from simdist.result import report_of

STATE = """
import functools
import torch.distributed as dist

GROUPS = {}

@functools.cache
def rank():
    return dist.get_rank()

def begin():
    GROUPS["data"] = dist.new_group([dist.get_rank()])

def nothing():
    pass
"""
PLAIN = """
import torch.distributed as dist

def rank():
    return dist.get_rank()
"""
USES = """
import torch.distributed as dist
from keeps_ranks import rank
import keeps_ranks
import plain_ranks

def by_name():
    dist.init_process_group("gloo")
    assert rank() == dist.get_rank()

def by_module():
    dist.init_process_group("gloo")
    keeps_ranks.nothing()
    raise ValueError

def not_at_all():
    dist.init_process_group("gloo")
    assert plain_ranks.rank() == 0
"""


@pytest.fixture
def uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, text in (("keeps_ranks", STATE), ("plain_ranks", PLAIN), ("uses_ranks", USES)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("uses_ranks")
    for name in ("keeps_ranks", "plain_ranks", "uses_ranks"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("function", "isolate", "named"),
    [
        ("by_name", False, True),
        ("by_module", False, True),
        ("by_module", True, False),
        ("not_at_all", False, False),
    ],
)
def test_the_report_of_a_failure_names_it(uses: ModuleType, function: str, isolate: bool, named: bool) -> None:
    result = simdist.run(getattr(uses, function), world_size=2, isolate=isolate)

    assert not result.ok
    shared = [line for line in report_of(result).lines() if line.startswith("ranks share ")]
    line = (
        "ranks share the cache of rank(), GROUPS['data'] of keeps_ranks; isolate=True gives each rank its own modules"
    )
    assert shared == ([line] if named else [])


def test_ranks_with_modules_of_their_own_do_not_need_it(uses: ModuleType) -> None:
    assert simdist.run(uses.by_name, world_size=2, isolate=True).ok
