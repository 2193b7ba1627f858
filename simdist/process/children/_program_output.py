"""What a rank reads from a program that it started, line by line: `Popen(..., stdout=PIPE).stdout.readline()`.

How long a reader waits, `wait_for_answer` says.
"""

from __future__ import annotations

import io
import os
import select
import weakref
from typing import TYPE_CHECKING, Any

from simdist.process._process import SimProcess
from simdist.process._programs import Output, Program, wait_for_answer
from simdist.process._runtime import current_process

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from simdist.process._programs import AnyPopen

__all__ = ["let_others_run_while_reading"]

_POLLS = hasattr(select, "poll")


class _Output(Output):
    """The reading end of a pipe to which a program writes."""

    _program: Program

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read what is there; wait until something is."""
        self._wait()
        return super().readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        """Likewise; without a size, all until the program closes its end."""
        if size is None or size < 0:
            return self.readall()
        self._wait()
        return super().read(size)

    def readall(self) -> bytes:
        """All until the program closes its end."""
        parts: list[bytes] = []
        while True:
            self._wait()
            part = super().read(1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)

    def _wait(self) -> None:
        process = current_process()
        if process is None or process.polls_really or self.closed or self.answers(0):
            return
        wait_for_answer(process, self._program, self.answers)


def let_others_run_while_reading(process: SimProcess, popen: AnyPopen) -> None:
    """Replace the readers of the program's pipes by ones that let other tasks run."""
    program = process.programs.get(popen.pid)
    if not _POLLS or program is None:
        return
    for name in ("stdout", "stderr"):
        stream = getattr(popen, name)
        if stream is not None:
            setattr(popen, name, _over(stream, program))


def _over(stream: Any, program: Program) -> Any:
    """The same kind of stream, over an end that lets others run."""
    if isinstance(stream, io.TextIOWrapper):
        encoding, errors = stream.encoding, stream.errors
        return io.TextIOWrapper(_over(stream.detach(), program), encoding=encoding, errors=errors)
    if isinstance(stream, io.BufferedReader):
        return io.BufferedReader(_over(stream.detach(), program))
    number = os.dup(stream.fileno())
    stream.close()
    made = _Output(number, "rb")
    made._program = program
    program.outputs.append(weakref.ref(made))
    return made
