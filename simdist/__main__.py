"""The `simdist` command of a process: `python -m simdist`, or by its name."""

import atexit
import ctypes
import errno
import os
import sys
import threading
from types import FrameType
from typing import Any

__all__ = ["entry"]

_INTERRUPTED = 128 + 2  # as a shell reports SIGINT
_DEEPEST = ("<module>", "_run_code", "_run_module_as_main")  # of runpy: what `python -m` calls
_atexit: Any = atexit  # these have what the stubs leave out
_threading: Any = threading


def entry() -> None:
    """Run the command, and end the process as soon as all is done.

    Python would look through all of torch before it ends, which takes as long as many a command. An interrupt ends it in
    one line: its runs are cleared up by then.
    """
    try:
        from simdist.cli import main  # in here: an interrupt may come while it is imported

        main(prog_name="simdist")
    except SystemExit as leaving:
        if leaving.code != _INTERRUPTED:
            if isinstance(leaving.code, int) and _is_all_that_runs(sys._getframe(1)):
                _leave(leaving.code)
            raise
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"simdist: {error}\n")
        os._exit(1)  # what could not be written would be tried again
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _is_all_that_runs(frame: FrameType | None) -> bool:
    """False under a profiler, a debugger, `python -i` and all else that has still something to do."""
    if os.name != "posix" or sys.flags.inspect or sys.gettrace() or sys.getprofile():
        return False
    callers = []
    while frame is not None:
        callers.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(callers) in (_DEEPEST[:1], _DEEPEST)


def _leave(code: int) -> None:
    """Do what the interpreter does at its end, but for taking itself apart. Returns if something can't be written."""
    _threading._shutdown()
    _atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python tries again, and reports it in its own way
    ctypes.CDLL(None).fflush(None)  # what C code has printed
    os._exit(code)


if __name__ == "__main__":
    entry()
