"""Where text goes: colours and width on a terminal, plain and always the same in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

__all__ = ["WIDTH", "marks", "page"]

WIDTH = 96


@contextmanager
def page() -> Iterator[Console]:
    """A console that takes text as it is, without markup; what it got goes to stdout at the end, in one piece."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        yield console
    # Tables fill their lines with spaces, which are a nuisance in a file.
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def marks(encoding: str) -> tuple[str, str]:
    """The marks for what holds and what does not, as far as `encoding` goes."""
    try:
        "✓✗".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return "ok  ", "FAIL"
    return "✓", "✗"
