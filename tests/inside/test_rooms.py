"""Only `simdist.inside` uses private names of torch, reaches into memory by ctypes, or knows lines of C++ files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import simdist
from tests.sources import source

ROOT = Path(simdist.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "inside" not in path.relative_to(ROOT).parts]
OURS = ("kernels.cpp", "folds.cpp", "Python.h")  # sources that simdist compiles, and a header that they need
SOURCE = re.compile(r"\w\.(cpp|cc|cuh?|h|hpp)\b|/pytorch/|third_party")
ALLOWED = "torch.testing._internal"  # imported by the drop-ins for torch's own test classes


def _is_private(name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "ctypes":
        return True
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts)


def _named(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and the attributes of torch's modules that it names."""
    here = source(path)
    modules = {each.as_name: each.full for each in here.imports if each.name is not None or "." not in each.module}
    for each in here.imports:
        yield each.full
        if each.name is None and "." in each.module and each.as_name != each.module.partition(".")[0]:
            modules[each.as_name] = each.module
    for name in here.names:
        first, _, rest = name.partition(".")
        yield f"{modules.get(first, first)}.{rest}"


def _private_names(path: Path) -> list[str]:
    return sorted({name for name in _named(path) if _is_private(name) and not name.startswith(ALLOWED)})


def test_nothing_else_names_the_inside_of_torch_and_python() -> None:
    found = {str(path.relative_to(ROOT)): _private_names(path) for path in FILES}

    assert {path: names for path, names in found.items() if names} == {}


def test_what_is_private_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "import ctypes\nimport torch as t\nfrom torch._C import x\nt._C.y()\nt.ones(1)\nt.nn.Linear.__init__\n"
    )

    assert _private_names(file) == ["ctypes", "torch._C", "torch._C.x", "torch._C.y"]


def _source_files(path: Path) -> list[str]:
    """Return the texts, without docstrings, that name a C++ source."""
    return [text for text in source(path).texts if SOURCE.search(text) and text not in OURS]


def test_nothing_else_knows_a_file_or_a_line_of_the_sources_of_torch() -> None:
    found = {str(path.relative_to(ROOT)): _source_files(path) for path in FILES}

    assert {path: texts for path, texts in found.items() if texts} == {}


def test_a_line_of_a_source_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""See a.cpp:3."""\nx = f"at {1}/pair.cc:{2}", "Utils.hpp:3", "see /pytorch/x", "a.h:3", "kernels.cpp"\n'
    )

    assert sorted(_source_files(file)) == ["/pair.cc:", "Utils.hpp:3", "a.h:3", "see /pytorch/x"]
