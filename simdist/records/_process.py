"""What happens to a process, and what its program does."""

from __future__ import annotations

from typing import Annotated

from simdist.records._record import Record, packer, record
from simdist.values import Duration, ListOf, Maybe, Text, Whole

__all__ = ["ChildEnded", "ChildStarted", "Ended", "Printed", "ProgramEnded", "ProgramStarted", "SamplesReported"]
__all__ += ["Slept", "Started", "StateReported", "StepBegun", "child_ended", "child_started", "ended", "printed"]
__all__ += ["program_ended", "program_started", "samples_reported", "slept", "started", "state_reported"]
__all__ += ["step_begun"]

_NUMBER, _TEXT = Maybe(Whole()), Maybe(Text())


@record("start")
class Started(Record):
    """A rank's process starts, in the `life`-th round of the world, counted from 0."""

    life: Annotated[int, _NUMBER]
    pid: Annotated[int, _NUMBER]
    host: Annotated[str, _TEXT]


@record("exit")
class Ended(Record):
    """A rank's process has ended: it returned, raised, exited, or was killed."""

    status: Annotated[str, _TEXT]
    exit_code: Annotated[int | None, _NUMBER]
    life: Annotated[int, _NUMBER]


@record("child-start")
class ChildStarted(Record):
    """The rank starts a process with `multiprocessing`."""

    pid: Annotated[int, _NUMBER]
    name: Annotated[str, _TEXT]


@record("child-exit")
class ChildEnded(Record):
    """A process that the rank started has ended."""

    pid: Annotated[int, _NUMBER]
    status: Annotated[str, _TEXT]
    exit_code: Annotated[int | None, _NUMBER]


@record("program-start")
class ProgramStarted(Record):
    """The rank starts a program outside the simulation, at the line `where` of the user's code."""

    name: Annotated[str, _TEXT]
    where: Annotated[str, _TEXT]


@record("program-exit")
class ProgramEnded(Record):
    """The rank learns that a program outside the simulation has ended."""

    name: Annotated[str, _TEXT]
    exit_code: Annotated[int, _NUMBER]


@record("sleep")
class Slept(Record):
    """A thread of the rank begins to sleep."""

    duration_ns: Annotated[int, Duration()]


@record("step")
class StepBegun(Record):
    """The program says that a training step begins (`simdist.step`)."""

    step: Annotated[int, _NUMBER]


@record("state")
class StateReported(Record):
    """The program reports its state (`simdist.state`): for each tensor its name and a hash, with a space between."""

    parts: Annotated[tuple[str, ...], ListOf(Text())]


@record("samples")
class SamplesReported(Record):
    """The program reports which samples it uses in the present step (`simdist.samples`)."""

    epoch: Annotated[int, _NUMBER]
    samples: Annotated[tuple[int, ...], ListOf(Whole())]


@record("output")
class Printed(Record):
    """The program wrote a line of `size` bytes to "stdout" or "stderr"; `crc` is their checksum.

    Both are computed without the folders of code files, which differ between machines.
    """

    stream: Annotated[str, _TEXT]
    size: Annotated[int, _NUMBER]
    crc: Annotated[int, _NUMBER]


started = packer(Started)
ended = packer(Ended)
child_started = packer(ChildStarted)
child_ended = packer(ChildEnded)
program_started = packer(ProgramStarted)
program_ended = packer(ProgramEnded)
slept = packer(Slept)
step_begun = packer(StepBegun)
state_reported = packer(StateReported)
samples_reported = packer(SamplesReported)
printed = packer(Printed)
