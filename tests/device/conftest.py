"""Every test of devices runs with the kernels in Python and with those in C++, which are built if g++ is there."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, params=["python", "compiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of the kernels in this test."""
    form: str = request.param
    if form == "compiled" and request.getfixturevalue("compiled_kernels") is None:
        pytest.skip("there is no g++ to build the kernels in C++ with")
    monkeypatch.setenv("SIMDIST_DEVICE_KERNELS", form)
    return form
