"""Files that a life overwrites before any program has looked at the old bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import simdist
from simdist.files import Looks, present_disks
from simdist.storage import Mount

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify reports who opens a file")

NAMES = ("c", "emptied", "kept", "linked", "listed/a", "moved", "opened", "program", "removed", "replaced", "sized")


def test_a_file_is_unread_that_is_overwritten_before_anybody_looks(tmp_path: Path) -> None:
    (tmp_path / "listed").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(bytes(8))
    noted: list[Looks | None] = []

    def main() -> None:
        disks = present_disks()
        assert disks is not None
        noted.append(disks.note_looks())
        (tmp_path / "opened").read_bytes()
        assert (tmp_path / "sized").stat().st_size == 8
        assert [entry.stat().st_size for entry in os.scandir(tmp_path / "listed")] == [8]
        torch.from_file(str(tmp_path / "c"), size=2)  # opened by C code
        subprocess.run(["cat", tmp_path / "program"], check=True, capture_output=True)
        os.link(tmp_path / "linked", tmp_path / "link")
        (tmp_path / "moved").rename(tmp_path / "other")
        (tmp_path / "removed").unlink()
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").replace(tmp_path / "replaced")
        for name in NAMES:
            if name not in ("kept", "removed", "replaced"):
                (tmp_path / name).write_bytes(b"anew")

    simdist.run(main, world_size=1, disk=Mount(folder=tmp_path)).raise_for_failure()

    Looks.end()
    assert noted[0] is not None
    assert noted[0].unread == ["removed", "replaced", "emptied"]


def test_looks_are_not_noted_where_others_could_look_meanwhile(tmp_path: Path) -> None:
    def main() -> bool:
        disks = present_disks()
        assert disks is not None
        return disks.note_looks() is None

    for mount in (Mount(folder=tmp_path, latency_ns=1), Mount(folder=tmp_path, profile="nfs")):
        assert simdist.run(main, world_size=1, disk=mount).ranks[0].value is True
