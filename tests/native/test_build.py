"""The extension: installations build it; it is used if it exists, is of this source, and is not turned off."""

from __future__ import annotations

import importlib.machinery
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simdist.errors import UnsupportedError
from simdist.native import VARIABLE, _build, _folds, source_number, why_not_buildable
from tools import native as tool

COMPILES = '#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\n'  # the last word is the output path
REFUSES = "#!/bin/sh\necho 'folds.cpp:3: error: no such thing' >&2\nexit 1\n"


def put_compiler(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "compiler"
    compiler.write_text(text)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))


def build_data() -> dict[str, Any]:
    """Return hatchling's initial value."""
    return {"force_include": {}, "pure_python": True}


def test_a_wheel_holds_it_and_says_for_which_pythons_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_compiler(tmp_path, COMPILES, monkeypatch)
    data = build_data()

    tool.prepare(editable=False, folder=tmp_path, build_data=data)

    built = tmp_path / _build.EXTENSION
    assert data["force_include"] == {str(built): f"simdist/{_build.EXTENSION}"}
    assert data["pure_python"] is False
    assert data["tag"].startswith("cp311-abi3-")
    assert "-ffp-contract=off" in built.read_text()


def test_without_a_compiler_a_wheel_is_one_for_every_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    data = build_data()

    tool.prepare(editable=False, folder=tmp_path, build_data=data)

    assert data == build_data()
    assert capsys.readouterr().err == "simdist: without the native folds: there is no C++ compiler\n"


def test_a_compiler_that_refuses_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_compiler(tmp_path, REFUSES, monkeypatch)
    folder = tmp_path / "out"
    folder.mkdir()
    data = build_data()

    tool.prepare(editable=False, folder=folder, build_data=data)

    assert data == build_data()
    assert "folds.cpp:3: error: no such thing" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_its_file_name_is_one_that_python_imports() -> None:
    ending = _build.EXTENSION.removeprefix("_native")

    assert sys.platform == "win32" or ending in importlib.machinery.EXTENSION_SUFFIXES


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        ("linux-x86_64", "cp311-abi3-linux_x86_64"),
        ("macosx-11.0-arm64", "cp311-abi3-macosx_11_0_arm64"),
        ("macosx-14-arm64", "cp311-abi3-macosx_14_0_arm64"),
    ],
)
def test_a_wheel_is_for_the_system_that_it_is_built_on(
    monkeypatch: pytest.MonkeyPatch, platform: str, tag: str
) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)

    assert tool.tag() == tag


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("Py_GIL_DISABLED", 1, "a Python without the GIL has no stable ABI"),
        ("include", "/nowhere", "the headers of Python are not installed (Debian, Ubuntu: apt install python3-dev)"),
    ],
)
def test_a_python_that_can_not_have_it_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: object, why: str
) -> None:
    put_compiler(tmp_path, COMPILES, monkeypatch)
    asked = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: value if name == variable else asked(name))
    if variable == "include":
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": value})

    assert why_not_buildable() == why


def test_what_is_built_knows_its_source(native: ModuleType) -> None:
    assert source_number() == native.SOURCE


def test_no_constant_is_returned_by_a_macro_that_may_not_count_it() -> None:
    # An extension built with the headers of Python 3.13 crashed Python 3.11: "deallocating True or False".
    folder = Path(_build.__file__).parent
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".cpp", ".inc")}

    assert sorted(texts) == ["folds.cpp", "memory.inc", "tiles.inc"]
    assert [name for name, text in texts.items() if re.search("^[^/]*Py_RETURN_", text, re.MULTILINE)] == []


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")

    assert _folds._loaded() == (None, "SIMDIST_NATIVE=0 in the environment turns them off")


def test_another_word_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")

    with pytest.raises(UnsupportedError, match=r"SIMDIST_NATIVE: expected 0 .* or 1, got 'off'"):
        _folds._loaded()


def test_what_is_built_of_another_source_is_not_taken(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "simdist._native", native)
    monkeypatch.setattr("simdist._native", native, raising=False)

    monkeypatch.setattr(_folds, "source_number", lambda: native.SOURCE + 1)
    other = _folds._loaded()
    monkeypatch.setattr(_folds, "source_number", lambda: 0)  # as if installed without the source
    none = _folds._loaded()

    assert other == (None, "they are built of another source")
    assert none == (native, "")
