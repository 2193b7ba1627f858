"""Effects of a rank on its disk are announced, applied to real files, and recorded."""

from __future__ import annotations

import io
import json
import mmap
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import simdist
from simdist.errors import ArgumentError
from simdist.faults import HostCrash
from simdist.result import RunResult
from simdist.storage import Mount

Effect = tuple[str, str]


def _run(program: Callable[[Path], Any], disk: Path, **settings: Any) -> RunResult:
    result = simdist.run(program, world_size=1, args=(disk,), disk=disk, **settings)
    result.raise_for_failure()
    return result


def _effects(result: RunResult) -> list[Effect]:
    return [(str(e.data["effect"]), str(e.data["path"])) for e in result.events if e.kind == "storage"]


def test_a_file_written_by_python(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        with (folder / "a").open("w") as file:
            file.write("hello")
            file.flush()
            os.fsync(file.fileno())

    result = _run(program, tmp_path)

    assert _effects(result) == [("create", "a"), ("write", "a"), ("fsync", "a")]
    assert (tmp_path / "a").read_text() == "hello"


def test_each_call_is_the_effect_that_it_is(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        (folder / "d").mkdir()
        descriptor = os.open(folder / "d" / "x", os.O_RDWR | os.O_CREAT)
        assert os.write(descriptor, b"abc") == 3
        assert os.pwrite(descriptor, b"Z", 1) == 1
        os.ftruncate(descriptor, 2)
        os.fdatasync(descriptor)
        os.close(descriptor)
        os.link(folder / "d" / "x", folder / "y")
        (folder / "z").symlink_to("y")
        (folder / "y").rename(folder / "w")
        above = os.open(folder, os.O_RDONLY)
        os.fsync(above)
        os.close(above)
        (folder / "w").unlink()
        (folder / "d" / "x").unlink()
        (folder / "d").rmdir()
        os.sync()

    result = _run(program, tmp_path)

    assert _effects(result) == [
        ("mkdir", "d"),
        ("create", "d/x"),
        ("write", "d/x"),
        ("write", "d/x"),
        ("truncate", "d/x"),
        ("fdatasync", "d/x"),
        ("link", "d/x"),
        ("symlink", "z"),
        ("rename", "y"),
        ("fsync_dir", ""),
        ("unlink", "w"),
        ("unlink", "d/x"),
        ("rmdir", "d"),
        ("sync", ""),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["z"]


def test_modes_of_open_are_pythons(tmp_path: Path) -> None:
    def program(folder: Path) -> list[Any]:
        path = str(folder / "a")
        said: list[Any] = []
        file: Any
        with open(path, "x") as file:
            said.append((file.mode, file.name == path, file.buffer.raw.mode))
            file.write("one\n")
        with open(path, "a+b") as binary:
            binary.write(b"two\n")
            binary.seek(0)
            said.append((binary.read(), binary.tell()))
        with open(path, "r+") as file:
            file.write("ONE")
            file.truncate(7)
        with open(path, "ab", buffering=0) as raw:
            said.append(raw.write(b"!"))
        with pytest.raises(FileExistsError):
            open(path, "x").close()
        with pytest.raises(FileNotFoundError):
            open(folder / "no" / "where", "w").close()
        with pytest.raises(ValueError, match="can't have unbuffered text"):
            open(path, "a", buffering=0).close()
        return said

    result = _run(program, tmp_path)

    assert result.ranks[0].value == [("x", True, "xb"), (b"one\ntwo\n", 8), 1]
    assert (tmp_path / "a").read_bytes() == b"ONE\ntwo!"


def test_helpers_of_the_library_are_seen(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        (folder / "a").write_bytes(bytes(10))
        shutil.copyfile(folder / "a", folder / "b")
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            json.dump({"step": 1}, file)
        Path(file.name).replace(folder / "c")
        (folder / "d").mkdir()
        (folder / "d" / "x").touch()
        shutil.rmtree(folder / "d")

    effects = [effect for effect, _ in _effects(_run(program, tmp_path))]

    assert effects == [
        *("create", "write"),
        *("create", "write"),
        *("create", "write", "rename"),
        *("mkdir", "create", "unlink", "rmdir"),
    ]


def test_what_torch_saves_is_seen_and_loads(tmp_path: Path) -> None:
    def program(folder: Path) -> torch.Tensor:
        torch.save({"x": torch.arange(100_000)}, folder / "a.pt")
        loaded: torch.Tensor = torch.load(folder / "a.pt", mmap=True)["x"]
        return loaded.sum()

    result = _run(program, tmp_path)

    assert [effect for effect, _ in _effects(result)] == ["create", "write", "write", "write"]
    assert result.ranks[0].value == sum(range(100_000))


def test_what_c_code_writes_is_noticed_and_named(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        np.save(folder / "a.npy", np.arange(5000))
        torch.from_file(str(folder / "shared"), shared=True, size=10)
        os.sync()

    result = _run(program, tmp_path)

    assert ("unseen", "a.npy") in _effects(result)
    assert ("unseen", "shared") in _effects(result)


def test_elsewhere_nothing_is_seen(tmp_path: Path) -> None:
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()

    def program(_: Path) -> None:
        (other / "a").write_text("hello")
        (disk / ".." / "other" / "b").write_text("hello")

    assert _effects(_run(program, disk)) == []


def test_a_disk_is_found_by_every_way_to_it(tmp_path: Path) -> None:
    disk, way = tmp_path / "disk", tmp_path / "way"
    disk.mkdir()
    way.symlink_to(disk)

    def program(_: Path) -> None:
        (way / "a").touch()
        (disk / "." / "b").touch()
        above = os.open(disk, os.O_RDONLY)
        os.close(os.open("c", os.O_CREAT | os.O_WRONLY, dir_fd=above))

    result = simdist.run(program, world_size=1, args=(disk,), disk=way)
    result.raise_for_failure()

    assert _effects(result) == [("create", "a"), ("create", "b"), ("create", "c")]


def test_listings_are_in_order(tmp_path: Path) -> None:
    def program(folder: Path) -> list[str]:
        for name in "dbca":
            (folder / name).touch()
        with os.scandir(folder) as entries:
            assert [entry.name for entry in entries] == list("abcd")
        return os.listdir(folder)

    assert _run(program, tmp_path).ranks[0].value == list("abcd")


def test_effects_take_the_disks_time(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        with (folder / "a").open("wb") as file:
            file.write(bytes(1_000_000))
            os.fsync(file.fileno())

    result = simdist.run(
        program, world_size=1, args=(tmp_path,), disk=Mount(folder=tmp_path, latency_ns=10_000, bandwidth=1e9)
    )

    assert result.virtual_time_ns == 3 * 10_000 + 1_000_000


def test_after_the_run_files_are_ordinary_ones(tmp_path: Path) -> None:
    before = os.write, os.fsync, open, torch.serialization._open_zipfile_writer
    _run(lambda folder: (folder / "a").touch(), tmp_path)
    (tmp_path / "b").write_text("hello")

    after = os.write, os.fsync, open, torch.serialization._open_zipfile_writer
    assert after == before
    assert os.fsync.__self__ is os.write.__self__  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("disk", "message"),
    [
        (5, "disk: expected a folder, or a Mount from simdist.storage, found the number 5"),
        ("/no/where", "disk.folder: '/no/where' is not a directory"),
        (Mount(folder="/", profile="ext5"), r"disk.profile: unknown 'ext5'.*did you mean 'ext4'"),
        (Mount(folder="/", latency_ns=-1, bandwidth=0), r"disk.latency_ns: .*\n.*disk.bandwidth: "),
    ],
)
def test_what_is_wrong_with_a_disk_is_reported(disk: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){message}"):
        simdist.run(print, world_size=1, disk=disk)


def test_a_file_is_moved_to_another_disk_by_copying_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "elsewhere").write_text("bytes")

    def program(folder: Path) -> None:
        with pytest.raises(OSError, match="Invalid cross-device link"):
            (tmp_path / "elsewhere").rename(folder / "here")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "nothing").rename(folder / "here")
        shutil.move(tmp_path / "elsewhere", folder / "here")

    result = _run(program, tmp_path / "disk")

    assert _effects(result) == [("create", "here"), ("write", "here")]
    assert (tmp_path / "disk" / "here").read_text() == "bytes"
    assert not (tmp_path / "elsewhere").exists()


def _echo(connection: Any, path: Path) -> None:
    path.write_text(connection.recv())
    connection.send("written")


def test_processes_of_a_rank_talk_by_pipes_and_write_to_its_disk(tmp_path: Path) -> None:
    def program(folder: Path) -> str:
        context = multiprocessing.get_context("spawn")
        mine, its = context.Pipe()
        child = context.Process(target=_echo, args=(its, folder / "a"))
        child.start()
        mine.send("bytes")
        said: str = mine.recv()
        child.join()
        return said

    result = _run(program, tmp_path)

    assert result.values == ["written"]
    assert _effects(result) == [("create", "a"), ("write", "a")]


def test_what_is_below_open_is_seen_when_it_writes(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        with io.FileIO(str(folder / "raw"), "w") as file:
            assert file.write(b"abc") == 3
            os.fsync(file.fileno())
        with io.BufferedWriter(io.FileIO(str(folder / "raw"), "a")) as file:
            file.write(b"def")

    result = _run(program, tmp_path)

    assert _effects(result) == [("unseen", "raw"), ("write", "raw"), ("fsync", "raw"), ("write", "raw")]
    assert [event.data["offset"] for event in result.events if event.kind == "storage"] == [0, 0, 0, 3]
    assert (tmp_path / "raw").read_bytes() == b"abcdef"


def test_what_is_stored_to_a_mapping_is_durable_once_it_is_flushed(tmp_path: Path) -> None:
    (tmp_path / "mapped").write_bytes(b"old")

    def program(folder: Path) -> bytes:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            with (folder / "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 3) as mapped:
                mapped[:] = b"new"
                mapped.flush()
                simdist.point("stored")
        return (folder / "mapped").read_bytes()

    crash = HostCrash(rank=0, at_point="stored", down_ns=1_000_000_000, outcome=0)
    result = _run(program, tmp_path, faults=[crash], max_restarts=1)

    assert result.values == [b"new"]
    assert _effects(result) == [("unseen", "mapped"), ("fdatasync", "mapped")]


def test_a_write_past_the_cache_is_a_write(tmp_path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_DIRECT", 0)
    try:
        os.close(os.open(tmp_path / "probe", flags))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")

    def program(folder: Path) -> int:
        descriptor = os.open(folder / "a", flags)
        with mmap.mmap(-1, 4096) as aligned:
            aligned[:] = b"x" * 4096
            count = os.write(descriptor, aligned)
        os.close(descriptor)
        return count

    result = _run(program, tmp_path)

    assert result.values == [4096]
    assert _effects(result) == [("create", "a"), ("write", "a")]


def test_what_nobody_has_looked_at_is_noticed_in_the_end(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        torch.from_file(str(folder / "shared"), shared=True, size=4)

    assert _effects(_run(program, tmp_path)) == [("unseen", "shared")]
