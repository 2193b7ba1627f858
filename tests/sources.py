"""What stands in a Python file, for tests of the whole tree: each file is parsed once, and only what tests ask is kept.

A tree of syntax takes a hundred times the memory of its text, and the garbage collector looks at all of it. So a
`Source` keeps names and texts.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Import", "Source", "source"]


@dataclass(frozen=True, slots=True)
class Import:
    """A module that a file imports, or a name from it; `typing` if for the type checker only."""

    module: str
    name: str | None  # after "from MODULE import"
    as_name: str  # what the file calls it
    typing: bool

    @property
    def full(self) -> str:
        """The module and the name."""
        return self.module if self.name is None else f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Source:
    """A file: `definitions` are its public functions and classes, `texts` its strings without docstrings.

    `names` are dotted names as they stand ("a.b.c"), `calls` those that are called, each with its line and what its
    single argument calls, if that is a call.
    """

    path: Path
    documented: bool
    relative: bool  # it has a relative import
    definitions: frozenset[str]
    imports: tuple[Import, ...]
    names: frozenset[str]
    texts: tuple[str, ...]
    calls: tuple[tuple[str, int, str | None], ...]


@functools.cache
def source(path: Path) -> Source:
    """What stands in a file."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    checked = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    typing = {id(node) for outer in checked for node in ast.walk(outer)}
    notes = {
        id(node.body[0].value)  # type: ignore[attr-defined]  # it is an expression
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node, clean=False) is not None
    }
    return Source(
        path=path,
        documented=bool(ast.get_docstring(tree)),
        relative=any(isinstance(node, ast.ImportFrom) and node.level for node in nodes),
        definitions=frozenset(_definitions(tree)),
        imports=tuple(found for node in nodes for found in _imports(node, id(node) in typing)),
        names=frozenset(name for node in nodes if isinstance(node, ast.Attribute) and (name := _dotted(node))),
        texts=tuple(
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes
        ),
        calls=tuple(
            (name, node.lineno, _argument(node))
            for node in nodes
            if isinstance(node, ast.Call) and (name := _ending(node.func))
        ),
    )


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Functions and classes without an underscore at the top of a file; a click command is reached by its own name."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not any(".command(" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield node.name


def _imports(node: ast.AST, typing: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, None, alias.asname or alias.name.partition(".")[0], typing)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            yield Import(node.module, alias.name, alias.asname or alias.name, typing)


def _dotted(node: ast.expr) -> str:
    """The name, if nothing else than names stands before its dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def _ending(node: ast.expr) -> str:
    """The names at the end of an expression, as in "bus.record" of `self._of(x).bus.record`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _argument(node: ast.Call) -> str | None:
    only = node.args[0] if len(node.args) == 1 and not node.keywords else None
    return _ending(only.func) if isinstance(only, ast.Call) else None
