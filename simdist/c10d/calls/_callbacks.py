"""Errors of the callbacks of futures, as torch's C++ passes them on (pybind_utils.h of torch 2.11 to 2.15).

A future of `then` fails with a RuntimeError if its callback raised: the text names the error and the stack. An error of
`add_done_callback` is logged and goes no further. Torch writes the stack of the thread that ran the callback. If the
future was done already, this is the caller's thread. Otherwise Gloo's own thread runs the callback, with no stack below
it; here the rank's thread runs it, and the rest of its stack is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import torch

from simdist.c10d.calls._log import log
from simdist.errors import SimdistError
from simdist.frames import is_ours
from simdist.inside.torch import Place
from simdist.kernel import TaskKilled
from simdist.process import SimProcess

__all__ = ["log_error", "passed_on"]

_SAID = "Got the following error when running the callback: "
_UNSAID = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def passed_on(error: BaseException, *, at_once: bool) -> BaseException:
    """What a future of `then` fails with; `at_once` if the other future was done before.

    Called by the function that called the callback. The end of a task and errors of simdist stay as they are.
    """
    if isinstance(error, SimdistError | TaskKilled):
        return error
    return RuntimeError(_SAID + _described(error, None if at_once else sys._getframe(1)))


def log_error(process: SimProcess, error: BaseException, *, at_once: bool) -> None:
    """Log an error of `add_done_callback`; likewise.

    Raises:
        BaseException: the error, if it is the end of a task or one of simdist's.
    """
    if isinstance(error, SimdistError | TaskKilled):
        raise error
    log(process, "E", _SAID + _described(error, None if at_once else sys._getframe(1)), Place.CALLBACK_FAILED)


def _described(error: BaseException, outside: FrameType | None) -> str:
    """As pybind11's `error_already_set::what`, with the frames inside of `outside`."""
    unsaid: BaseException | None = None
    try:
        text = str(error)
    except BaseException as another:
        text, unsaid = _UNSAID, another
    notes = getattr(error, "__notes__", ())
    if notes:
        text += "\n".join((f"\n__notes__ (len={len(notes)}):", *notes))
    # From Python 3.12 on the name says that there are notes.
    noted = "[WITH __notes__]" if sys.version_info >= (3, 12) and hasattr(error, "__notes__") else ""
    said = f"{type(error).__name__}{noted}: {text or '<EMPTY MESSAGE>'}"
    trace = error.__traceback__
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        said += "\n\nAt:\n" + "".join(_lines(trace.tb_frame, outside))
    if unsaid is not None:
        said += f"\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {_described(unsaid, outside)}"
    return said


def _lines(frame: FrameType | None, outside: FrameType | None) -> Iterator[str]:
    while frame is not None and frame is not outside:
        # Futures of groups have no Python class over them in torch; here they have one, below simdist's.
        inner = frame.f_code.co_filename == torch.futures.__file__ and frame.f_back and is_ours(frame.f_back)
        if not (inner or is_ours(frame)):
            yield f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n"
        frame = frame.f_back
