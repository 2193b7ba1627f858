from __future__ import annotations

import contextlib
import importlib.metadata
import os
from pathlib import Path

import pytest

import simdist
from simdist.determinism._recording import Seen
from simdist.determinism._surroundings import looked_at, shaken


def test_files_are_noted_without_those_of_the_search_for_packages() -> None:
    """It looks at folders again that it has listed before, so a fresh process does otherwise."""
    seen: dict[int, list[Seen]] = {}

    def body() -> None:
        importlib.metadata.entry_points(group="simdist_tests")
        Path("/").stat()

    with looked_at(seen):
        simdist.run(body, world_size=1).raise_for_failure()

    assert [(note.kind, note.site[2]) for note in seen[0]] == [("file", "body")]


def test_a_folder_that_may_exist_is_found_in_the_same_way_each_time(tmp_path: Path) -> None:
    """Whether it is made or there, the program goes on in the same way: a file read later is the cause, if any."""
    runs: list[list[str]] = []

    def body() -> None:
        os.makedirs(tmp_path / "a" / "b", exist_ok=True)  # noqa: PTH103 - as users write it
        (tmp_path / "c" / "d").mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (tmp_path / "e").mkdir()

    for _ in range(2):
        seen: dict[int, list[Seen]] = {}
        with looked_at(seen):
            simdist.run(body, world_size=1).raise_for_failure()
        runs.append([note.value for note in seen[0]])

    assert runs == [["there"], ["FileExistsError"]]


def test_only_folders_of_the_program_are_listed_in_reverse(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    folders = [tmp_path, Path(pytest.__file__).parent]
    before = [list(folder.iterdir()) for folder in folders]

    with shaken():
        shaken_ones = [list(folder.iterdir()) for folder in folders]

    assert shaken_ones == [before[0][::-1], before[1]]
