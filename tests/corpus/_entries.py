"""The class of the corpus's entries, and the list of all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ENTRIES", "Entry", "entry", "folder"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A program, buggy and fixed.

    A rank runs `program(buggy)`; with `layouts` `program(layout, buggy)`, for `simdist.agree`; with `resumes`
    `program(folder, buggy)`, for `simdist.resume`. `finder` is the judge that must find the bug, or "agree", "resume",
    "failure" if the run itself fails, or "" if nothing finds it yet. A finding must name the rank `rank`, and the line
    of the program that contains `line`; None if it need not name one.
    """

    program: Callable[..., Any]
    source: str
    finder: str
    world_size: int = 3
    rank: int | None = None
    line: str | None = None
    layouts: tuple[Mapping[str, int], ...] = ()
    resumes: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The program's name."""
        return str(self.program.__name__)

    @property
    def names_a_place(self) -> bool:
        """True if a finding must name a rank or a line."""
        return self.rank is not None or self.line is not None

    @property
    def is_silent(self) -> bool:
        """True if the run itself does not fail."""
        return self.finder != "failure"


ENTRIES: list[Entry] = []


def folder() -> Path:
    """Return an empty folder, the same for all ranks of the run."""
    return Path(os.environ["CORPUS_FOLDER"])


def entry(source: str, finder: str, **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the decorated program to the corpus."""

    def add(program: Callable[..., Any]) -> Callable[..., Any]:
        ENTRIES.append(Entry(program, source, finder, **about))
        return program

    return add
