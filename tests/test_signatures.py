"""Names that a package of simdist offers to others have types: no `Any` in a signature, an attribute or a constant."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import simdist
from tests.sources import source, without_collector

ROOT = Path(simdist.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def offered() -> set[str]:
    """Return the names that users or other parts of simdist import."""
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


# Names that stay untyped, with the reasons.
UNTYPED = {
    "_process: SimProcess.torch_state": "the class is of c10d, of which the layer of processes knows nothing",
}


def untyped(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Yield the offered functions, methods, attributes and names of modules that have an `Any`."""
    yield from (name for name in untyped_names(tree.body) if name in names)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(each, ast.FunctionDef) and (each.name == "__init__" or not each.name.startswith("_")):
                    taken = each.args
                    arguments = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
                    hints = [argument.annotation for argument in arguments if argument is not None]
                    if any(map(says_any, [*hints, each.returns])):
                        yield node.name if each is node else f"{node.name}.{each.name}"
        if isinstance(node, ast.ClassDef) and node.name in names:
            attributes = [*untyped_names(node.body), *untyped_names(ast.walk(node), of="self.")]
            yield from (f"{node.name}.{name}" for name in attributes if not name.startswith("_"))


def untyped_names(nodes: Iterable[ast.AST], of: str = "") -> Iterator[str]:
    """Yield names that are annotated with an `Any`, or are aliases of a type that has one."""
    for node in nodes:
        targets: Sequence[ast.expr]
        if isinstance(node, ast.AnnAssign):
            targets, hint = [node.target], node.annotation
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp | ast.Name):
            targets, hint = node.targets, node.value
        else:
            continue
        names = map(ast.unparse, targets if says_any(hint) else ())
        yield from (name.removeprefix(of) for name in names if name.startswith(of) and name.count(".") == of.count("."))


def test_an_any_in_a_signature_is_seen() -> None:
    text = "def f(*, a: dict[str, Any]): ...\nclass C:\n    def m(self) -> 'Any': ...\n    def n(self) -> int: ...\n"

    assert list(untyped(ast.parse(text), {"f", "C"})) == ["f", "C.m"]
    assert list(untyped(ast.parse(text), {"g"})) == []


def test_an_any_in_an_attribute_or_a_constant_is_seen() -> None:
    text = "\n".join(
        (
            "A: list[Any] = []",
            "B = Callable[[Any], int]",
            "C: Final = 3",
            "class D:",
            "    a: Any",
            "    _b: Any",
            "    def __init__(self) -> None:",
            "        self.c: dict[str, Any] = {}",
            "        self._d: Any = local",
            "        e: Any = 3",
        )
    )

    assert list(untyped(ast.parse(text), {"A", "B", "C", "D"})) == ["A", "B", "D.a", "D.c"]
    assert list(untyped(ast.parse(text), {"C"})) == []


def test_what_is_offered_has_no_any() -> None:
    names = offered()

    with without_collector():
        found = {f"{path.stem}: {name}" for path in FILES for name in untyped(ast.parse(path.read_text()), names)}

    assert len(names) > 500
    assert found == set(UNTYPED)
