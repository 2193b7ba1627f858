"""What a rank reads from a program that it started, line by line: `Popen(..., stdout=PIPE).stdout.readline()`.

A program that needs nothing from the ranks answers in real time, while virtual time stands still. One that waits for
another rank, for its file or its connection, would wait for ever if the reader kept the baton. So a reader that has
waited for `_ALONE_S` real seconds lets the world go on, until nothing else can happen in it but timeouts. If the answer
does not come soon then, it lets some of these timeouts pass; at last the run ends with an error.

In doubt: the answer of a program that needs longer than `_ALONE_S`, though it waits for no rank, arrives at another
moment of virtual time than that of a quick one. And a rank that polls for output at intervals is given up like one that
only waits, for its time passes faster than the program's.
"""

from __future__ import annotations

import io
import os
import select
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simdist.errors import SimdistError
from simdist.inside.python import original
from simdist.kernel import Task, TaskKilled
from simdist.process._process import SimProcess
from simdist.process._programs import Program
from simdist.process._runtime import current_process

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from simdist.process._programs import AnyPopen

__all__ = ["let_others_run_while_reading"]

_ALONE_S = 5.0
_PATIENCE_S = 25.0  # in all; less than what the watchdog grants
_FIRST_NS = 1_000_000_000  # of virtual time that passes before the second look, then twice as much
_real_seconds = time.monotonic  # noqa: TID251  # a program runs in real time
_really_poll: Any = vars(type(select.poll()))["poll"] if hasattr(select, "poll") else None


class _Reading:
    """What a task waits on that reads what a program has not written yet."""

    __slots__ = ("_name",)
    interruptible = True  # by signals
    timed = False

    def __init__(self, name: str) -> None:
        self._name = name

    def describe(self) -> str:
        """In words."""
        return f"read from the program {self._name!r}"

    def waits_for(self) -> Iterable[Task]:
        """No task in particular: the program may wait for any."""
        return ()


class _Output(io.FileIO):
    """The reading end of a pipe to which a program writes."""

    _program = _where = ""

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
        if process is None or process.polls_really or self.closed or self._answers(0):
            return
        simulation = process.simulation
        task = simulation.check()
        began_s, lets_pass_ns = original(_real_seconds)(), _FIRST_NS
        while not self._answers(_ALONE_S):
            if original(_real_seconds)() - began_s > _PATIENCE_S:
                self._give_up(process)
            simulation.park_until_quiet(_Reading(self._program))
            if self._answers(_ALONE_S):
                break
            # The program may wait for what a task does after a timeout.
            simulation.park(_Reading(self._program), simulation.now_ns + lets_pass_ns)
            lets_pass_ns *= 2
        if task.doomed:
            raise TaskKilled
        process.drain()

    def _answers(self, seconds: float) -> bool:
        """True if within so many real seconds there is something to read, or the program has closed its end."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(_really_poll(poll, seconds * 1000))

    def _give_up(self, process: SimProcess) -> None:
        process.simulation.abort(
            SimdistError(
                f"rank {process.rank} reads from the program {self._program!r}, at {self._where}, which has said "
                f"nothing for {_PATIENCE_S:g} real seconds, in which nothing else happened on the ranks; does it wait "
                "for something that no rank does?"
            )
        )


def let_others_run_while_reading(process: SimProcess, popen: AnyPopen) -> None:
    """Replace the readers of the program's pipes by ones that let other tasks run."""
    program = process.programs.get(popen.pid)
    if _really_poll is None or program is None:
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
    made._program, made._where = program.name, program.where
    return made
