"""Only `simdist.inside` names what is private to torch, or reaches into memory by ctypes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simdist

ROOT = Path(simdist.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "inside" not in path.relative_to(ROOT).parts]
# The drop-ins for torch's own test classes have to import these.
ALLOWED = ("torch.testing._internal", "torch.distributed.distributed_c10d._world")


def _is_private(name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "ctypes":
        return True
    return parts[0] == "torch" and any(part.startswith("_") and not part.startswith("__") for part in parts)


def _named(path: Path) -> Iterator[str]:
    """The modules that a file imports, and the attributes of modules of torch that it names."""
    tree = ast.parse(path.read_text())
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts: list[str] = []
        at: ast.expr | None = node if isinstance(node, ast.Attribute) else None
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if parts and isinstance(at, ast.Name):
            yield ".".join((modules.get(at.id, at.id), *reversed(parts)))


def _private_names(path: Path) -> list[str]:
    return sorted({name for name in _named(path) if _is_private(name) and not name.startswith(ALLOWED)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_else_names_the_inside_of_torch_and_python(path: Path) -> None:
    assert _private_names(path) == []


def test_what_is_private_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "import ctypes\nimport torch as t\nfrom torch._C import x\nt._C.y()\nt.ones(1)\nt.nn.Linear.__init__\n"
    )

    assert _private_names(file) == ["ctypes", "torch._C", "torch._C.x", "torch._C.y"]
