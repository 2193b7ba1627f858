"""Files of a FileStore that can't be opened, and those whose folder is made later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.c10d.stores import alone
from tests.c10d.worlds import now_ns, sleep_s, values

dist: Any = torch.distributed  # it exports its stores to no type checker


def folder(place: Path) -> Path:
    return place


def below_a_file(place: Path) -> Path:
    (place / "file").touch()
    return place / "file" / "store"


@pytest.mark.parametrize("made", [folder, below_a_file])
def test_a_file_that_cannot_be_opened_is_refused_as_by_torch(made: Callable[[Path], Path], tmp_path: Path) -> None:
    path = made(tmp_path)

    def body() -> str:
        with pytest.raises(dist.DistStoreError) as caught:
            dist.FileStore(str(path), 1)
        return str(caught.value)

    assert alone(body) == body()
    assert len(list(tmp_path.iterdir())) == (made is below_a_file)


def test_a_folder_that_nobody_makes_is_waited_for_five_minutes(tmp_path: Path) -> None:
    def body() -> int:
        with pytest.raises(dist.DistStoreError, match=r"^No such file or directory$"):
            dist.FileStore(str(tmp_path / "missing" / "store"), 1)
        return now_ns()

    assert alone(body) == 300_000_000_000


def test_a_store_finds_the_folder_that_another_rank_makes_later(tmp_path: Path) -> None:
    def body() -> tuple[bytes, int]:
        rank = int(os.environ["RANK"])
        if rank == 0:
            sleep_s(1.05)
            (tmp_path / "later").mkdir()
        store = dist.FileStore(str(tmp_path / "later" / "store"), 2)
        if rank == 0:
            store.set("key", "value")
        return store.get("key"), now_ns() // 100_000_000

    assert values(body, 2) == [(b"value", 10), (b"value", 11)]


def removed(path: Path) -> None:
    path.unlink()


def made_again(path: Path) -> None:
    other = path.with_suffix(".new")  # made while the old file exists, so that it has another inode
    other.touch()
    path.unlink()
    other.rename(path)


@pytest.mark.parametrize("there_before", [False, True])
@pytest.mark.parametrize("happens", [removed, made_again])
def test_a_file_that_the_program_removes_takes_its_keys_along(
    happens: Callable[[Path], None], there_before: bool, tmp_path: Path
) -> None:
    path = tmp_path / "store"

    def body() -> tuple[int, int, bool]:
        if there_before:
            path.touch()
        first = dist.FileStore(str(path), 2)
        before = first.add("counted", 1)
        happens(path)
        second = dist.FileStore(str(path), 2)
        return before, second.add("counted", 1), path.exists()

    assert alone(body) == (1, 1, True)
    path.unlink(missing_ok=True)
    assert body() == (1, 1, True)
