"""Finders in `sys.meta_path` that libraries add when they are imported, once for all ranks."""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType
from typing import Any

import networkx
import pytest

import simdist

library: Any = networkx


class Finder:
    """Stands in for a library's finder, such as that of the package `importlib_metadata`."""

    @staticmethod
    def find_spec(*_: Any) -> None:
        """Find nothing."""


Finder.__module__ = "networkx"


def imports_a_library() -> tuple[bool, bool]:
    """Import a library on rank 0, which adds its finder for all ranks, and add a finder of rank 0's own."""
    if os.environ["RANK"] == "0":
        sys.modules["networkx.late"] = ModuleType("networkx.late")
        sys.meta_path.append(library.Finder)
        sys.meta_path.append(Own())
    time.sleep(1)
    return library.Finder in sys.meta_path, any(type(each).__name__ == "Own" for each in sys.meta_path)


class Own:
    """A finder of the program."""

    @staticmethod
    def find_spec(*_: Any) -> None:
        """Find nothing."""


@pytest.mark.parametrize("isolate", [True, False])
def test_a_finder_of_a_library_is_there_for_all_and_stays(isolate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "Finder", Finder, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "networkx.late", raising=False)
    before = list(sys.meta_path)

    result = simdist.run(imports_a_library, world_size=2, isolate=isolate)

    result.raise_for_failure()
    assert result.values == [(True, True), (True, not isolate)]
    assert sys.meta_path == [*before, Finder]
    assert any("sys.meta_path" in line for line in result.shared_state) is not isolate
    sys.modules.pop("networkx.late", None)
