"""One simulated process: a rank in one of its lives.

Circle of imports: a process owns its threads, programs, masks of signals and environment, and each of these acts on it.
"""

from __future__ import annotations

import builtins
import functools
import os
import signal as _signal
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from simdist.cluster import Host
from simdist.frames import same_everywhere
from simdist.kernel import EVERYTHING, Simulation, Task, TaskKilled, TaskState, Timer
from simdist.records import child_ended, ended, printed

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import TextIO

    from simdist.process._programs import Program
    from simdist.process._randomness import States
    from simdist.process._signal_masks import SignalMasks
    from simdist.process._stream_files import Descriptor
    from simdist.process.stdlib._environ import Encoded
    from simdist.process.threads._threads import Threads

    Streams = tuple[
        TextIO, TextIO, Callable[[type[BaseException], BaseException, TracebackType | None], object]
    ]  # `sys.stdout`, `sys.stderr`, `sys.excepthook`
    Handler = Callable[[int, FrameType | None], object] | int | None  # of a signal; a number is one of `Handlers`

__all__ = ["ORPHAN_NS", "OS_ENVIRON", "SimProcess", "process_of"]

OS_ENVIRON = os.environ
"""The object in which each process finds its own variables, until it puts another in its place."""

# Signals that do nothing to a process without a handler; 0 only checks that it exists.
_HARMLESS = (0, _signal.SIGCHLD, _signal.SIGURG, _signal.SIGWINCH, _signal.SIGCONT, _signal.SIGSTOP)

_EXITED, _KILLED, _OF_A_THREAD = 1, 2, -6  # causes of signals: `CLD_EXITED`, `CLD_KILLED`, `SI_TKILL`

Status = Literal["running", "returned", "raised", "exited", "killed"]


ORPHAN_NS = 30_000_000_000  # after which a process whose parent has ended is killed, as if its machine were reused


def _withdraw(timer: Timer, process: SimProcess) -> None:
    timer.cancel()


class SimProcess:
    """A rank's process.

    `end_listeners` are called, in order, when it has ended: its connections close then. `inbox` holds callbacks that
    must run on one of its own threads, when that next gets the baton.
    """

    __slots__ = (
        "alarm",
        "alarm_interval_ns",
        "alarm_ns",
        "argv",
        "at_exit",
        "began_ns",
        "between",
        "children",
        "cores",
        "counted_ns",
        "death_signal",
        "descriptors",
        "dwelling_since_ns",
        "dwelt_ns",
        "echo",
        "end_listeners",
        "ended_ns",
        "entropy",
        "environ",
        "environ_object",
        "epoch_ns",
        "exception",
        "exit_code",
        "finalizers",
        "finalizing",
        "handled",
        "handlers",
        "host",
        "inbox",
        "laid_over",
        "last_operation",
        "least_s",
        "life",
        "lineage",
        "looked_ns",
        "masks",
        "on_forget",
        "operations",
        "parent",
        "parent_pid",
        "partial",
        "pending",
        "pid",
        "place",
        "polling",
        "programs",
        "random_states",
        "rank",
        "really_polling",
        "resume_listeners",
        "seen_s",
        "shown_ns",
        "shows_last_lines",
        "simulation",
        "status",
        "stderr",
        "stdout",
        "streams",
        "tasks",
        "threads",
        "torch_state",
        "value",
        "wakeup_descriptor",
        "warned",
    )

    def __init__(
        self,
        simulation: Simulation,
        *,
        rank: int,
        pid: int,
        life: int,
        host: Host,
        parent_pid: int = 1,
        epoch_ns: int = 0,
        environ: dict[Encoded, Encoded],
        place: int | None = None,
        argv: list[str],
        echo: Callable[[int, int, str, str], None] | None = None,
        ignored: Iterable[int] = (),
    ) -> None:
        self.simulation = simulation
        self.rank = rank
        self.place = rank if place is None else place  # in the cluster; ranks are numbered anew when a host is lost
        self.pid = pid
        self.parent_pid = parent_pid  # the launcher's on its host, or that of the process that started this one
        self.parent: SimProcess | None = None  # None for a rank's own process
        self.children: dict[int, SimProcess] = {}  # by pid, until their end was waited for
        self.programs: dict[int, Program] = {}  # outside the simulation that it started, by pid, until they have ended
        self.on_forget: Callable[[], None] | None = None  # a child's: called when its world is gone
        self.lineage = ""  # which child of which child it is
        self.death_signal = 0  # sent to it when its parent has ended
        self.began_ns = simulation.now_ns
        self.cores: set[int] | None = None  # that it chose to run on; all that the host may use if None
        self.looked_ns = -1  # what its `time.perf_counter` showed last
        self.counted_ns = -1  # what its `time.monotonic` showed last
        self.shown_ns = -1  # what its `time.time` showed last
        self.dwelt_ns = self.dwelling_since_ns = -1  # when a look at its calendar let time pass last, and since when
        self.seen_s = [-1.0, -1.0, -1.0]  # what each of these three showed last as a float
        self.least_s = [0.0, 0.0, 0.0]  # what each of them shows at least, after a sleep
        self.epoch_ns = epoch_ns  # what a calendar without skew shows at virtual time 0: nanoseconds since 1970
        self.life = life
        self.host = host
        host.residents.append(self)
        self.environ = environ
        self.environ_object = OS_ENVIRON  # its `os.environ`
        self.argv = argv
        # Its sys.stdout, sys.stderr and sys.excepthook; None: those that every process begins with.
        self.streams: Streams | None = None
        self.tasks: list[Task] = []  # its threads of control, the main one first
        self.polling: dict[Task, None] = {}  # its tasks that wait for file descriptors
        self.threads: Threads | None = None  # what `threading` knows of them; None until it is needed
        self.status: Status = "running"
        self.exit_code: int | None = None
        self.value: object = None
        self.exception: BaseException | None = None
        self.ended_ns = 0
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.echo = echo  # called with rank, time, stream and text of each line that it writes
        self.shows_last_lines = False  # `echo` also gets a last line without a newline
        self.descriptors: dict[str, Descriptor] = {}  # the files behind its streams, made when asked for
        self.laid_over: dict[int, int] = {}  # the descriptors laid over its standard ones, by number
        self.partial = {"stdout": "", "stderr": ""}  # the last line of each stream, while it has no newline
        self.operations = 0
        self.last_operation: tuple[str, int, str] | None = None  # name, sequence number, group
        self.handlers: dict[int, Handler] = {
            int(_signal.SIGINT): _signal.default_int_handler
        }  # what it has set, by signal
        self.handlers.update(dict.fromkeys(ignored, _signal.SIG_IGN))
        self.warned: set[tuple[object, ...]] = set()  # the warnings that it has been shown
        self.pending: list[int] = []  # signals whose handlers have not run
        self.between: list[tuple[Task, Callable[[], object]]] = []  # what tasks are to do when their waits are over
        self.handled = 0  # how many handlers have run
        self.masks: SignalMasks | None = None  # of signals that threads block; None: none ever did
        self.alarm: Timer | None = None  # of `signal.alarm`, which rings at `alarm_ns`, and then at intervals
        self.alarm_ns = self.alarm_interval_ns = 0
        self.really_polling: set[Task] = set()  # tasks that wait for what comes from outside: a program's output
        self.wakeup_descriptor = -1  # of `signal.set_wakeup_fd`
        self.finalizers: list[weakref.finalize[..., object]] = []
        self.at_exit: list[tuple[Callable[..., object], tuple[object, ...], dict[str, object]]] = []
        self.finalizing = False  # what `atexit` was given runs, or has run
        self.entropy: dict[str, int] = {}  # how often it has drawn, by stream
        self.random_states: States  # set before its first turn
        self.torch_state: Any = None  # belongs to the c10d layer
        self.end_listeners: dict[Callable[[SimProcess], None], None] = {}
        self.resume_listeners: list[Callable[[], None]] = []  # called once, when it goes on after a stop
        self.inbox: list[Callable[[], None]] = []

    def calendar_ns(self, time_ns: int) -> int:
        """What the wall clock of its host shows at a virtual time: nanoseconds since 1970."""
        skew_ns = self.host.skew_ns
        return self.epoch_ns + time_ns + (0 if skew_ns is None else skew_ns(time_ns))

    @property
    def polls_really(self) -> bool:
        """True for the running task if it waits for what comes from outside the simulation."""
        return bool(self.really_polling) and self.simulation.current in self.really_polling

    @property
    def running(self) -> bool:
        """False once it has returned, raised, exited or been killed."""
        return self.status == "running"

    @property
    def has_baton(self) -> bool:
        """True if the caller is this process's running task."""
        current = self.simulation.current
        return current in self.tasks and current.state is TaskState.RUNNING and self.simulation.owns_this_thread()

    @property
    def main(self) -> Task | None:
        """The task that the process began with; None before it began, and when its world is gone."""
        return self.tasks[0] if self.tasks else None

    @property
    def oldest(self) -> SimProcess:
        """The rank's own process: this one, or the one that it descends from."""
        process = self
        while process.parent is not None:
            process = process.parent
        return process

    def spawn(self, function: Callable[[], None], name: str) -> Task:
        """Start a task of this process: first the main one, then others, whose `parent` is the calling task."""
        task = self.simulation.spawn(function, name, self)
        if self.masks is not None:
            self.masks.begin(self.simulation.current if self.tasks else None, task)
        self.tasks.append(task)
        return task

    def task_in(self, wait: object) -> Task | None:
        """The task that is parked on `wait`; the main one if none is."""
        return next((task for task in self.tasks if task.waiting is wait), self.main)

    def wake(self) -> None:
        """Wake every task that is parked: each looks again whether it may go on."""
        for task in self.tasks:
            self.simulation.wake(task)

    def end(self, status: Status, exit_code: int, exception: BaseException | None = None) -> None:
        """Mark the process as ended, call the listeners, and stop its tasks; does nothing to one that has ended.

        A task of its own that calls this goes on, to its return.
        """
        if not self.running:
            return
        simulation = self.simulation
        self.flush()
        self.status = status
        self.exit_code = exit_code
        self.exception = exception
        self.ended_ns = simulation.now_ns
        if self.parent is None and self.rank >= 0:  # a launcher has no rank, and nothing is recorded of it
            simulation.bus.record(ended(simulation.now_ns, self.rank, status, exit_code, self.life))
        elif self.parent is not None:
            simulation.bus.record(child_ended(simulation.now_ns, self.rank, self.pid, status, exit_code))
        if simulation.policy.touch is not None and (self.end_listeners or status != "returned" or self.parent):
            simulation.policy.touch(EVERYTHING, writes=True)
        for listener in list(self.end_listeners):
            listener(self)
        self.end_listeners.clear()
        for task in self.tasks:
            if task.state is not TaskState.RUNNING:
                simulation.kill(task)
        if self.parent is not None and self.parent.running:
            self.parent.wake()
            code = self.exit_code or 0
            how = _EXITED if code >= 0 else _KILLED
            self.parent.signal(_signal.SIGCHLD, None, (how, self.pid, abs(code)))

    def on_parent_end(self, parent: SimProcess) -> None:
        """Handle the end of the process that started this one."""
        self.parent_pid = 1
        if self.death_signal and self.running:
            self.signal(self.death_signal)
        if self.running:
            # An orphan that nothing ends would run for ever, such as a worker that did not watch its parent yet.
            simulation = self.simulation
            end = simulation.call_at(simulation.now_ns + ORPHAN_NS, functools.partial(self.kill, _signal.SIGKILL))
            self.end_listeners[functools.partial(_withdraw, end)] = None

    def run_at_exit(self, print_exception: Callable[[SimProcess, BaseException], None]) -> None:
        """Call what `atexit` was given, the last first. What one raises is printed."""
        self.finalizing = True
        while self.at_exit:
            function, args, kwargs = self.at_exit.pop()
            try:
                function(*args, **kwargs)
            except TaskKilled:
                raise
            except BaseException as raised:
                sys.stderr.write(f"[rank{self.rank}]: Exception ignored in atexit callback {function!r}:\n")
                print_exception(self, raised)

    def check_finalizing(self, what: str) -> None:
        """Raise that this "can't ... at interpreter shutdown" if it is so late, as Python does since 3.12."""
        # Python 3.12.0 and 3.12.1 do so as soon as the main thread has ended, later ones when all but daemons have.
        if self.finalizing and sys.version_info >= (3, 12):
            raise getattr(builtins, "PythonFinalizationError", RuntimeError)(f"can't {what} at interpreter shutdown")

    def kill(self, signal: int) -> None:
        """Die by a signal. The process may be the running one; then this does not return."""
        if self.running:
            self.end("killed", -int(signal))
            self._stop_running()

    def exit(self, code: int) -> None:
        """Leave at once, as `os._exit` does. Same rules as `kill`."""
        if self.running:
            self.end("exited", code & 0xFF)
            self._stop_running()

    def stop(self) -> None:
        """Stop as under SIGSTOP, connections open; `resume` lets it go on."""
        for task in self.tasks:
            self.simulation.pause(task)

    def resume(self) -> None:
        """Go on as after SIGCONT."""
        for task in self.tasks:
            self.simulation.resume(task)
        listeners, self.resume_listeners = self.resume_listeners, []
        for listener in listeners:
            listener()

    def signal(self, number: int, thread: Task | None = None, origin: tuple[int, int, int] | None = None) -> None:
        """Receive a signal: run its handler on the main task, or do what the operating system does by default.

        The signal may be for one `thread`; `origin` is why it came, from which process, and with what status.
        """
        if self.masks is not None and self.masks.keeps(number, thread, origin or (0, self.parent_pid, 0)):
            return
        if number == _signal.SIGSTOP:
            self.stop()
        elif number == _signal.SIGCONT:
            self.resume()
        elif number != _signal.SIGKILL and (handler := self.handlers.get(number, _signal.SIG_DFL)) != _signal.SIG_DFL:
            if handler != _signal.SIG_IGN:
                self.pending.append(int(number))
                main = self.main
                if main is None or (self.masks is not None and number in self.masks.mask_of(main)):
                    return
                if getattr(main.waiting, "interruptible", False):
                    self.simulation.wake(main)
        elif self.dies_of(number):
            self.kill(number)

    def signal_thread(self, number: int, thread: Task) -> None:
        """Send a signal to a thread of this process; called by one of its threads."""
        self.signal(number, thread, (_OF_A_THREAD, self.pid, 0))
        if number == _signal.SIGSTOP:
            self.simulation.sleep(0)  # the running task stops where it parks
        self.handle_signals()

    def dies_of(self, number: int) -> bool:
        """True if a signal would end it."""
        if number == _signal.SIGKILL:
            return True
        return number not in _HARMLESS and self.handlers.get(number, _signal.SIG_DFL) == _signal.SIG_DFL

    def deliver(self, callback: Callable[[], None]) -> None:
        """Run `callback` on a thread of the process: on the first that gets the baton and handles the inbox."""
        self.inbox.append(callback)
        self.wake()

    def drain(self) -> None:
        """Run what was delivered, and handlers of signals. Called on the process's own thread."""
        if self.pending:
            self.handle_signals()
        while self.inbox:
            pending, self.inbox = self.inbox, []
            for callback in pending:
                callback()

    def do_between(self) -> None:
        """Do what another thread has put between two instructions of the calling task."""
        task = self.simulation.current
        while mine := [each for each in self.between if each[0] is task]:
            self.between.remove(mine[0])
            mine[0][1]()

    def is_interrupted(self) -> bool:
        """True if the handler of a signal has to run on the calling task."""
        return bool(self.pending) and self.simulation.current is self.main

    def handle_signals(self) -> None:
        """Run the handlers of the pending signals, if the caller is the main task."""
        if self.simulation.current is not self.main:
            return
        while self.pending and self.running:
            number = self.pending.pop(0)
            handler = self.handlers.get(number)
            if callable(handler):  # not unset since
                if self.wakeup_descriptor >= 0:
                    os.write(self.wakeup_descriptor, bytes((number,)))
                self.handled += 1
                handler(number, sys._getframe(1))

    def _stop_running(self) -> None:
        """Stop the running task if it is one of this process; then this does not return."""
        for task in self.tasks:
            if task.state is TaskState.RUNNING:
                self.simulation.kill(task)

    def add_output(self, name: str, text: str) -> None:
        """Add text that the process writes to the stream `name`."""
        simulation = self.simulation
        lines = self.stdout if name == "stdout" else self.stderr
        *complete, rest = (self.partial[name] + text).split("\n")
        for line in complete:
            lines.append(line + "\n")
            data = same_everywhere(line).encode("utf-8", "replace")
            simulation.bus.record(printed(simulation.now_ns, self.rank, name, len(data), zlib.crc32(data)))
            self._show(name, line)
        self.partial[name] = rest

    def _show(self, name: str, line: str) -> None:
        if self.echo is None:
            return
        simulation = self.simulation
        # It is the host's code, although a rank's thread runs it: what it prints is not the rank's output.
        ident, simulation.current_ident = simulation.current_ident, 0
        failure: BaseException | None = None
        try:
            self.echo(self.rank, simulation.now_ns, name, line)
        except BaseException as error:  # an error of the host program, which the rank must not catch
            failure = error
        simulation.current_ident = ident
        if failure is not None:
            simulation.abort(failure)

    def take_over(self) -> None:
        """Add to its output what was written to the files behind its streams."""
        for name, descriptor in self.descriptors.items():
            text = descriptor.read()
            if text:
                self.add_output(name, text)

    def let_go(self) -> None:
        """Close the descriptors that are laid over its standard ones."""
        while self.laid_over:
            os.close(self.laid_over.popitem()[1])

    def flush(self) -> None:
        """Complete the last lines of both streams."""
        self.take_over()
        for name, lines in (("stdout", self.stdout), ("stderr", self.stderr)):
            if self.partial[name]:
                lines.append(self.partial[name])
                if self.oldest.shows_last_lines:
                    self._show(name, self.partial[name])
                self.partial[name] = ""

    def when_dropped(self, thing: object, function: Callable[..., object], *args: object) -> None:
        """Have `function(*args)` called when the program drops `thing`, unless the world is over by then.

        Python's table of finalizers keeps what the function refers to, such as the world, and that may keep the thing.
        """
        finalizer = weakref.finalize(thing, function, *args)
        finalizer.atexit = False
        if len(self.finalizers) % 64 == 63:
            self.finalizers = [each for each in self.finalizers if each.alive]
        self.finalizers.append(finalizer)

    def forget(self) -> None:
        """Let go of what refers to it: its world is gone."""
        for finalizer in self.finalizers:
            finalizer.detach()
        self.finalizers.clear()
        if self.on_forget is not None:
            self.on_forget()
            self.on_forget = None
        self.tasks.clear()
        if self.threads is not None:
            self.threads.forget()
        self.torch_state = self.parent = self.streams = self.threads = None
        self.children.clear()
        self.end_listeners.clear()
        self.inbox.clear()
        self.value = self.exception = None

    def __repr__(self) -> str:
        return f"<SimProcess rank {self.rank} life {self.life} {self.status}>"


def process_of(task: Task) -> SimProcess:
    """The process that a task of a rank belongs to."""
    assert isinstance(task.context, SimProcess)
    return task.context
