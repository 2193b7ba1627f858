"""Files that ranks write have virtual times, for all ranks; files of the host keep their own."""

from __future__ import annotations

# ruff: noqa: PTH105, PTH116, PTH204, PTH205  # what programs call
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import simdist

BEGIN_S = 1_767_225_600  # the first second of 2026, since 1970


def at(path: Path | str) -> tuple[float, float]:
    """Return when a file was written, and when it was last changed, since the world began."""
    found = os.stat(path)
    return found.st_mtime - BEGIN_S, found.st_ctime - BEGIN_S


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def by_descriptor(path: Path) -> None:
    number = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(number, b"data")
    os.close(number)


def renamed(path: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write("data")
    os.replace(file.name, path)


def to_a_file(path: Path, write: Callable[[Any], Any]) -> None:
    with path.open("wb") as file:
        write(file)


def by_mapping(path: Path) -> None:
    path.write_bytes(bytes(4096))
    time.sleep(1)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:4] = b"data"
        mapped.flush()


WRITES: dict[str, Callable[[Path], Any]] = {
    "write_text": lambda path: path.write_text("data"),
    "append": append,
    "by descriptor": by_descriptor,
    "touch": lambda path: path.touch(),
    "replace": renamed,
    "copyfile": lambda path: shutil.copyfile(__file__, path),
    "mkdir": lambda path: path.mkdir(),
    "symlink": lambda path: path.symlink_to(path.parent),
    "torch.save": lambda path: torch.save(torch.ones(3), path),
    "torch.save to a file": lambda path: to_a_file(path, lambda file: torch.save(torch.ones(3), file)),
    "numpy.save": lambda path: to_a_file(path, lambda file: np.save(file, np.ones(3))),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_a_rank_writes_has_the_time_of_its_calendar(name: str, tmp_path: Path) -> None:
    def body() -> tuple[tuple[float, float], tuple[float, float]]:
        path = tmp_path / "written"
        time.sleep(1.5)
        WRITES[name](path)
        time.sleep(1)
        found = path.lstat()
        return (found.st_mtime - BEGIN_S, found.st_ctime - BEGIN_S), at(tmp_path)

    assert simdist.run(body, world_size=1).values == [((1.5, 1.5), (1.5, 1.5))]


def test_all_ways_to_ask_have_one_answer(tmp_path: Path) -> None:
    def body() -> list[Any]:
        time.sleep(2.5)
        path = tmp_path / "file"
        path.write_text("data")
        time.sleep(1)
        with path.open() as file:
            found = [os.stat(path), os.lstat(path), os.fstat(file.fileno()), path.stat()]
        with os.scandir(tmp_path) as entries:
            found += [entry.stat() for entry in entries]
        assert len({tuple(each) for each in found}) == 1
        ns = {(each.st_mtime_ns, each.st_ctime_ns, each.st_atime_ns) for each in found}
        return [ns, [os.path.getmtime(path), os.path.getctime(path)], found[0].st_size, found[0][8]]

    moment_ns = (BEGIN_S * 10 + 25) * 10**8
    assert simdist.run(body, world_size=1).values == [
        [{(moment_ns,) * 3}, [BEGIN_S + 2.5] * 2, 4, BEGIN_S + 2],
    ]


def test_other_ranks_find_the_newest_checkpoint(tmp_path: Path) -> None:
    def body() -> tuple[str, list[float]] | None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank:
            time.sleep(4 - rank)  # rank 3 comes first
            torch.save(torch.ones(1), tmp_path / f"of_{rank}.pt")
        time.sleep(1)
        dist.barrier()
        files = sorted(tmp_path.iterdir())
        newest = max(files, key=os.path.getctime)
        return newest.name, [round(time.time() - path.stat().st_mtime, 3) for path in files]

    values = simdist.run(body, world_size=4).values

    assert values == [("of_1.pt", [1.0, 2.0, 3.0])] * 4


def test_a_lock_becomes_stale_in_virtual_time(tmp_path: Path) -> None:
    def body() -> float:
        lock = tmp_path / "lock"
        if os.environ["RANK"] == "0":
            lock.touch()
            return 0
        time.sleep(0.5)
        while time.time() - lock.stat().st_mtime < 600:
            time.sleep(10)
        return time.monotonic()

    assert simdist.run(body, world_size=2).values == [0, 600.5]


def test_times_that_a_program_sets_stay_as_they_are(tmp_path: Path) -> None:
    def body() -> list[Any]:
        path = tmp_path / "file"
        path.write_text("data")
        time.sleep(1)
        os.utime(path, (7, 8))
        found = [path.stat().st_atime, path.stat().st_mtime, path.stat().st_ctime - BEGIN_S]
        shutil.copy2(path, tmp_path / "copy")
        found.append(os.stat(tmp_path / "copy").st_mtime)
        time.sleep(1)
        os.utime(path)
        return [*found, at(path)]

    assert simdist.run(body, world_size=1).values == [[7.0, 8.0, 1.0, 8.0, (2.0, 2.0)]]


def test_stores_to_a_mapping_have_the_time_of_its_flush(tmp_path: Path) -> None:
    def body() -> list[tuple[float, float]]:
        path = tmp_path / "file"
        by_mapping(path)
        time.sleep(1)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.flush()
        return [at(path)]

    assert simdist.run(body, world_size=1).values == [[(1.0, 1.0)]]


def test_rights_change_a_file_and_do_not_write_it(tmp_path: Path) -> None:
    def body() -> list[tuple[float, float]]:
        path, found = tmp_path / "file", []
        path.write_text("data")
        changes: list[Callable[[], Any]] = [
            lambda: path.chmod(0o600),
            lambda: os.chown(path, -1, -1),
            lambda: shutil.copymode(__file__, path),
        ]
        for change in changes:
            time.sleep(1)
            change()
            found.append(at(path))
        return found

    assert simdist.run(body, world_size=1).values == [[(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]]


def test_files_of_the_host_keep_real_times_and_all_do_for_the_host(tmp_path: Path) -> None:
    file, written = tmp_path / "file", tmp_path / "written"
    file.write_text("data")
    os.utime(file, (5, 6))
    real = os.stat(__file__)

    def body() -> list[Any]:
        written.write_text("data")
        found = [file.stat().st_mtime, os.stat(__file__).st_mtime_ns]
        file.rename(tmp_path / "other")
        return [*found, os.stat(tmp_path / "other").st_mtime, at(tmp_path / "other")[1]]

    assert simdist.run(body, world_size=1).values == [[6.0, real.st_mtime_ns, 6.0, 0.0]]
    assert (tmp_path / "other").stat().st_ctime >= real.st_ctime
    assert written.stat().st_mtime > real.st_mtime


def test_what_c_code_writes_has_the_time_of_the_first_look(tmp_path: Path) -> None:
    source = 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute("create table t (a)")'

    def body() -> list[float]:
        time.sleep(1)
        path = tmp_path / "file"
        os.system(f"sleep 0.02; {sys.executable} -c '{source}' {path}")
        found = [path.stat().st_mtime - BEGIN_S]
        time.sleep(1)
        found.append(path.stat().st_mtime - BEGIN_S)
        os.system(f"echo more >> {path}")
        time.sleep(1)
        return [*found, path.stat().st_mtime - BEGIN_S]

    assert simdist.run(body, world_size=1).values == [[1.0, 1.0, 3.0]]


def test_a_file_is_never_newer_than_the_clock_that_is_read_next(tmp_path: Path) -> None:
    def body() -> list[bool]:
        found = []
        for number in range(50):
            time.sleep(number / 7)
            before = time.time()
            (tmp_path / "file").write_text("data")
            modified = (tmp_path / "file").stat().st_mtime
            found.append(before <= modified <= time.time())
        return found

    for isolate in (False, True):
        assert simdist.run(body, world_size=1, isolate=isolate).values == [[True] * 50]


SETS = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")


def test_what_functions_of_os_support_is_known_on_ranks(tmp_path: Path) -> None:
    names = {each: sorted(function.__name__ for function in getattr(os, each)) for each in SETS}

    def body() -> tuple[list[str], bool, bool]:
        missing = [name for each in SETS for name in names[each] if getattr(os, name) not in getattr(os, each)]
        others = os.getpid in os.supports_fd or {os.stat, os.getpid} <= os.supports_fd
        return missing, others, {os.stat, os.utime} <= os.supports_fd

    before = [getattr(os, each) for each in SETS]
    assert simdist.run(body, world_size=1).values == [([], False, True)]
    assert [getattr(os, each) for each in SETS] == before


def test_trees_are_copied_with_their_links(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("nowhere")

    def body() -> str:
        shutil.copytree(tmp_path / "tree", tmp_path / "copy", symlinks=True)
        return str((tmp_path / "copy" / "link").readlink())

    assert simdist.run(body, world_size=1).values == ["nowhere"]
