"""A rank that closes a standard descriptor closes its own, and not the host's, which all share."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

import simdist


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_descriptor_is_closed_for_its_rank_only(number: int) -> None:
    def use() -> int | None:
        try:
            if number:
                os.write(number, b"\n")
            else:
                os.read(0, 1)
        except OSError as error:
            return error.errno
        return None

    def body() -> tuple[int | None, int]:
        if os.environ["RANK"] == "0":
            os.close(number)
        script = "read line; test $? = 1" if number == 0 else f"echo said >&{number}"
        return use(), subprocess.run(["sh", "-c", script], check=False).returncode

    host = [os.fstat(each) for each in range(3)]
    result = simdist.run(body, world_size=2)
    result.raise_for_failure()

    (failed, code), (worked, other_code) = result.values
    assert failed == errno.EBADF
    assert (worked, other_code) == (None, 0)
    assert (code == 0) == (number == 0)
    assert list(map(os.path.samestat, host, [os.fstat(each) for each in range(3)])) == [True] * 3
    if number:
        assert "rror" in result.ranks[0].stderr or number == 2
        assert [result.ranks[1].stdout, result.ranks[1].stderr][number - 1] == "said\n"


def test_programs_are_given_standard_descriptors_by_number(tmp_path: Path) -> None:
    """The one that a rank has laid over the standard one, not the host's."""

    def body() -> tuple[str, int]:
        files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("read", "written")]
        os.write(files[0], b"said\n")
        os.lseek(files[0], 0, os.SEEK_SET)
        before = [os.dup(0), os.dup(1)]
        for number, file in enumerate(files):
            os.dup2(file, number)
        code = subprocess.run(["cat"], stdin=0, stdout=1, check=False).returncode
        os.lseek(files[0], 0, os.SEEK_SET)
        code += subprocess.run(["cat"], stdin=0, stderr=1, stdout=1, check=False).returncode
        subprocess.run(["sh", "-c", "echo back >&0"], stdin=1, check=False)
        for number, file in enumerate(before):
            os.dup2(file, number)
            os.close(file)
        for file in files:
            os.close(file)
        return (tmp_path / "written").read_text(), code

    assert simdist.run(body, world_size=1).values == [("said\nsaid\nback\n", 0)]
