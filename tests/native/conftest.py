"""The native extension, which is built for the tests if it is missing."""

from __future__ import annotations

import fcntl
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from simdist.native import _folds, source_number, why_not_buildable
from simdist.native._build import EXTENSION, build_extension


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> ModuleType | None:
    """The extension built from this source; None if it can't be built."""
    if _folds.module is not None:
        return _folds.module
    if why_not_buildable():
        return None
    shared = tmp_path_factory.getbasetemp().parent
    path = shared / f"{source_number()}{EXTENSION}"  # without workers, other sessions use it, too
    with (shared / "native.lock").open("w") as lock:  # several test processes may be here at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            build_extension(path)
    loader = ExtensionFileLoader("simdist._native", str(path))
    spec = spec_from_loader("simdist._native", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def native(built: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The extension, in use."""
    if built is None:
        pytest.skip(f"the native folds can't be built: {why_not_buildable()}")
    monkeypatch.setattr(_folds, "module", built)
    return built
