"""`simdist docs`: the pages in a terminal."""

from __future__ import annotations

import sys
from itertools import groupby

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.syntax import Syntax
from rich.text import Text

from simdist.cli._console import WIDTH, page
from simdist.cli._table import plain_table
from simdist.docs import Page, close_to, find, pages, search

__all__ = ["read"]

_HITS = 5  # for each page
_HEADINGS = {
    "": "start here",
    "tutorials": "tutorials: learn by doing",
    "how-to": "how-to: one task a page",
    "explanation": "explanation: how it works, and why",
    "reference": "reference: everything, generated from the code",
}


class _Code(CodeBlock):
    """A block of code whose lines stay whole, however narrow the terminal is, for copying."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in Syntax("", self.lexer_name, theme=self.theme).highlight(str(self.text).rstrip()).split("\n"):
            yield Text("  ", no_wrap=True, overflow="ignore", end="").append_text(line).append("\n")


class _Page(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code}  # noqa: RUF012 - as its base declares it


def read(topic: tuple[str, ...], words: str | None, *, plain: bool) -> int:
    """List the pages, show one, or search them; return the exit code: 2 for an unknown page, 1 for no hit."""
    if words is not None:
        return _search(words)
    if not topic:
        return _list(pages())
    wanted = " ".join(topic)
    found = find(wanted)
    if len(found) == 1:
        return _show(found[0], plain=plain)
    if found:
        return _list(found)
    if any(True for _ in search(wanted)):
        return _search(wanted)
    close = close_to(wanted)
    guess = f"; did you mean {' or '.join(close)}?" if close else "; simdist docs lists all pages"
    raise click.UsageError(f"there is no page {wanted!r}, and no page contains these words{guess}")


def _list(shown: list[Page]) -> int:
    with page() as console:
        for kind, group in groupby(shown, key=lambda each: each.kind):
            console.print(Text(_HEADINGS[kind], style="bold"))
            table = plain_table("", "")
            for each in group:
                table.add_row(f"  {each.topic.rpartition('/')[2]}", Text(each.title, style="dim"))
            console.print(table)
            console.print()
        console.print("read one: simdist docs TOPIC      search all: simdist docs --search WORDS")
    return 0


def _show(shown: Page, *, plain: bool) -> int:
    if plain:
        click.echo(shown.text, nl=False)
    elif sys.stdout.isatty():
        console = Console(width=min(Console().width, WIDTH + 4))
        with console.capture() as capture:
            console.print(_Page(shown.text, hyperlinks=False), crop=False)
        click.echo_via_pager(capture.get())  # which makes `less` show colours
    else:
        with page() as written:
            written.print(_Page(shown.text, hyperlinks=False), crop=False)
    return 0


def _search(words: str) -> int:
    hits = list(search(words))
    if not hits:
        click.echo(f"no page contains {words!r}", err=True)
        return 1
    with page() as console:
        for found, group in groupby(hits, key=lambda hit: hit.page.topic):
            lines = list(group)
            console.print(Text(found, style="bold"))
            for hit in lines[:_HITS]:
                console.print(
                    Text.assemble("  ", (f"{hit.heading}: ", "dim"), hit.line), no_wrap=True, overflow="ellipsis"
                )
            if len(lines) > _HITS:
                console.print(f"  and {len(lines) - _HITS} more lines")
        console.print("\nread one: simdist docs TOPIC")
    return 0
