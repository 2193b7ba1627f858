"""The content of the disk after processes and hosts have died, as later ones see it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.cluster import make
from simdist.faults import Crash, HostCrash, Raise
from simdist.result import RunResult
from simdist.storage import Mount

SECOND = 1_000_000_000


def _life() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def _held(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _save(folder: Path, *, sync: bool = False) -> dict[str, int] | None:
    """Write a file and rename it; returns in the second life what is there."""
    if _life():
        return _held(folder)
    with (folder / "a.tmp").open("wb") as file:
        file.write(bytes(5000))
        if sync:
            file.flush()
            os.fsync(file.fileno())
    (folder / "a.tmp").rename(folder / "a")
    simdist.step(1)
    return None


def _run(program: Any, disk: Path, *faults: Any, **settings: Any) -> RunResult:
    result = simdist.run(program, world_size=1, args=(disk,), disk=disk, faults=faults, max_restarts=1, **settings)
    result.raise_for_failure()
    return result


def test_a_process_crash_keeps_what_was_written(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, Crash(rank=0, at_step=1))

    assert result.ranks[0].value == {"a": 5000}


def test_a_process_crash_loses_what_stands_in_its_buffers(tmp_path: Path) -> None:
    def program(folder: Path) -> Any:
        if _life():
            return _held(folder)
        file = (folder / "a").open("wb")
        file.write(bytes(100))
        simdist.step(1)
        return file

    assert _run(program, tmp_path, Crash(rank=0, at_step=1)).ranks[0].value == {"a": 0}
    assert _held(tmp_path) == {"a": 0}


def test_a_process_that_dies_cleans_up_nothing(tmp_path: Path) -> None:
    def program(folder: Path) -> Any:
        if _life():
            return sorted(path.name for path in folder.rglob("*"))
        with tempfile.TemporaryDirectory(dir=folder, prefix="of_this_life"), (folder / "a").open("w") as file:
            file.write("lost")
            simdist.step(1)
        return None

    result = _run(program, tmp_path, Crash(rank=0, at_step=1))

    left, name = result.ranks[0].value
    assert left == "a"
    assert name.startswith("of_this_life")
    assert sorted(path.name for path in tmp_path.iterdir()) == [left, name]
    assert (tmp_path / "a").read_text() == ""


def test_a_rank_that_hangs_at_the_end_writes_nothing_more(tmp_path: Path) -> None:
    def program(folder: Path) -> None:
        with (folder / "a").open("w") as file:
            file.write("lost")
            threading.Event().wait()

    result = simdist.run(program, world_size=1, args=(tmp_path,), disk=tmp_path)

    assert result.ranks[0].status == "hung"
    assert (tmp_path / "a").read_text() == ""


def test_a_process_that_ends_by_itself_writes_its_buffers(tmp_path: Path) -> None:
    kept = []

    def program(folder: Path) -> None:
        kept.append((folder / "a").open("w"))
        kept[0].write("hello")

    simdist.run(program, world_size=1, args=(tmp_path,), disk=tmp_path).raise_for_failure()

    assert (tmp_path / "a").read_text() == "hello"
    kept[0].close()


def test_a_crash_during_a_write_leaves_half_of_it(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, Crash(rank=0, op="write", when="during"))

    assert result.ranks[0].value == {"a.tmp": 2500}


@pytest.mark.parametrize(("when", "left"), [("before", {"a.tmp": 5000}), ("after", {"a": 5000})])
def test_a_crash_strikes_on_either_side_of_an_effect(tmp_path: Path, when: Any, left: dict[str, int]) -> None:
    assert _run(_save, tmp_path, Crash(rank=0, op="rename", when=when)).ranks[0].value == left


def test_the_nth_effect_of_any_kind(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, Crash(rank=0, op="storage", nth=3))

    assert result.ranks[0].value == {"a.tmp": 5000}


def test_an_effect_may_raise(tmp_path: Path) -> None:
    result = simdist.run(
        _save, world_size=1, args=(tmp_path,), disk=tmp_path, faults=[Raise(rank=0, op="rename", error="OSError")]
    )

    assert isinstance(result.ranks[0].exception, OSError)
    assert _held(tmp_path) == {"a.tmp": 5000}


@pytest.mark.parametrize(("outcome", "left"), [(0, {"a": 0}), (1, {}), (2, {"a": 5000})])
def test_a_host_crash_takes_the_outcome_that_it_is_given(tmp_path: Path, outcome: int, left: dict[str, int]) -> None:
    result = _run(_save, tmp_path, HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=outcome))

    assert result.ranks[0].value == left


def test_a_host_crash_draws_an_outcome_from_the_seed(tmp_path: Path) -> None:
    found = []
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        found.append(_run(_save, folder, HostCrash(rank=0, at_step=1, down_ns=SECOND), seed=seed).ranks[0].value)

    assert {"a": 0} in found
    assert len({str(each) for each in found}) > 2


def test_what_was_synced_is_there_after_a_host_crash(tmp_path: Path) -> None:
    for outcome in range(4):
        folder = tmp_path / str(outcome)
        folder.mkdir()
        crash = HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=outcome)
        result = simdist.run(
            _save, world_size=1, args=(folder,), kwargs={"sync": True}, disk=folder, faults=[crash], max_restarts=1
        )

        assert result.ranks[0].value in ({"a": 5000}, {"a.tmp": 5000})


def test_what_was_there_at_the_beginning_is_durable(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old").write_bytes(b"o" * 100)

    def program(folder: Path) -> Any:
        old = folder / "d" / "old"
        if _life():
            return old.read_bytes(), _held(folder)
        old.write_bytes(b"n" * 200)
        old.unlink()
        (folder / "d").rmdir()
        simdist.step(1)
        return None

    result = _run(program, tmp_path, HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=1))

    data, held = result.ranks[0].value
    assert data == b"o" * 100
    assert list(held) == ["d"]


def test_the_events_say_what_is_left(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=0))

    assert [e.data for e in result.events if e.kind == "disk"] == [{"path": "a", "text": "is empty, of 5000 bytes"}]


def test_of_several_hosts_one_that_goes_down_loses_what_it_had_not_closed(tmp_path: Path) -> None:
    def program(folder: Path) -> Any:
        rank = int(os.environ["RANK"])
        if _life():
            return _held(folder)
        (folder / f"closed{rank}").write_bytes(bytes(100))
        file = (folder / f"open{rank}").open("wb", buffering=0)
        file.write(bytes(100))
        time.sleep(1)
        simdist.step(2)
        return file

    for every, left in ((False, [0, 100]), (True, [0, 0])):
        folder = tmp_path / str(every)
        folder.mkdir()
        crash = HostCrash(rank=0, at_step=2, down_ns=SECOND, outcome=0, all_hosts=every)
        result = simdist.run(
            program,
            world_size=2,
            cluster=make(2, hosts=2),
            args=(folder,),
            disk=folder,
            faults=[crash],
            max_restarts=1,
        )
        result.raise_for_failure()

        held = result.ranks[0].value
        assert [held["open0"], held["open1"]] == left
        assert [held["closed0"], held["closed1"]] == ([0, 0] if every else [100, 100])


@pytest.mark.parametrize("profile", ["ext4", "xfs", "btrfs", "posix", "nfs"])
def test_a_synced_and_renamed_checkpoint_survives_on_every_file_system(tmp_path: Path, profile: str) -> None:
    def save(folder: Path, step: int) -> None:
        with (folder / "tmp").open("wb") as file:
            torch.save({"step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        (folder / "tmp").replace(folder / "last.pt")
        above = os.open(folder, os.O_RDONLY)
        os.fsync(above)
        os.close(above)

    def program(folder: Path) -> Any:
        if _life():
            return torch.load(folder / "last.pt")["step"]
        save(folder, 1)
        simdist.step(1)
        save(folder, 2)
        return None

    for number in range(1, 6):
        for outcome in range(3):
            folder = tmp_path / f"{number}-{outcome}"
            folder.mkdir()
            crash = HostCrash(rank=0, at_step=1, op="storage", nth=number, down_ns=SECOND, outcome=outcome)
            result = simdist.run(
                program,
                world_size=1,
                args=(folder,),
                disk=Mount(folder=folder, profile=profile),
                faults=[crash],
                max_restarts=1,
            )

            assert result.ranks[0].value in (1, 2), (number, outcome, result.ranks[0].exception)


def test_equal_runs_have_equal_digests(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests.add(_run(_save, folder, HostCrash(rank=0, at_step=1, down_ns=SECOND), seed=3).digest)

    assert len(digests) == 1
