"""Modules that ranks write, change, remove, and look for in folders of their own."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import simdist


@pytest.fixture(autouse=True)
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def put(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "generated_one.py").write_text(text)
    importlib.invalidate_caches()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def imported() -> Any:
    return importlib.import_module("generated_one")


def test_a_module_that_changed_is_loaded_again(tmp_path: Path) -> None:
    def body() -> list[int]:
        folder = tmp_path / os.environ["RANK"]
        put(folder, "X = 1")
        module = imported()
        found = [module.X]
        put(folder, "X = 2")
        found.append(importlib.reload(module).X)
        put(folder, "X = 3")
        del sys.modules["generated_one"]
        return [*found, imported().X]

    assert simdist.run(body, world_size=2, isolate=True).values == [[1, 2, 3]] * 2


def test_ranks_find_modules_of_one_name_in_folders_of_their_own(tmp_path: Path) -> None:
    def body() -> tuple[str, str]:
        folder = tmp_path / os.environ["RANK"]
        put(folder, f"X = {os.environ['RANK']!r}")
        module = imported()
        return module.X, Path(module.__file__).parent.name

    assert simdist.run(body, world_size=2, isolate=True).values == [("0", "0"), ("1", "1")]


def test_a_rank_loads_what_another_has_written_since(tmp_path: Path) -> None:
    def body() -> int:
        if os.environ["RANK"] == "0":
            put(tmp_path, "X = 1")
            imported()
        put(tmp_path, "X = 2")
        found: int = imported().X
        return found

    assert simdist.run(body, world_size=2, isolate=True).values == [1, 2]


def test_a_module_that_was_removed_is_not_found(tmp_path: Path) -> None:
    def body() -> str:
        put(tmp_path, "")
        imported()
        del sys.modules["generated_one"]
        (tmp_path / "generated_one.py").unlink()
        importlib.invalidate_caches()
        with pytest.raises(ModuleNotFoundError) as caught:
            imported()
        return str(caught.value)

    assert simdist.run(body, world_size=1, isolate=True).values == ["No module named 'generated_one'"]


def test_a_folder_is_run_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("X = __name__")

    def body() -> list[str]:
        return [runpy.run_path(str(tmp_path), run_name=name)["X"] for name in ("__main__", "other")]

    assert simdist.run(body, world_size=1, isolate=True).values == [["__main__", "other"]]


def test_the_loader_of_a_module_has_its_usual_type(tmp_path: Path) -> None:
    def body() -> list[object]:
        put(tmp_path, "X = 1")
        spec = importlib.util.find_spec("generated_one")
        assert spec is not None
        return [type(spec.loader), type(imported().__loader__)]

    assert simdist.run(body, world_size=1, isolate=True).values == [[importlib.machinery.SourceFileLoader] * 2]
