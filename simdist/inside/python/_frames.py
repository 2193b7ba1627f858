"""Where a frame stands: whether an exception leaves a `with` statement there."""

from __future__ import annotations

import dis
import sys
from types import FrameType

from simdist.inside._facts import fact

__all__ = ["enters_exit"]

_EXIT = bytes(dis.opmap.get(name, 0) for name in ("PUSH_EXC_INFO", "WITH_EXCEPT_START"))


def enters_exit(frame: FrameType) -> bool:
    """True at the first instruction for an exception that leaves a `with` statement; the next one calls `__exit__`."""
    return frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 4 : 2] == _EXIT


@fact(
    "python.with_exits",
    what="two instructions for an exception that leaves a with statement: it is pushed, and __exit__ is called",
    source="CPython, Python/compile.c (Python/codegen.c since 3.14), compiler_with_except_finish",
    seen="3.11 to 3.13",
    feature="what a hanging rank holds in a with statement is not released when the rank is ended",
)
def _exits_are_known() -> str:
    class Manager:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> bool:
            caller = sys._getframe(1)
            last = caller.f_lasti - 2
            found.append(caller.f_code.co_code[last : last + 4 : 2] == _EXIT)
            return True

    found: list[bool] = []
    with Manager():
        raise ValueError
    return "" if found == [True] else "other instructions are there"
