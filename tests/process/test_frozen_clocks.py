"""Libraries that replace Python's clock, on ranks; here stand-ins that have what matters of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import simdist
from simdist.errors import UnsupportedError

SOURCE = {"_time_machine": "def patch(): return 'patched'\n", "time_machine": "import _time_machine\n"}
FREEZEGUN = "class _freeze_time:\n    def start(self): return 'frozen'\n"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SOURCE.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "freezegun").mkdir()
    (tmp_path / "freezegun" / "__init__.py").write_text("")
    (tmp_path / "freezegun" / "api.py").write_text(FREEZEGUN)
    monkeypatch.syspath_prepend(tmp_path)


def travel() -> str:
    import time_machine  # type: ignore[import-not-found]

    patched: str = time_machine._time_machine.patch()
    return patched


def test_a_rank_is_refused_and_the_host_is_not() -> None:
    before = importlib.import_module("time_machine")
    result = simdist.run(travel, world_size=2)

    for rank in result.ranks:
        assert isinstance(rank.exception, UnsupportedError)
        assert str(rank.exception).startswith(f"rank {rank.rank}: time_machine changes functions in C")
    assert travel() == "patched"
    assert sys.modules["time_machine"] is before


def test_what_a_rank_has_imported_first_the_host_imports_anew() -> None:
    result = simdist.run(travel, world_size=2)

    assert [type(rank.exception) for rank in result.ranks] == [UnsupportedError] * 2
    assert sys.modules.keys().isdisjoint(SOURCE)
    assert travel() == "patched"
    for name in SOURCE:
        del sys.modules[name]


def freeze() -> str:
    from freezegun.api import _freeze_time  # type: ignore[import-not-found]

    dist.init_process_group("gloo")
    frozen: str = _freeze_time().start()
    return frozen


def test_a_rank_may_freeze_time_if_it_is_alone() -> None:
    assert simdist.run(freeze, world_size=1).values == ["frozen"]
    result = simdist.run(freeze, world_size=2)

    first = result.first_failure()
    assert first is not None
    assert isinstance(first.exception, UnsupportedError)
    assert str(first.exception).startswith(f"rank {first.rank}: freezegun replaces the clock in all modules")
    for name in ("freezegun", "freezegun.api"):
        del sys.modules[name]
