"""`tools/check.py` refuses turns of phrase that readers stumble over."""

from __future__ import annotations

import re
from pathlib import Path

from tools._words import TURNS, stumbles

TESTS = Path(__file__).parent


def test_a_turn_is_found_with_its_place_and_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Fine.\n")
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "page.md").write_text(
        "# Title\n\nSeen are Python's files, by whoever opens them. What was seen is shown.\n"
    )

    found = list(stumbles(tmp_path, ["pages"]))

    assert [line.partition(": write")[0] for line in found] == [
        "pages/page.md:3: 'Seen are P'",
        "pages/page.md:3: 'whoever'",
    ]
    assert len(TURNS) > 9


def test_names_of_tests_are_short_and_report() -> None:
    names = {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}

    assert [name for name in sorted(names) if len(name) > 70] == []
    assert [name for name in sorted(names) if re.search(r"_(tell|tells|told)(_|$)", name)] == []
