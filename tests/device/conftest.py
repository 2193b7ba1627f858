"""Every test of devices runs with the kernels in Python and with those in C++, which are built if g++ is there."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from simdist.device import build_kernels, built_kernels, compiler


@pytest.fixture(scope="session")
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The compiled kernels, from the user's cache folder or built there; None without g++."""
    path = built_kernels()
    if path.exists():
        return path
    if compiler() is None:
        return None
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "kernels.lock").open("w") as lock:  # several processes of tests may come here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path if path.exists() else build_kernels()


@pytest.fixture(autouse=True, params=["python", "compiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of the kernels in this test."""
    form: str = request.param
    if form == "compiled" and request.getfixturevalue("compiled_kernels") is None:
        pytest.skip("there is no g++ to build the kernels in C++ with")
    monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
    return form
