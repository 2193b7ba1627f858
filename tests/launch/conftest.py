"""Shared by the tests of `simdist launch`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_looks: None) -> Callable[..., Result]:
    """A function that writes the script, and runs the command in its folder."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *words: str, before: tuple[str, ...] = (), script: str = "script.py") -> Result:
        (tmp_path / "script.py").write_text(text)
        return CliRunner().invoke(main, ["launch", *before, script, *words])

    return run
