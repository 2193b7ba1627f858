"""What an entry of the corpus is, and the list of all."""

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

    `program(buggy)` is what a rank runs; with `layouts` `program(layout, buggy)`, for `simdist.agree`; with `resumes`
    `program(folder, buggy)`, for `simdist.resume`. `finder` is the judge that has to find it, "agree", "resume",
    "failure" where the run itself fails, or "" where nothing finds it yet. `rank` is the rank to blame, `line` a part
    of the line of the program that a finding must name; None where there is none in particular.
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
        """True if a finding has to name a rank or a line."""
        return self.rank is not None or self.line is not None

    @property
    def is_silent(self) -> bool:
        """True if nothing fails."""
        return self.finder != "failure"


ENTRIES: list[Entry] = []


def folder() -> Path:
    """An empty folder that all ranks of the run have."""
    return Path(os.environ["CORPUS_FOLDER"])


def entry(source: str, finder: str, **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the decorated program to the corpus."""

    def add(program: Callable[..., Any]) -> Callable[..., Any]:
        ENTRIES.append(Entry(program, source, finder, **about))
        return program

    return add
