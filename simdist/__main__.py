"""The `simdist` command of a process: `python -m simdist`, or by name."""

import errno
import os
import sys
from collections.abc import Callable
from types import FrameType

__all__ = ["entry"]

_INTERRUPTED = 128 + 2  # as a shell reports SIGINT
_DEEPEST = ("<module>", "_run_code", "_run_module_as_main")  # of runpy, as called by `python -m`


def entry() -> None:
    """Run the command, and end the process as soon as it is done.

    Python would visit all of torch before its end, which takes as long as many commands. An interrupt ends the process
    with one line, after the cleanup of its runs.
    """
    _open_closed_streams()
    try:
        from simdist.cli import main  # in here: an interrupt may come while it is imported

        _run(main)
    except SystemExit as leaving:
        if leaving.code != _INTERRUPTED:
            from simdist.inside.python import end_process

            if isinstance(leaving.code, int) and _is_all_that_runs(sys._getframe(1)):
                end_process(leaving.code)
            raise
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that were closed before Python began, as by a shell's `>&-`.

    Otherwise the next files that the process opens have their descriptors, and get what C code and programs print.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _run(main: Callable[..., object]) -> None:
    try:
        main(prog_name="simdist")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"simdist: {error}\n")
        try:
            sys.stdout.flush()
        except OSError:  # else Python would write the rest again, and report the error again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _is_all_that_runs(frame: FrameType | None) -> bool:
    """False under a profiler, a debugger, `python -i` and any other caller that has more to do."""
    if sys.flags.inspect or sys.gettrace() or sys.getprofile():
        return False
    callers = []
    while frame is not None:
        callers.append(frame.f_code.co_name)
        frame = frame.f_back
    return tuple(callers) in (_DEEPEST[:1], _DEEPEST)


if __name__ == "__main__":
    entry()
