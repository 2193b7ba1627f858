"""`simdist build-devices`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from simdist.device import built_kernels, remove_old_builds
from simdist.device.kernels import _compiled

Simdist = Callable[..., Result]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Install a compiler that accepts any source; returns the file that counts its calls."""
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\necho >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_compiled, "compiler", lambda: str(compiler))
    return [str(tmp_path / "calls")]


def test_it_builds_once_and_again_on_demand(simdist: Simdist, builds: list[str]) -> None:
    first, second, third = simdist("build-devices"), simdist("build-devices"), simdist("build-devices", "--again")

    path = built_kernels()
    assert first.exit_code == second.exit_code == third.exit_code == 0
    assert first.output == third.output
    assert first.output.splitlines() == [
        f"built: {path}",
        "worlds with devices take them from now on; SIMDIST_DEVICE_KERNELS=python turns them off",
    ]
    assert second.output == f"built already: {path}\n"
    assert len(Path(builds[0]).read_text().splitlines()) == 2


def test_without_a_compiler_it_is_bad_input(simdist: Simdist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")

    result = simdist("build-devices")

    assert result.exit_code == 2
    assert "g++ is not to be found" in result.output
    assert "Traceback" not in result.output


def test_builds_that_nothing_takes_any_more_are_removed(simdist: Simdist, builds: list[str]) -> None:
    path = built_kernels()
    start, tag, rest = path.name.partition("cpython-")
    here = path.name.rpartition("-")[0]
    newer, other_python = f"devices-torch99.1.0-{tag}{rest}", f"{start}cpython-27-{rest.partition('-')[2]}"
    old = [f"{here}-0123456789ab.so", f"devices-torch1.0.0+cpu-{tag}{rest}", f"{path.name}.4711"]
    kept = [newer, other_python, f"{path.name}.4712", "devices-torch-of-somebody-else", "plans.bin"]
    path.parent.mkdir(parents=True)
    for name in (*old, *kept):
        (path.parent / name).write_text("")
    os.utime(path.parent / old[2], (0, 0))  # interrupted long ago

    first, second = simdist("build-devices"), simdist("build-devices")

    said = [f"removed what an older torch or another simdist has built: {path.parent / name}" for name in sorted(old)]
    assert first.output.splitlines()[2:] == said
    assert second.output == f"built already: {path}\n"
    assert sorted(each.name for each in path.parent.iterdir()) == sorted([*kept, path.name])


def test_nothing_is_removed_before_there_is_a_build(builds: list[str]) -> None:
    path = built_kernels()
    path.parent.mkdir(parents=True)
    (path.parent / f"{path.name.rpartition('-')[0]}-0123456789ab.so").write_text("")

    assert remove_old_builds() == []
