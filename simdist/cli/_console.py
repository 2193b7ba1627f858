"""Consoles for all output: colours and width on a terminal; plain and always the same in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from simdist.values import plain

__all__ = ["WIDTH", "marks", "page", "say"]

WIDTH = 96


class _PlainConsole(Console):
    """A console that shows control characters as escapes, in texts of any origin."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else plain(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def say(text: str, *, err: bool = False) -> None:
    """Print one message, with control characters as escapes."""
    click.echo(plain(text), err=err)


@contextmanager
def page() -> Iterator[Console]:
    """Yield a console that prints text as it is, without markup; its output goes to stdout at the end, in one piece."""
    console = _PlainConsole(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        yield console
    # Tables fill their lines with spaces, which are unwanted in a file.
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def marks(encoding: str) -> tuple[str, str]:
    """Return the marks for success and failure, as far as `encoding` has them."""
    try:
        "✓✗".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "ok  ", "FAIL"
    return "✓", "✗"
