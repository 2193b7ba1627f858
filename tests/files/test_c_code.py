"""Libraries whose own C code writes and syncs: correct programs pass, wrong ones are reported."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import simdist
from simdist.faults import HostCrash
from simdist.files import reaches_c_code
from simdist.inside.system import _slots
from simdist.sweeps import SweepReport

needs_reach = pytest.mark.skipif(not reaches_c_code(), reason="calls of C code can't be seen on this machine")

STEPS = 3


def _sqlite(synchronous: str) -> Callable[[str], Any]:
    def train(folder: str) -> Any:
        with closing(sqlite3.connect(Path(folder, "steps.db"))) as base:
            base.execute(f"pragma synchronous = {synchronous}")
            base.execute("create table if not exists steps (number)")
            base.commit()
            done = base.execute("select count(*) from steps").fetchone()[0]
            for step in range(done, STEPS):
                simdist.step(step)
                base.execute("insert into steps values (?)", (step,))
                base.commit()
            return base.execute("select number from steps").fetchall()

    return train


def _in_sqlite(folder: str) -> int:
    with closing(sqlite3.connect(Path(folder, "steps.db"))) as base:
        count: int = base.execute("select count(*) from steps").fetchone()[0]
    return count


def _lmdb(**settings: Any) -> Callable[[str], Any]:
    def train(folder: str) -> None:
        import lmdb

        with lmdb.open(os.path.join(folder, "steps"), map_size=1 << 20, **settings) as base:
            for step in range(STEPS):
                with base.begin(write=True) as writing:
                    writing.put(b"%d" % step, b"done")

    return train


def _in_lmdb(folder: str) -> int:
    import lmdb

    with lmdb.open(os.path.join(folder, "steps"), map_size=1 << 20) as base, base.begin() as reading:
        count: int = reading.stat()["entries"]
    return count


def _swept(program: Callable[[str], Any], *, most: int = 1) -> SweepReport:
    report = simdist.sweep(program, world_size=1, args=("{tmp}",), max_steps_lost=most, outcomes=4)
    assert report.wrong == ()
    assert report.unseen
    return report


@needs_reach
def test_a_database_that_syncs_survives_every_crash() -> None:
    report = _swept(_sqlite("extra"))

    report.raise_for_failure()
    assert len(report.cases) > STEPS
    assert "written by C code, within which no crash was tried: steps.db" in str(report)


@needs_reach
def test_a_database_without_syncs_is_found_to_lose_its_steps() -> None:
    report = _swept(_sqlite("off"))

    assert not report.ok
    assert "all hosts lost power" in str(report)


@needs_reach
def test_what_a_commit_promises_is_kept_and_no_more(tmp_path: Path) -> None:
    """Without a sync of the folder a removed journal may reappear, which undoes the last commit."""
    assert {level: _left_of(tmp_path / level, _sqlite(level), _in_sqlite) for level in ("full", "extra")} == {
        "full": {STEPS, STEPS - 1},
        "extra": {STEPS},
    }


def _left_of(folder: Path, program: Callable[[str], Any], count: Callable[[str], int]) -> set[int | None]:
    """Return the numbers of steps left after a crash at the end, in the most suspicious outcomes; -1 if unreadable."""
    left = set()
    for outcome in range(6):
        place = folder / str(outcome)
        place.mkdir(parents=True)

        def run(place: str) -> int | None:
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                program(place)
                simdist.point("done")
                return None
            try:
                return count(place)
            except Exception:
                return -1

        crash = HostCrash(rank=0, at_point="done", down_ns=1_000_000_000, outcome=outcome)
        result = simdist.run(run, world_size=1, args=(str(place),), disk=place, faults=[crash], max_restarts=1)
        result.raise_for_failure()
        left.add(result.values[0])
    return left


@needs_reach
def test_lmdb_is_as_durable_as_its_settings(tmp_path: Path) -> None:
    pytest.importorskip("lmdb", reason="lmdb is not installed")

    left = {
        name: _left_of(tmp_path / name, _lmdb(**{name: value}), _in_lmdb)
        for name, value in (("sync", True), ("writemap", True), ("metasync", False), ("lock", True))
    }

    assert left == {"sync": {STEPS}, "writemap": {STEPS}, "metasync": {STEPS, STEPS - 1}, "lock": {STEPS}}
    assert _left_of(tmp_path / "never", _lmdb(sync=False), _in_lmdb) & {-1, 0}


@needs_reach
def test_after_the_world_c_code_calls_the_system_again(tmp_path: Path) -> None:
    names = ("fsync", "fdatasync", "open", "open64", "rename", "unlink", "write", "pwrite64")
    before = {slot: ctypes.c_uint64.from_address(slot.address).value for slot in _slots.slots_of(names)}
    during: list[bool] = []

    def program(folder: str) -> Any:
        said = _sqlite("full")(folder)
        during.extend(ctypes.c_uint64.from_address(slot.address).value != held for slot, held in before.items())
        return said

    simdist.run(program, world_size=1, args=(str(tmp_path),), disk=tmp_path).raise_for_failure()

    after = {slot: ctypes.c_uint64.from_address(slot.address).value for slot in before}
    # The loader fills a slot with its function at the first call through it.
    assert any(during)
    assert [slot for slot in after if "sqlite" in slot.library and slot.name == "fdatasync"]
    assert all(after[slot] == held for slot, held in before.items() if slot.protected)


def test_where_c_code_cannot_be_seen_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_slots, "_machine", lambda: ())
    monkeypatch.setattr("simdist.files._by_c_code.slots_of", lambda _, **__: [])
    monkeypatch.setattr("simdist.sweeps._report.reaches_c_code", lambda: False)
    reaches_c_code.cache_clear()
    try:
        report = _swept(_sqlite("extra"))
    finally:
        reaches_c_code.cache_clear()

    assert "written by C code, whose syncs can't be seen on this machine, and counted as not synced" in str(report)


def _by_torchscript(path: str) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), path)


def _by_numpy(path: str) -> None:
    with open(path, "wb") as file:
        np.save(file, np.arange(5000))


def _by_safetensors(path: str) -> None:
    saving = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    saving.save_file({"x": np.arange(9)}, path)


def _by_h5py(path: str) -> None:
    with pytest.importorskip("h5py", reason="h5py is not installed").File(path, "w") as file:
        file["x"] = np.arange(5000)


def _by_pyarrow(path: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"x": list(range(99))}), path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("write", [_by_torchscript, _by_numpy, _by_safetensors, _by_h5py, _by_pyarrow])
@pytest.mark.parametrize("sync", [True, False])
def test_what_c_code_wrote_is_durable_once_the_program_syncs_it(
    tmp_path: Path, write: Callable[[str], None], sync: bool
) -> None:
    write(str(tmp_path / "probe"))
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(folder: Path) -> bytes:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            write(str(folder / "a"))
            if sync:
                with open(folder / "a", "rb") as file:
                    os.fsync(file.fileno())
            written.append((folder / "a").read_bytes())
            simdist.point("done")
        return (folder / "a").read_bytes()

    written: list[bytes] = []
    crash = HostCrash(rank=0, at_point="done", down_ns=1_000_000_000, outcome=0)
    result = simdist.run(run, world_size=1, args=(disk,), disk=disk, faults=[crash], max_restarts=1)
    result.raise_for_failure()

    assert result.values == (written if sync else [b""])
    assert "a" in {event.data["path"] for event in result.events if event.kind == "storage"}
