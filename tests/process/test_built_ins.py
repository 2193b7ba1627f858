"""Built-in functions that are replaced for ranks stay built-in functions."""

from __future__ import annotations

import builtins
import configparser
import copy
import io
import os
import pickle
import types
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

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


def test_shared_modules_see_what_a_rank_puts_in_their_place() -> None:
    def body() -> tuple[str, list[str], bool]:
        dist.init_process_group("gloo")
        rank, config = dist.get_rank(), configparser.ConfigParser()
        with mock.patch("builtins.open", mock.mock_open(read_data=f"[all]\nrank={rank}")):
            dist.barrier()
            config.read("nothing")
            dist.barrier()
        if rank == 0:
            builtins.of_rank_0 = True  # type: ignore[attr-defined]
        dist.barrier()
        return config["all"]["rank"], configparser.ConfigParser().read("nothing"), hasattr(builtins, "of_rank_0")

    before = dict(vars(builtins))

    result = simdist.run(body, world_size=2, isolate=True)

    assert result.values == [("0", [], True), ("1", [], False)]
    assert result.shared_state == ()
    assert dict(vars(builtins)) == before
