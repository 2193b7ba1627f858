"""Folders, archives and links as programs, with the names that Python gives them."""

from __future__ import annotations

import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simdist.cli import main

SHOWS = """
import multiprocessing, sys

def work():
    print("worked")

if __name__ == "__main__":
    print([__file__, sys.argv, sys.path[0], __package__, __spec__ and __spec__.name])
    try:
        import helper
        print([helper.__file__, sys.modules["__main__"].work is work])
    except ImportError as error:
        print(error)
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print("exit code", child.exitcode)
"""


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_looks: None) -> Callable[[str], Result]:
    """A function that runs a program in a folder with some of them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SHOWS)
    (tmp_path / "app" / "helper.py").write_text("")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", interpreter="/usr/bin/env python")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "script.py").write_text(SHOWS)
    (tmp_path / "link.py").symlink_to("deep/script.py")
    return lambda program: CliRunner().invoke(main, ["launch", program, "a", "b"])


@pytest.mark.parametrize("program", ["app", "./app/", "app.pyz"])
def test_python_runs_the_main_part_of_a_folder_or_an_archive(
    program: str, launch: Callable[[str], Result], tmp_path: Path
) -> None:
    result = launch(program)

    assert result.exit_code == 0, result.output
    path = f"{tmp_path}/{program}"
    names, helper, *rest = result.stdout.splitlines()
    assert eval(names) == [f"{path.rstrip('/')}/__main__.py", [program, "a", "b"], path, "", "__main__"]
    assert eval(helper) == [f"{path.rstrip('/')}/helper.py", True]
    # Its main part has no guard, so a spawned process does not import it.
    assert rest == ["exit code 1"]
    assert "AttributeError: Can't get attribute 'work' on <module '__m" in result.stderr


@pytest.mark.parametrize("program", ["link.py", "./deep/../link.py"])
def test_a_link_keeps_its_name_and_finds_the_modules_beside_the_script(
    program: str, launch: Callable[[str], Result], tmp_path: Path
) -> None:
    result = launch(program)

    assert result.exit_code == 0, result.output
    names, *rest = result.stdout.splitlines()
    assert eval(names) == [f"{tmp_path}/{program}", [program, "a", "b"], f"{tmp_path}/deep", None, None]
    assert rest == ["No module named 'helper'", "worked", "exit code 0"]


def test_a_folder_without_a_main_part_is_refused(launch: Callable[[str], Result]) -> None:
    result = launch("deep")

    assert result.exit_code == 2
    assert "  deep: this folder has no __main__.py; expected a Python script, or a module with -m" in result.output
