"""The user's source code, statement by statement: the statement of a line, and the names in it."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Statement", "source_line", "statement_at"]

_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple statement, or the head of a compound one: its first line, its names, and its syntax.

    `members` are pairs of a name and an attribute of it: an attribute of a module is a variable too.
    """

    line: int
    names: tuple[str, ...]
    nodes: tuple[ast.AST, ...]
    members: tuple[tuple[str, str], ...] = ()


@functools.lru_cache(maxsize=256)
def _statements(filename: str) -> dict[int, Statement]:
    try:
        tree = ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, Statement] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        parts = _head(node)
        inner = [part for top in parts for part in ast.walk(top)]
        names = [part.id for part in inner if isinstance(part, ast.Name)]
        names += [part.asname or part.name.split(".")[0] for part in inner if isinstance(part, ast.alias)]
        members = [
            (part.value.id, part.attr)
            for part in inner
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        ]
        last = max((getattr(part, "end_lineno", None) or node.lineno for part in parts), default=node.lineno)
        for line in range(node.lineno, last + 1):
            found[line] = Statement(
                node.lineno, tuple(dict.fromkeys(names)), tuple(inner), tuple(dict.fromkeys(members))
            )
    return found


def _head(node: ast.stmt) -> list[ast.AST]:
    """The parts of a statement that run with its line: not the bodies of blocks, functions and classes."""
    if isinstance(node, _SCOPES):
        arguments = (
            [] if isinstance(node, ast.ClassDef) else [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        )
        return [*node.decorator_list, *arguments, *(node.bases if isinstance(node, ast.ClassDef) else [])]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target, node.iter]
    if isinstance(node, ast.While | ast.If):
        return [node.test]
    if isinstance(node, ast.With | ast.AsyncWith):
        return list(node.items)
    if isinstance(node, ast.Match):
        return [node.subject]
    return [] if isinstance(node, _BLOCKS) or type(node).__name__ == "TryStar" else [node]


def statement_at(filename: str, line: int) -> Statement:
    """The statement of a line; one without names if the source is not available."""
    return _statements(filename).get(line) or Statement(line, (), ())


def source_line(filename: str, line: int) -> str:
    """The text of a line, without its indentation."""
    return linecache.getline(filename, line).strip()
