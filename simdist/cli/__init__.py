"""The `simdist` command: thin commands over `simdist.scenario` and `simdist.trace`.

Importing it loads neither torch nor the engine; a command imports its modules when it runs. Exit codes: 0 all
expectations hold, 1 one fails, 2 bad input, reported in one message on stderr without a traceback, 130 interrupted.
Equal runs print the same bytes to stdout, except for the last line, which has the real time.

`commands` has the commands' options, `_main.py` their exit codes and messages, `_summary.py` the text about a run.
"""

from simdist.cli._main import main

__all__ = ["main"]
