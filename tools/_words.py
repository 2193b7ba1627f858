"""Turns of phrase that readers stumble over, and what to write: `tools/check.py` refuses them everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["TURNS", "stumbles"]

TURNS = {
    r"\bwho(so)?ever\b": "the subject by its name: the task that waits, a reader, the caller",
    r"\bof such\b": "of these, or the name of the thing",
    r"\bonce more\b": "again",
    r"\blately\b": "the version",
    r"\bwhere(of|upon)\b|\bhitherto\b|\bthereof\b": "of it, after which, until now",
    r"\bcomes? to pass\b": "happens",
    r"\b(is|are) (nobody|no one)'s (promise|affair)\b": "is not guaranteed, is up to",
    # Forbidden for what code does; a file's method, and a variable in tests, may have the name.
    r"(?<![A-Za-z.])(tell|tells|telling|told)(?![a-z])(?! = |\()": "report, say, show, inform; the subject hears, gets",
    r"\bno longer any\b|\bno more any\b": "no longer",
    r"\bis to say\b|\bthat be\b": "the thing itself",
    r"(?-i:\b(Seen|Meant|Told|Kept|Left) (is|are) \w)": "the subject first: Only open files are simulated",
}
_OWN = ("_words.py", "test_words.py")  # they have to name the turns
_ENDINGS = (".py", ".md", ".yml", ".toml")


def stumbles(root: Path, folders: list[str]) -> Iterator[str]:
    """Yield a line for each place in the repository's files that has one of the turns."""
    files = [root / "README.md", *(file for folder in folders for file in sorted((root / folder).rglob("*")))]
    pattern = re.compile("|".join(f"({turn})" for turn in TURNS), re.IGNORECASE)
    for file in files:
        if file.suffix not in _ENDINGS or not file.is_file() or file.name in _OWN:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for found in pattern.finditer(line):
                better = next(text for turn, text in TURNS.items() if re.search(turn, found[0], re.IGNORECASE))
                yield f"{file.relative_to(root)}:{number}: {found[0]!r}: write {better}"
