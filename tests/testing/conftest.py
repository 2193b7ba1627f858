"""Runs pytest inside pytest, for tests that need no separate process."""

from __future__ import annotations

from collections.abc import Callable

import _pytest.pytester
import pytest

from tests.testing.runs import CI_NAMES, PytestRun, Run


@pytest.fixture
def _modules_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run inside a run keep all modules, such as torch, except the test modules, which are imported again."""
    original = _pytest.pytester.SysModulesSnapshot

    def keeping(preserve: Callable[[str], bool] | None = None) -> object:
        return original(lambda name: not name.startswith(("test_", "conftest")))

    monkeypatch.setattr(_pytest.pytester, "SysModulesSnapshot", keeping)


@pytest.fixture
def run(_modules_stay: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(*arguments, files={...})` runs pytest with the plugin in this process, in its own folder."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in CI_NAMES:
        monkeypatch.delenv(name, raising=False)

    def run_here(*arguments: str, files: dict[str, str] | None = None) -> PytestRun:
        for name, source in (files or {}).items():
            (pytester.path / name).write_text(source)
        plugins = [*("-p", "no:timeout", "-p", "no:hypothesispytest", "-p", "no:xdist"), "-p", "simdist.testing.plugin"]
        done = pytester.runpytest_inprocess("-v", "-p", "no:cacheprovider", *plugins, *arguments)
        return PytestRun(int(done.ret), f"{done.stdout}\n{done.stderr}\n")

    return run_here
