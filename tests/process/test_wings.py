"""Which room of simdist.process imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import simdist.process

HOME = Path(simdist.process.__file__).parent
ROOMS = ("", "stdlib", "threads", "adapters", "modules", "children")  # each may import those before it
# What a world replaces is listed above all rooms; the package's face hands names on.
ABOVE = {"__init__", "_installed", "_following"}


def files() -> dict[str, Path]:
    """All modules, by what stands behind `simdist.process.` in their names."""
    found = sorted(path for path in HOME.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(HOME).with_suffix("").parts): path for path in found}


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, in functions too; not those for the type checker."""
    tree = ast.parse(path.read_text())
    typing = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test)
        for node in ast.walk(outer)
    }
    known = files()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and id(node) not in typing:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if name.removeprefix("simdist.process.") in known:
                    yield name.removeprefix("simdist.process.")


def room(module: str) -> str:
    return module.rpartition(".")[0]


@pytest.mark.parametrize("module", sorted(files()))
def test_a_room_imports_only_those_before_it(module: str) -> None:
    later = ROOMS[ROOMS.index(room(module)) + 1 :]

    wrong = [name for name in imported(files()[module]) if room(name) in later or (name in ABOVE)]

    assert module in ABOVE or wrong == []


def test_no_file_is_in_a_ring() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((module, name) for module, path in files().items() for name in imported(path))

    rings = [sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1]

    assert rings == []


def test_no_room_has_more_than_25_files() -> None:
    sizes = {name: sum(room(module) == name for module in files()) for name in ROOMS}

    assert max(sizes.values()) <= 25, sizes
