"""Pages as files: read, found by name, searched."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER", "KINDS", "Hit", "Page", "close_to", "find", "pages", "search"]

FOLDER = Path(__file__).parent
# The kinds in the order in which readers need them; "" are the pages in no folder.
KINDS = ("", "tutorials", "how-to", "explanation", "reference")
_FENCE = re.compile(r"^(```|~~~)")


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        topic: the path below the folder of pages, without `.md`.
        title: the heading of the page.
        summary: the first paragraph, on one line.
        text: the whole page, as Markdown.
    """

    topic: str
    title: str
    summary: str
    text: str

    @property
    def kind(self) -> str:
        """The folder that the page is in, or an empty text."""
        return self.topic.rpartition("/")[0]

    @property
    def file(self) -> Path:
        """Where the page is."""
        return FOLDER / f"{self.topic}.md"


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of a page that has all the words of a search, and the heading above it."""

    page: Page
    heading: str
    line: str


def pages() -> list[Page]:
    """All pages: by kind, in the order of KINDS; within a kind as the start page links to them, the rest by topic."""
    read = [_read(file) for file in FOLDER.rglob("*.md")]
    start = next(page.text for page in read if page.topic == "index")
    places = {page.topic: start.find(f"({page.topic}.md)") % (len(start) + 1) for page in read} | {"index": -1}
    return sorted(read, key=lambda page: (KINDS.index(page.kind), places[page.topic], page.topic))


def _read(file: Path) -> Page:
    text = file.read_text(encoding="utf-8")
    blocks = [block for block in text.split("\n\n") if block.strip() and not block.startswith("<!--")]
    title = blocks[0].removeprefix("# ").strip()
    summary = " ".join(blocks[1].split()) if len(blocks) > 1 else ""
    return Page(file.relative_to(FOLDER).with_suffix("").as_posix(), title, summary, text)


def find(topic: str) -> list[Page]:
    """The pages that `topic` names: the one with this path or file name, else those whose path begins so or has it."""
    wanted = topic.strip("/").removesuffix(".md").lower().replace("_", "-").replace(" ", "-")
    everything = pages()
    for fits in (
        lambda page: page.topic.lower() == wanted,
        lambda page: page.topic.rpartition("/")[2].lower() == wanted,
        lambda page: page.kind == wanted,
        lambda page: page.topic.rpartition("/")[2].lower().startswith(wanted),
        lambda page: wanted in page.topic.lower(),
    ):
        if found := [page for page in everything if fits(page)]:
            return found
    return []


def close_to(topic: str) -> list[str]:
    """Topics that somebody may have meant by one that does not exist."""
    names = {page.topic.rpartition("/")[2]: page.topic for page in pages()}
    return [names[name] for name in difflib.get_close_matches(topic.lower(), list(names), n=3, cutoff=0.5)]


def search(words: str) -> Iterator[Hit]:
    """The lines with words that begin with each of `words`, in any case; else the sections that have them all.

    Lines that have several words as they stand go before all others: if there are any, there is nothing else. Code is
    searched as well. Pages come in their own order, those with a title that has the words first.
    """
    wanted = words.lower().split()
    if not wanted:
        return
    ranked = sorted(pages(), key=lambda page: not _has(f"{page.title} {page.topic}", wanted))
    if len(wanted) > 1:
        phrase = [" ".join(wanted)]
        exact = [hit for page in ranked for hit in _hits(page, phrase)]
        if exact:
            yield from exact
            return
    for page in ranked:
        yield from _hits(page, wanted)


def _has(text: str, wanted: list[str]) -> bool:
    return all(_begins(word).search(text) for word in wanted)


@functools.cache
def _begins(word: str) -> re.Pattern[str]:
    """Finds words that begin so: "all" is in "all_reduce", and not in "called"."""
    return re.compile(rf"(?<![^\W_]){re.escape(word)}", re.IGNORECASE)


def _hits(page: Page, wanted: list[str]) -> Iterator[Hit]:
    found = False
    for heading, lines in _sections(page):
        in_lines = [line for line in lines if _has(line, wanted)]
        for line in in_lines:
            found = True
            yield Hit(page, heading, line.strip())
        if not in_lines and _has("\n".join([heading, *lines]), wanted):
            found = True
            first = next((line for line in lines if any(_has(line, [word]) for word in wanted)), heading)
            yield Hit(page, heading, first.strip())
    if not found and _has(page.topic, wanted):
        yield Hit(page, page.title, page.summary)


def _sections(page: Page) -> Iterator[tuple[str, list[str]]]:
    heading, lines, in_code = page.title, list[str](), False
    for line in page.text.splitlines():
        in_code ^= _FENCE.match(line) is not None
        if line.startswith("#") and not in_code:
            yield heading, lines
            heading, lines = line.lstrip("#").strip(), []
        elif line.strip() and not line.startswith(("```", "<!--")):
            lines.append(line)
    yield heading, lines
