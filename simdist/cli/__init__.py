"""The `simdist` command: thin commands over `simdist.scenario` and `simdist.trace`.

Importing it loads neither torch nor the engine; a command imports what it needs when it runs. Exit codes: 0 all
expectations hold, 1 one fails, 2 bad input, reported in one message on stderr without a traceback, 130 interrupted.
What goes to stdout is the same for equal runs, byte for byte, but for the last line, which has the real time.

`commands` has the commands' options, `_main.py` how they end, `_summary.py` what a run prints.
"""

from simdist.cli._main import main

__all__ = ["main"]
