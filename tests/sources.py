"""The content of Python files, for tests of the whole tree: each file is parsed once, and only a summary is kept.

A syntax tree takes a hundred times the memory of its text, and the garbage collector visits all of it. So a `Source`
keeps only names and texts.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Import", "Source", "source", "without_collector"]

_T = TypeVar("_T", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Import:
    """A module that a file imports, or a name from it; `typing` if only for the type checker."""

    module: str
    name: str | None  # after "from MODULE import"
    as_name: str  # its name in the file
    typing: bool

    @property
    def full(self) -> str:
        """The module with the name."""
        return self.module if self.name is None else f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Source:
    """A file: `definitions` are its public functions and classes, `texts` its strings without docstrings.

    `names` are dotted names as written ("a.b.c"). `calls` are the called names, each with its line, and with the name
    that its single argument calls, if that is a call.
    """

    path: Path
    documented: bool
    relative: bool  # it has a relative import
    definitions: frozenset[str]
    imports: tuple[Import, ...]
    names: frozenset[str]
    texts: tuple[str, ...]
    calls: tuple[tuple[str, int, str | None], ...]


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Switch the garbage collector off: trees have hundreds of thousands of objects and no cycle to find."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@functools.cache
@without_collector()
def source(path: Path) -> Source:
    """Return the summary of a file."""
    tree = ast.parse(path.read_text())
    nodes = _Nodes(tree)
    checked = [node for node in nodes.of(ast.If) if "TYPE_CHECKING" in ast.unparse(node.test)]
    typing = {id(node) for outer in checked for node in ast.walk(outer)}
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = [
        *nodes.of(ast.FunctionDef),
        *nodes.of(ast.AsyncFunctionDef),
    ]
    notes = {
        id(node.body[0].value)  # type: ignore[attr-defined]  # an expression
        for node in (tree, *nodes.of(ast.ClassDef), *functions)
        if ast.get_docstring(node, clean=False) is not None
    }
    imported = [node for node in nodes.all if isinstance(node, ast.Import | ast.ImportFrom)]
    return Source(
        path=path,
        documented=bool(ast.get_docstring(tree)),
        relative=any(node.level for node in nodes.of(ast.ImportFrom)),
        definitions=frozenset(_definitions(tree)),
        imports=tuple(found for node in imported for found in _imports(node, id(node) in typing)),
        names=frozenset(name for node in nodes.of(ast.Attribute) if (name := _dotted(node))),
        texts=tuple(
            node.value for node in nodes.of(ast.Constant) if isinstance(node.value, str) and id(node) not in notes
        ),
        calls=tuple(
            (name, node.lineno, _argument(node)) for node in nodes.of(ast.Call) if (name := _ending(node.func))
        ),
    )


class _Nodes:
    """The nodes of a tree, by their kind."""

    def __init__(self, tree: ast.Module) -> None:
        self._by_kind: dict[type[ast.AST], list[Any]] = {}
        self.all = found = list[ast.AST]((tree,))  # the outer ones first
        for node in found:  # the list grows meanwhile
            self._by_kind.setdefault(type(node), []).append(node)
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [each for each in value if isinstance(each, ast.AST)]

    def of(self, kind: type[_T]) -> list[_T]:
        """Return the nodes of one kind."""
        return self._by_kind.get(kind, [])


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield public functions and classes at the top of a file, without click's commands, which have their own names."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not any(".command(" in ast.unparse(decorator) for decorator in node.decorator_list):
            yield node.name


def _imports(node: ast.Import | ast.ImportFrom, typing: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, None, alias.asname or alias.name.partition(".")[0], typing)
    elif node.module is not None:
        for alias in node.names:
            yield Import(node.module, alias.name, alias.asname or alias.name, typing)


def _dotted(node: ast.expr) -> str:
    """Return the dotted name; "" if something else than names stands before its dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""


def _ending(node: ast.expr) -> str:
    """Return the names at the end of an expression, such as "bus.record" of `self._of(x).bus.record`."""
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
