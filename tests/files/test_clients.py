"""Each host has its own view of a file server's disk, like NFS's clients."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import make
from simdist.faults import HostCrash
from simdist.storage import Mount

SECOND = 1_000_000_000


def run(program: Callable[..., Any], disk: Path, *, hosts: int = 2, ranks: int = 2, **settings: Any) -> list[Any]:
    late = settings.pop("names_late_ns", 0)
    profile = settings.pop("profile", "nfs")

    def body(folder: Path) -> Any:
        dist.init_process_group("gloo")
        return program(dist.get_rank(), folder)

    result = simdist.run(
        body,
        world_size=ranks,
        args=(disk,),
        disk=Mount(folder=disk, profile=profile, names_late_ns=late),
        cluster=make(ranks, hosts=hosts),
        **settings,
    )
    result.raise_for_failure()
    return [rank.value for rank in result.ranks]


def half_written(rank: int, folder: Path) -> list[bytes]:
    """Write, flush, sync and close on rank 0; returns what this rank reads after each."""
    path, seen = folder / "a", []
    file = path.open("wb") if rank == 0 else None
    for step in range(4):
        if file is not None:
            if step < 2:
                file.write(b"new" * (step + 1))
                file.flush()
            elif step == 2:
                os.fsync(file.fileno())
            else:
                file.write(b"!")
                file.close()
        dist.barrier()
        seen.append(path.read_bytes())
        dist.barrier()
    return seen


def half_written_sizes(rank: int, folder: Path) -> list[tuple[int, bool]]:
    """Write and close on rank 0; returns the size that this rank sees, and True if the rest of the stat is valid."""
    path, seen = folder / "a", []
    file = path.open("wb", buffering=0) if rank == 0 else None
    for step in range(2):
        if file is not None:
            file.write(b"new") if step == 0 else file.close()
        dist.barrier()
        there = path.stat()
        seen.append((there.st_size, there.st_ino > 0 and there.st_mtime_ns > 0 and there.st_mtime > 1))
        assert os.path.getsize(path) == there.st_size
        dist.barrier()
    return seen


def test_another_host_sees_the_size_that_the_server_knows(tmp_path: Path) -> None:
    writer, reader = run(half_written_sizes, tmp_path)

    assert writer == [(3, True), (3, True)]
    assert reader == [(0, True), (3, True)]


def test_a_sync_on_another_host_does_not_send_what_a_client_has(tmp_path: Path) -> None:
    def program(rank: int, folder: Path) -> list[bytes]:
        path, seen = folder / "a", []
        file = path.open("wb", buffering=0) if rank == 0 else None
        dist.barrier()
        number = os.open(path, os.O_RDONLY)
        dist.barrier()
        if file is not None:
            file.write(b"new")
        for syncs in (1, 0):
            dist.barrier()
            if rank == syncs:
                os.fsync(number)
                os.sync()
            dist.barrier()
            seen.append(path.read_bytes())
        os.close(number)
        if file is not None:
            file.close()
        return seen

    writer, reader = run(program, tmp_path)

    assert writer == [b"new", b"new"]
    assert reader == [b"", b"new"]


def test_another_host_sees_bytes_once_they_are_synced_or_the_file_closed(tmp_path: Path) -> None:
    writer, reader = run(half_written, tmp_path)

    assert writer == [b"new", b"newnewnew", b"newnewnew", b"newnewnew!"]
    assert reader == [b"", b"", b"newnewnew", b"newnewnew!"]


@pytest.mark.parametrize("settings", [{"hosts": 1}, {"profile": "ext4"}])
def test_on_the_same_host_and_on_other_disks_bytes_are_seen_at_once(tmp_path: Path, settings: Any) -> None:
    writer, reader = run(half_written, tmp_path, **settings)

    assert reader == writer


def test_a_file_that_is_written_anew_has_its_old_bytes_for_other_hosts(tmp_path: Path) -> None:
    torch.save(torch.ones(1), tmp_path / "a")

    def program(rank: int, folder: Path) -> Any:
        file = (folder / "a").open("r+b") if rank == 0 else None
        if file is not None:
            file.truncate(0)
        dist.barrier()
        value = torch.load(folder / "a").item() if rank else (folder / "a").stat().st_size
        number = os.open(folder / "a", os.O_RDONLY)
        size = len(os.read(number, 10_000))
        os.close(number)
        dist.barrier()
        if file is not None:
            file.close()
        return value, size > 0

    assert run(program, tmp_path) == [(0, False), (1.0, True)]


def late(rank: int, folder: Path) -> list[Any]:
    """Make a file on rank 0; returns how this host sees it, at once and later."""

    def look() -> tuple[bool, list[str], str]:
        try:
            text = (folder / "latest").read_text()
        except OSError as error:
            text = errno.errorcode[error.errno or 0]
        return (folder / "latest").exists(), os.listdir(folder), text

    seen: list[Any] = [look()]
    dist.barrier()
    if rank == 0:
        (folder / "tmp").write_text("5")
        (folder / "tmp").rename(folder / "latest")
    dist.barrier()
    for seconds in (0, 29, 2):
        time.sleep(seconds)
        seen.append(look())
    return seen


def test_a_host_that_has_looked_in_vain_sees_a_new_name_late(tmp_path: Path) -> None:
    none: Any = (False, [], "ENOENT")
    there = True, ["latest"], "5"

    maker, other = run(late, tmp_path, names_late_ns=30 * SECOND)

    assert maker == [none, there, there, there]
    assert other == [none, none, none, there]


def test_names_are_seen_at_once_if_nothing_else_is_said(tmp_path: Path) -> None:
    maker, other = run(late, tmp_path)

    assert other == maker


def test_a_host_that_has_not_looked_sees_a_new_name_at_once(tmp_path: Path) -> None:
    def program(rank: int, folder: Path) -> bool:
        if rank == 0:
            (folder / "latest").write_text("5")
        dist.barrier()
        return (folder / "latest").exists()

    assert run(program, tmp_path, names_late_ns=30 * SECOND) == [True, True]


def open_and_gone(rank: int, folder: Path) -> Any:
    """Read a file on rank 1 that rank 0 removes; returns what is in the folder then, and after the close."""
    path = folder / "step1" / "a"
    if rank == 0:
        path.parent.mkdir()
        path.write_text("text")
    dist.barrier()
    file = path.open() if rank else None
    dist.barrier()
    seen: list[Any] = []
    if rank == 0:
        try:
            shutil.rmtree(path.parent)
        except OSError as error:
            seen.append(errno.errorcode[error.errno or 0])
        seen.append(sorted(os.listdir(path.parent)) if path.parent.exists() else None)
    dist.barrier()
    if file is not None:
        seen.append(file.read())
        file.close()
    dist.barrier()
    return [*seen, os.listdir(path.parent) if path.parent.exists() else None]


def test_a_file_that_is_open_keeps_another_name_until_it_is_closed(tmp_path: Path) -> None:
    remover, reader = run(open_and_gone, tmp_path, hosts=1)

    assert remover == ["ENOTEMPTY", [".nfs000000000000000200000001"], []]
    assert reader == ["text", []]


def test_a_file_that_only_another_host_has_open_is_gone_at_once(tmp_path: Path) -> None:
    remover, _ = run(open_and_gone, tmp_path, hosts=2)

    assert remover == [None, None]


def test_a_file_that_is_replaced_while_it_is_open_keeps_another_name(tmp_path: Path) -> None:
    def program(rank: int, folder: Path) -> Any:
        (folder / "a").write_text("old")
        (folder / "b").write_text("new")
        with (folder / "a").open() as file:
            (folder / "b").rename(folder / "a")
            return file.read(), (folder / "a").read_text(), len(os.listdir(folder))

    assert run(program, tmp_path, hosts=1, ranks=1) == [("old", "new", 2)]
    assert os.listdir(tmp_path) == ["a"]


def test_when_the_host_dies_the_file_stays(tmp_path: Path) -> None:
    def program(rank: int, folder: Path) -> Any:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            return os.listdir(folder)
        if rank == 1:
            file = (folder / "a").open("w")
            (folder / "a").unlink()
            simdist.step(1)
            file.close()
        dist.barrier()
        return None

    crash = HostCrash(rank=1, at_step=1, down_ns=SECOND)

    assert run(program, tmp_path, faults=[crash], max_restarts=1) == [[".nfs000000000000000100000001"]] * 2
