"""Pools of the package `multiprocess`, which `num_proc` of Hugging Face's datasets uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import simdist
from tests.c10d.worlds import values

cloudpickle: Any = pytest.importorskip("cloudpickle")  # scikit-learn's joblib needs it


class BaseContext:
    """Stands in for the package's class, which may not be installed."""

    def Pool(self, *_: Any) -> str:
        """Stand in for a pool that forks."""
        return "its own"

    def get_start_method(self) -> str:
        """Return the method on Linux."""
        return "fork"


def use(make: Callable[..., Any]) -> Any:
    factor = 3
    with make(2) as pool:
        return (
            pool.map(lambda number: number * factor, [1, 2]),
            pool.starmap(lambda one, other: one - other, [(3, 1)]),
            list(pool.imap(lambda number: -number, range(3))),
            sorted(pool.imap_unordered(lambda number: -number, range(3))),
            pool.apply(lambda number, *, more: number + more, (1,), {"more": factor}),
            pool.apply_async(os.getpid).get() != os.getpid(),
        )


EXPECTED = [3, 6], [2], [0, -1, -2], [-2, -1, 0], 4, True


def test_its_pools_have_simulated_children_and_take_lambdas(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("multiprocess.context")
    monkeypatch.setattr(module, "BaseContext", BaseContext, raising=False)
    monkeypatch.setitem(sys.modules, "multiprocess.context", module)
    monkeypatch.setitem(sys.modules, "multiprocess", ModuleType("multiprocess"))
    reduction = ModuleType("multiprocess.reduction")
    monkeypatch.setattr(reduction, "ForkingPickler", cloudpickle, raising=False)
    monkeypatch.setitem(sys.modules, "multiprocess.reduction", reduction)
    early = BaseContext().Pool

    assert values(use, 2, args=(early,)) == [EXPECTED] * 2
    assert early() == "its own"


@pytest.mark.real
def test_the_package_itself_gives_the_same() -> None:
    package: Any = pytest.importorskip("multiprocess")

    assert simdist.run(use, args=(package.Pool,), world_size=1).values == [use(package.Pool)] == [EXPECTED]
