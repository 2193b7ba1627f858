"""The `simdist` command of a process: `python -m simdist`, or by its name."""

import os
import sys

__all__ = ["entry"]

_INTERRUPTED = 128 + 2  # as a shell reports SIGINT


def entry() -> None:
    """Run the command; an interrupt ends it in one line and at once.

    Its runs are cleared up by then, and torch would take a second to leave in order.
    """
    try:
        from simdist.cli import main  # in here: an interrupt may come while it is imported

        main(prog_name="simdist")
    except SystemExit as leaving:
        if leaving.code != _INTERRUPTED:
            raise
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    entry()
