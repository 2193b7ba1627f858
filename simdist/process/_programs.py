"""Programs outside the simulation that a rank started: when they end in virtual time, and what a run says of them.

A program does its work in real time, while virtual time stands still. In virtual time it takes as long as the run's
settings give every program (`program_ns`; without it a program ends at the moment at which it begins). A rank that
waits for it waits until then, and `poll` returns None before. From then on `poll` returns its exit code; if the program
still runs, `poll` waits in real time for its end. So what a rank sees of a program's length never depends on the
machine. A program that then runs on for 25 real seconds (a server, for which `program_ns` is too short) ends the whole
run with an error that no rank can catch. `wait`, `communicate` and blocking `os.waitpid` wait without this limit. They
let other threads of the rank go on meanwhile, which may write what the program reads. A timeout that they are given
applies to a program whose virtual time is over, too: it has passed when the program has run on for as many real
seconds, and for 10 at least, so that only a program that hangs or serves meets it. `poll` returns None from then on,
until the program really ends.

What a program writes to a pipe arrives in real time, too, while virtual time stands still (`wait_for_answer`). One that
waits for another rank, for its file or its connection, would wait for ever if the reader kept the baton. So a reader
that has waited for `_ANSWERS_S` real seconds lets the world go on, until nothing else can happen in it but timeouts. If
the answer does not come soon then, it lets some of these timeouts pass; at last the run ends with an error.

In doubt: the answer of a program that needs longer than that, though it waits for no rank, arrives at another moment of
virtual time than that of a quick one. A rank that polls, with a timeout or in an event loop, waits in real time until
the program has said nothing for 10 or 25 seconds, or for 5 within its virtual time; then the rank's time passes faster
than that of the program.

A signal that would end a process ends a program's virtual time, too. In doubt: a program that survives the signal, and
returns a code of its own, still ends at that time; one that had really ended before counts as killed.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from simdist.errors import SimdistError
from simdist.frames import is_ours, torch_folder, user_frame
from simdist.inside.python import original
from simdist.kernel import Task, TaskKilled, TaskState
from simdist.process._lateness import due_at
from simdist.process._process import SimProcess
from simdist.records import program_ended, program_started

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import StrOrBytesPath

    Command = StrOrBytesPath | Sequence[StrOrBytesPath]
    AnyPopen = subprocess.Popen[str] | subprocess.Popen[bytes]
    Running: TypeAlias = "AnyPopen | Spawned"

__all__ = ["Output", "Program", "Programs", "Spawned", "ends_within", "open_outputs", "real_timeout_s"]
__all__ += ["running_program", "wait_for_answer"]

_T = TypeVar("_T")
_really_poll: Any = vars(type(select.poll()))["poll"] if hasattr(select, "poll") else None
_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT)
_ALIVE = (TaskState.READY, TaskState.PARKED)
_STANDARD = str(Path(os.__file__).parent) + os.sep
_real_seconds, _sleep = time.monotonic, time.sleep  # noqa: TID251  # a program runs in real time
_ALONE_S = 0.5  # real seconds after which threads that wait for a program's output look whether there is some
_TOGETHER_S = 10.0  # after which the waiting thread waits alone again
_PATIENCE_S = 25.0  # real seconds that a program may take beyond its virtual time; less than what the watchdog grants
_ANSWERS_S = 5.0  # real seconds for which a reader of a program's output keeps the baton
_FIRST_NS = 1_000_000_000  # of virtual time that passes before the second look, then twice as much


class _End:
    """What a task waits on until a program ends."""

    __slots__ = ("name",)
    interruptible = True  # by signals

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> str:
        """In words."""
        return f"wait for the program {self.name!r}"

    def waits_for(self) -> Iterable[Task]:
        """No task: the program is outside the simulation."""
        return ()


class _Reading:
    """What a task waits on that waits for what a program has not done yet."""

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


class Output(io.FileIO):
    """The reading end of a pipe to which a program writes."""

    def answers(self, seconds: float) -> bool:
        """True if within so many real seconds there is something to read, or the program has closed its end."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(_really_poll(poll, seconds * 1000))


class Spawned:
    """A program that was started without `subprocess`: what `Program` asks of a `Popen`."""

    __slots__ = ("pid", "returncode")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end."""
        return self._wait(0)

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Program:
    """A program that a rank started."""

    __slots__ = (
        "_killed_by",
        "_overdue",
        "_silent_s",
        "begins_ns",
        "ends_ns",
        "name",
        "outputs",
        "pid",
        "popen",
        "process",
        "where",
    )

    def __init__(self, process: SimProcess, popen: Running, name: str, where: str, ends_ns: int) -> None:
        self.process = process
        self.popen = popen
        self.pid = popen.pid
        self.name = name
        self.where = where  # "train.py:12 in main", or nothing
        self.begins_ns = process.simulation.now_ns
        self.ends_ns = ends_ns  # in virtual time
        self.outputs: list[weakref.ref[Output]] = []  # the ends of pipes to which it writes
        self._killed_by = 0  # a signal in virtual time, whatever it really returns
        self._silent_s = 0.0  # real seconds for which its process has waited for output since the last
        self._overdue = False  # a wait for it has met its timeout after its virtual time, or it is to be killed

    def due_at(self, timeout_s: float) -> int:
        """The virtual time at which a wait for it times out that begins now."""
        return due_at(self.process, max(0, round(timeout_s * 1e9)))

    def pass_time(self, deadline_ns: int | None = None) -> bool:
        """Let virtual time pass until it ends; False if the deadline came first."""
        simulation = self.process.simulation
        while simulation.now_ns < self.ends_ns:
            if deadline_ns is not None and simulation.now_ns >= deadline_ns:
                return False
            self.park(deadline_ns)
        return True

    def ends_in_time(self, timeout_s: float) -> bool:
        """After its virtual time: wait in real time for its end; False if the timeout came first."""
        began_s, pause_s, limit_s = original(_real_seconds)(), 0.0005, real_timeout_s(timeout_s)
        while not self.has_really_ended():
            waited_s = original(_real_seconds)() - began_s
            if waited_s >= limit_s:
                return False
            if waited_s > _ALONE_S:
                self._let_others_look()
            original(_sleep)(pause_s)
            pause_s = min(2 * pause_s, 0.005)
        return True

    def leave(self) -> None:
        """From now on who looks whether it has ended does not wait for its end."""
        self._overdue = True

    def outlasts(self, deadline_ns: int) -> None:
        """Let virtual time pass until the deadline of a wait, which it has outlasted in real time."""
        self._overdue = True
        simulation = self.process.simulation
        if simulation.now_ns < deadline_ns:
            simulation.sleep(deadline_ns - simulation.now_ns)

    @property
    def runs_on(self) -> bool:
        """True if a wait for it has met its timeout after its virtual time, and it has still not ended."""
        return self._overdue and not self.has_really_ended()

    @property
    def is_silent(self) -> bool:
        """True if it has said nothing for so long that nobody who polls waits for it any more: it may be a server."""
        return self._silent_s >= self._patience_s(_PATIENCE_S)

    def _patience_s(self, usual_s: float) -> float:
        """`usual_s` after its virtual time, when all should be said; less for a program that is said to run longer."""
        return usual_s if self.process.simulation.now_ns >= self.ends_ns else min(usual_s, _ANSWERS_S)

    def has_answered(self, answers: Callable[[float], _T], timeout_s: float | None) -> _T:
        """Return what `answers(seconds)` finds, which waits for so many real seconds at most: never long in all."""
        began_s = original(_real_seconds)()
        limit_s = min(_ANSWERS_S, self._patience_s(_PATIENCE_S) - self._silent_s)
        if timeout_s is not None:
            limit_s = min(timeout_s, self._patience_s(_TOGETHER_S) - self._silent_s)
        found = answers(max(0.0, limit_s))
        waited_s = original(_real_seconds)() - began_s
        self._silent_s = 0.0 if found and self._says_something() else self._silent_s + waited_s
        return found

    def _says_something(self) -> bool:
        outputs = [output for ref in self.outputs if (output := ref()) is not None and not output.closed]
        return any(output.answers(0) for output in outputs)

    def park(self, deadline_ns: int | None = None) -> None:
        """Park once: until its end in virtual time, until the deadline, or until something wakes the process."""
        process = self.process
        simulation = process.simulation
        task = simulation.check()
        until_ns = self.ends_ns if deadline_ns is None else min(self.ends_ns, deadline_ns)
        timer = simulation.call_at(until_ns, lambda: simulation.wake(task))
        try:
            simulation.park(_End(self.name))
        finally:
            timer.cancel()
        process.drain()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        now_ns = self.process.simulation.now_ns
        if number in _ENDING and now_ns < self.ends_ns:
            if number == signal.SIGKILL or self.has_really_ended():
                self._killed_by = int(number)
            self.ends_ns = now_ns
            self.process.wake()
        original(os.kill)(self.pid, number)

    def end(self, *, patient: bool) -> int:
        """Wait in real time for its end, after its virtual time is over; return its status as `os.waitpid` does.

        Unless `patient`, a program that runs on for too long ends the world.
        """
        self._wait_really(patient=patient)
        status = original(os.waitpid)(self.pid, 0)[1]
        self.ended(status)
        return self._killed_by or status

    def really_ends(self, *, patient: bool) -> int:
        """Likewise, but leave the status to be waited for again."""
        self._wait_really(patient=patient)
        found = original(os.waitid)(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        status = found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
        return self._killed_by or status

    def _wait_really(self, *, patient: bool) -> None:
        """Wait until it has ended. If patient, it may return before: the caller waits on with the baton, which the
        watchdog can report."""
        began_s, pause_s = original(_real_seconds)(), 0.0005
        if patient and not self._let_others_run():
            return
        passes_s, passes_ns = _ANSWERS_S, _FIRST_NS
        while not self.has_really_ended():
            waited_s = original(_real_seconds)() - began_s
            if patient and waited_s > _TOGETHER_S:
                return
            if waited_s > _PATIENCE_S:
                self._give_up()
            if patient and waited_s > passes_s:  # it may wait for what another thread does after a timeout
                passes_s, passes_ns = waited_s + _ALONE_S, 2 * passes_ns
                self._let_time_pass(passes_ns // 2)
            elif patient and waited_s > _ALONE_S:
                self._let_others_look()
            original(_sleep)(pause_s)
            pause_s = min(2 * pause_s, 0.005 if patient else 0.05)

    def _let_time_pass(self, duration_ns: int) -> None:
        simulation = self.process.simulation
        task = simulation.check()
        simulation.park_until_quiet(_Reading(self.name))
        if not self.has_really_ended():
            simulation.park(_Reading(self.name), simulation.now_ns + duration_ns)
        if task.doomed:
            raise TaskKilled
        self.process.drain()

    def _let_others_look(self) -> None:
        """Let the rank's other threads run, and those that poll look again."""
        self._wake_pollers()
        self._let_others_run()

    def _wake_pollers(self) -> None:
        for task in list(self.process.polling):
            self.process.simulation.wake(task)

    def _let_others_run(self) -> bool:
        """Let the rank's other threads, which may write to it, run at this moment of virtual time. False if there
        are none."""
        process = self.process
        others = [task for task in process.tasks if task.state in _ALIVE and task is not process.simulation.current]
        if others:
            process.simulation.sleep(0)
        return bool(others)

    def ended(self, status: int) -> None:
        """Record its end; `status` is the real one, which can't be asked for again."""
        process = self.process
        simulation = process.simulation
        del process.programs[self.pid]
        code = os.waitstatus_to_exitcode(self._killed_by or status)
        if isinstance(self.popen, Spawned):
            self.popen.returncode = code
        process.take_over()
        self._wake_pollers()
        simulation.bus.record(program_ended(simulation.now_ns, process.rank, self.name, code))

    def _give_up(self) -> NoReturn:
        error = SimdistError(
            f"rank {self.process.rank}: the program {self.name!r} has reached the end of its virtual time, and still "
            f"runs on for more than {_PATIENCE_S:g} real seconds; program_ns (in files program_time, of simdist launch "
            "--program-time) says how long the programs of ranks take, and one that runs until it is stopped "
            "needs more than that"
        )
        self.process.simulation.abort(error)

    def has_really_ended(self) -> bool:
        """True once the system says so."""
        waitid = original(os.waitid)
        return waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Programs:
    """The programs of a world, and how long each takes in virtual time."""

    def __init__(self) -> None:
        self.duration_ns = 0
        self.of_torch: set[int] = set()  # the pids of those that torch started for itself
        self._all: list[Program] = []
        self._connections: list[tuple[str, str, int]] = []

    def begin(self, process: SimProcess, popen: Running, args: Command, frame: FrameType | None) -> None:
        """Note a program that a rank has started, but not those that torch starts for itself, mostly compilers."""
        caller = _outside_of_standard_library(frame)
        if caller is not None and _is_torchs_own(caller.f_code.co_filename):
            self.of_torch.add(popen.pid)
            return
        simulation = process.simulation
        where = _line(user_frame(frame) or caller)
        program = Program(process, popen, _name(args), where, simulation.now_ns + self.duration_ns)
        process.programs[popen.pid] = program
        self._all.append(program)
        for task in list(process.polling):  # they may wait for what it says
            simulation.wake(task)
        simulation.bus.record(program_started(simulation.now_ns, process.rank, program.name, where))

    def connected(self, process: SimProcess, address: str, frame: FrameType | None) -> None:
        """Note a rank's connection to something outside the simulation."""
        where = _line(user_frame(frame) or _outside_of_standard_library(frame))
        self._connections.append((f"connection to {address}", where, process.rank))

    def started(self) -> list[tuple[str, str, int]]:
        """For each, and for each connection, its name, the line that started it, and the rank."""
        return [*((each.name, each.where, each.process.rank) for each in self._all), *self._connections]

    def end(self) -> None:
        """Kill the programs that still run: their world is over."""
        for program in self._all:
            if program.popen.poll() is None:
                program.popen.kill()
                program.popen.wait()
        self._all.clear()
        self._connections.clear()


def open_outputs(process: SimProcess) -> dict[int, Program]:
    """Return the descriptors from which a process may read what its running programs write."""
    known = [(program, output()) for program in process.programs.values() for output in program.outputs]
    return {each.fileno(): program for program, each in known if each is not None and not each.closed}


def running_program(process: SimProcess) -> Program | None:
    """The first program of a process that has not really ended."""
    return next((program for program in process.programs.values() if not program.has_really_ended()), None)


def wait_for_answer(process: SimProcess, program: Program, answers: Callable[[float], object]) -> None:
    """Wait until a program has written something, or has closed its end.

    `answers(seconds)` waits for so many real seconds at most, and returns whether it has. A program that says nothing
    for long ends the world.
    """
    simulation = process.simulation
    task = simulation.check()
    began_s, lets_pass_ns = original(_real_seconds)(), _FIRST_NS
    while not answers(_ANSWERS_S):
        if original(_real_seconds)() - began_s > _PATIENCE_S:
            error = SimdistError(
                f"rank {process.rank} reads from the program {program.name!r}, at {program.where}, which has said "
                f"nothing for {_PATIENCE_S:g} real seconds, in which nothing else happened on the ranks; does it wait "
                "for something that no rank does?"
            )
            simulation.abort(error)
        simulation.park_until_quiet(_Reading(program.name))
        if answers(_ANSWERS_S):
            break
        # The program may wait for what a task does after a timeout.
        simulation.park(_Reading(program.name), simulation.now_ns + lets_pass_ns)
        lets_pass_ns *= 2
    if task.doomed:
        raise TaskKilled
    process.drain()


def real_timeout_s(timeout_s: float) -> float:
    """The real seconds after which a wait for a program times out whose virtual time is over."""
    return max(timeout_s, _TOGETHER_S)


def ends_within(popen: AnyPopen, timeout_s: float) -> bool:
    """Wait in real time for a program that torch started for itself; False if it still runs after the timeout.

    Virtual time stands still: it must not show how long a compilation takes, or whether a cache has its result.
    """
    began_s, pause_s = original(_real_seconds)(), 0.0005
    while popen.poll() is None:
        if original(_real_seconds)() - began_s >= timeout_s:
            return False
        original(_sleep)(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return True


def _name(args: Command) -> str:
    """The name of its file, or of the first word of a shell's command: the rest may hold paths, which vary by run."""
    first = (
        args.split(None, 1)[:1]
        if isinstance(args, str | bytes)
        else [*([args] if isinstance(args, os.PathLike) else args)][:1]
    )
    return PurePath(os.fsdecode(first[0]).strip("'\"")).name if first else ""


def _line(frame: FrameType | None) -> str:
    return "" if frame is None else f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_torchs_own(path: str) -> bool:
    """True for code of torch, except torch.distributed: elastic starts the workers that a program asks for."""
    folder = torch_folder()
    return bool(folder) and path.startswith(folder) and not path.startswith(f"{folder}distributed{os.sep}")


def _outside_of_standard_library(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        is_ours(frame)
        or (frame.f_code.co_filename.startswith(_STANDARD) and "-packages" not in frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame
