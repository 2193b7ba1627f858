from __future__ import annotations

import importlib.metadata
from pathlib import Path

import simdist
from simdist.determinism._recording import Seen
from simdist.determinism._surroundings import looked_at


def test_files_are_noted_without_those_of_the_search_for_packages() -> None:
    """It looks at folders again that it has listed before, so a fresh process does otherwise."""
    seen: dict[int, list[Seen]] = {}

    def body() -> None:
        importlib.metadata.entry_points(group="simdist_tests")
        Path("/").stat()

    with looked_at(seen):
        simdist.run(body, world_size=1).raise_for_failure()

    assert [(note.kind, note.site[2]) for note in seen[0]] == [("file", "body")]
