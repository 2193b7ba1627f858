"""Which wing of simdist.c10d may import which others, and which names none of them may use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simdist
from tests.sources import source, without_collector

HOME = Path(str(simdist.__file__)).parent / "c10d"
WINGS = ("calls", "surface", "engine", "backends", "watch")  # each may import those before it
BACKENDS = sorted(path.name for path in (HOME / "backends").iterdir() if (path / "__init__.py").exists())


def modules(wing: str) -> list[Path]:
    return sorted((HOME / wing).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, at once or later, except those only for type checkers."""
    for each in source(path).imports:
        if not each.typing:
            yield from dict.fromkeys((each.module, each.full))


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_imports_only_those_before_it(wing: str) -> None:
    later = WINGS[WINGS.index(wing) + 1 :]

    wrong = [
        f"{path.relative_to(HOME)} imports {name}"
        for path in modules(wing)
        for name in imported(path)
        if name == "simdist.c10d" or name.startswith(tuple(f"simdist.c10d.{each}" for each in later))
    ]
    assert modules(wing)
    assert wrong == []


def test_backends_do_not_know_each_other() -> None:
    wrong = [
        f"{path.relative_to(HOME)} imports {name}"
        for backend in BACKENDS
        for path in modules(f"backends/{backend}")
        for name in imported(path)
        for other in BACKENDS
        if other != backend and name.startswith(f"simdist.c10d.backends.{other}")
    ]
    assert BACKENDS == ["gloo", "ideal", "nccl"]
    assert wrong == []


def test_the_engine_asks_no_backend_for_its_name() -> None:
    with without_collector():
        named = [
            f"{path.name}:{node.lineno}"
            for path in modules("engine")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Compare)
            and any(word in ast.unparse(node) for word in ("'gloo'", "'nccl'", "'sim'", ".name =="))
            if ".backend" in ast.unparse(node)
        ]
    assert named == []
