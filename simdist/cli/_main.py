"""The command `simdist`, its error messages and its exit codes."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from simdist.cli import commands
from simdist.cli._console import say
from simdist.cli._interrupts import interruption
from simdist.errors import SimdistError
from simdist.values import plain

__all__ = ["main"]


class _Commands(click.Group):
    """Turns simdist's errors about its input into one message and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as error:
            error.message = plain(error.message)  # type: ignore[misc]  # final in type only
            raise

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.ClickException as error:
            error.message = plain(error.message)  # type: ignore[misc]  # final in type only
            raise
        except SimdistError as error:
            from simdist.errors import InternalError, StallError

            say(str(error), err=True)
            context.exit(1 if isinstance(error, InternalError | StallError) else 2)
        except KeyboardInterrupt as error:
            word, code = interruption(error)
            click.echo(word, err=True)
            context.exit(code)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="simdist", message="%(prog)s %(version)s")
def main() -> None:
    """Run torch.distributed programs in one process, in virtual time, with injected faults.

    Exit codes: 0 every expectation holds, 1 one fails, 2 bad input, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that the terminal lacks must not end a run
            stream.reconfigure(errors="replace")


for _command in commands.__all__:
    main.add_command(getattr(commands, _command))
