"""The owner of the code that a frame runs: the user, an installed package, or simdist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

import simdist
from simdist.frames import (
    is_internal,
    is_our_file,
    is_ours,
    is_user_file,
    same_everywhere,
    torch_folder,
    user_frame,
    user_line,
)

HOME = Path(simdist.__file__).parent
ROOT = HOME.parent


def _frame(filename: str) -> FrameType:
    """Return a frame whose code has this file name."""
    found: list[FrameType] = []
    code = compile("found.append(sys._getframe())", filename, "exec")
    exec(code, {"found": found, "sys": sys})
    return found[0]


@pytest.mark.parametrize(
    ("filename", "ours", "internal", "users"),
    [
        (str(HOME / "api.py"), True, True, False),
        (str(HOME / "c10d" / "_work.py"), True, True, False),
        (str(Path(torch.__file__).parent / "nn" / "modules" / "module.py"), False, True, False),
        ("<frozen importlib._bootstrap>", False, True, False),
        (json.__file__, False, False, False),
        (f"{HOME}_of_a_user.py", False, False, True),
        ("/home/user/train.py", False, False, True),
    ],
)
def test_whose_code_a_frame_runs(filename: str, ours: bool, internal: bool, users: bool) -> None:
    frame = _frame(filename)

    assert (is_ours(frame), is_internal(frame), is_user_file(filename)) == (ours, internal, users)


@pytest.mark.parametrize(
    ("filename", "ours"),
    [
        (str(HOME / "hardware" / "rank" / "_worker.py"), True),
        ("/opt/other/machine/simdist/hardware/rank/_worker.py", True),
        (r"C:\python\simdist\hardware\rank\_worker.py", True),
        ("/home/user/simdist/train.py", False),
        ("/home/user/train.py", False),
    ],
)
def test_a_file_of_another_machine_is_ours_by_its_name_in_the_package(filename: str, ours: bool) -> None:
    assert is_our_file(filename) is ours


def test_the_line_and_the_frame_of_the_user_are_the_innermost() -> None:
    here = sys._getframe()

    line = json.loads("1", parse_int=lambda text: (user_line(sys._getframe()), user_frame(sys._getframe())))

    assert re.fullmatch(r" at test_frames\.py:\d+ in <lambda>", line[0])
    assert line[1].f_code.co_name == "<lambda>"
    assert user_line(here).startswith(" at test_frames.py:")
    assert user_line(None) == ""


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_what_a_second_folder_for_packages_holds_is_installed(tmp_path: Path, name: str) -> None:
    """As in an environment made with `--system-site-packages`."""
    code = f"import sys; sys.path.append({str(tmp_path / name)!r}); from simdist.frames import is_user_file as users; "
    code += f"print(users({str(tmp_path / name / 'lib.py')!r}), users({str(tmp_path / 'mine.py')!r}))"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said == "False True\n"


def test_what_pip_has_put_into_any_folder_of_the_path_is_installed(tmp_path: Path) -> None:
    """As with `pip install --target`; other files in the folder are the user's."""
    (tmp_path / "lib-1.0.dist-info").mkdir()
    (tmp_path / "lib-1.0.dist-info" / "RECORD").write_text("lib/__init__.py,sha256=0,0\none.py,,\n../bin/lib,,\n")
    code = "import sys; sys.path += ['', 'away']; from simdist.frames import is_user_file as users; "
    code += f"print(*(users({str(tmp_path)!r} + name) for name in ('/lib/a.py', '/one.py', '/mine.py', '/library.py')))"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert run.stdout == "False False True True\n"


def test_without_torch_no_frame_is_torchs() -> None:
    program = (
        "from simdist.frames import torch_folder; import sys; assert 'torch' not in sys.modules; print(torch_folder())"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said == "\n"
    assert torch_folder() == str(Path(torch.__file__).parent) + "/"


def test_nothing_else_knows_where_simdist_is_installed() -> None:
    homes = re.compile(r"simdist\.__file__\)\)\.parent\b|Path\(__file__\)\.parents\[1\]|__file__\.rpartition")
    found = {path.relative_to(ROOT).as_posix() for path in HOME.rglob("*.py") if homes.search(path.read_text())}

    assert found == {"simdist/c10d/surface/state/_compiled.py"}  # the folder that Dynamo skips


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (f'  File "{torch.__file__}", line 3, in f', '  File "torch/__init__.py", line 3, in f'),
        (f'  File "{HOME / "api.py"}", line 3, in f', '  File "simdist/api.py", line 3, in f'),
        (f"{json.__file__}:5: UserWarning: x", "json/__init__.py:5: UserWarning: x"),
        ("at /nowhere/else/train.py:7 and /nowhere/data.bin", "at train.py:7 and /nowhere/data.bin"),
        ("see https://example.org/docs/train.py", "see https://example.org/docs/train.py"),
        ("folder/train.py", "folder/train.py"),
    ],
)
def test_a_line_of_output_is_the_same_on_every_machine(line: str, same: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert same_everywhere(line) == same
