"""Which room of simdist.process may import which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import networkx as nx

import simdist.process
from tests.sources import source

HOME = Path(simdist.process.__file__).parent
ROOMS = ("", "stdlib", "threads", "adapters", "modules", "children")  # each may import those before it
# The list of all replacements is above all rooms; the package's `__init__` re-exports names.
ABOVE = {"__init__", "_installed", "_following"}


def files() -> dict[str, Path]:
    """Return all modules, by the part of their names after `simdist.process.`."""
    found = sorted(path for path in HOME.rglob("*.py") if path.name != "__init__.py")
    return {".".join(path.relative_to(HOME).with_suffix("").parts): path for path in found}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports, in functions too, but not for the type checker."""
    known = files()
    for each in source(path).imports:
        if not each.typing:
            for name in (each.module, each.full):
                if name.removeprefix("simdist.process.") in known:
                    yield name.removeprefix("simdist.process.")


def room(module: str) -> str:
    return module.rpartition(".")[0]


def test_a_room_imports_only_those_before_it() -> None:
    wrong = {}
    for module in sorted(files().keys() - ABOVE):
        later = ROOMS[ROOMS.index(room(module)) + 1 :]
        names = [name for name in imported(files()[module]) if room(name) in later or name in ABOVE]
        if names:
            wrong[module] = names

    assert wrong == {}


def test_no_file_is_in_a_ring() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((module, name) for module, path in files().items() for name in imported(path))

    rings = [sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1]

    assert rings == []
