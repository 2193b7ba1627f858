"""What one package of simdist offers to another has a type: no `Any` in a signature."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import simdist
from tests.sources import source, without_collector

ROOT = Path(simdist.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def offered() -> set[str]:
    """Names that users import, or another part of simdist."""
    names = set(simdist.__all__)
    for path in FILES:
        for each in source(path).imports:
            parts = each.module.split(".")
            if parts[0] == "simdist" and len(parts) > 1 and parts[1] != part_of(path) and each.name is not None:
                names.add(each.name)
    return {name for name in names if not name.startswith("_")}


def says_any(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value)
        for node in ast.walk(annotation)
    )


def untyped(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Functions and methods with an `Any`, of those that are offered."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef) and (each.name == "__init__" or not each.name.startswith("_")):
                    taken = each.args
                    arguments = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
                    hints = [argument.annotation for argument in arguments if argument is not None]
                    if any(map(says_any, [*hints, each.returns])):
                        yield node.name if each is node else f"{node.name}.{each.name}"


def test_an_any_in_a_signature_is_seen() -> None:
    text = "def f(*, a: dict[str, Any]): ...\nclass C:\n    def m(self) -> 'Any': ...\n    def n(self) -> int: ...\n"

    assert list(untyped(ast.parse(text), {"f", "C"})) == ["f", "C.m"]
    assert list(untyped(ast.parse(text), {"g"})) == []


def test_what_is_offered_has_no_any_in_its_signature() -> None:
    names = offered()

    with without_collector():
        found = {str(path.relative_to(ROOT)): list(untyped(ast.parse(path.read_text()), names)) for path in FILES}

    assert len(names) > 500
    assert {path: each for path, each in found.items() if each} == {}
