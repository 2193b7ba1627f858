"""Built-in functions that are replaced for ranks stay built-in functions."""

from __future__ import annotations

import copy
import io
import os
import pickle
import types
from pathlib import Path
from typing import Any

import simdist


def test_as_attributes_of_a_class_they_make_no_methods(tmp_path: Path) -> None:
    def body() -> tuple[str, int]:
        class Files:
            open: Any = open
            open_too: Any = io.open
            size: Any = os.stat
            remove: Any = os.remove

        files, path = Files(), tmp_path / "file"
        with files.open(path, "w") as file:
            file.write("text")
        with files.open_too(path) as file:
            found = file.read()
        size = files.size(path).st_size
        files.remove(path)
        return found, size

    assert simdist.run(body, world_size=1).values == [("text", 4)]


def test_they_are_copied_and_pickled_by_name() -> None:
    def body() -> list[bool]:
        functions: list[Any] = [os.stat, os.remove, os.open, open]
        return [
            isinstance(each, types.BuiltinFunctionType)
            and copy.deepcopy(each) is each
            and pickle.loads(pickle.dumps(each)) is each
            for each in functions
        ]

    assert simdist.run(body, world_size=1).values == [[True] * 4]
