"""Signals: what a rank does when it gets one, from itself, another rank, its alarm clock or the launcher.

Each process has its own handlers, alarm, wake-up descriptor and masks (`_signal_masks`). A handler in Python runs on
the process's main thread, as it does in an interpreter: at once if that thread sleeps, or waits for a lock, a thread or
a file descriptor, which it then goes on waiting for; after the wait if it is inside an operation or a request to a
store, which real processes wait for in C++; and when it next waits if it computes.

In doubt: "when it next waits" is later than in an interpreter, which looks between any two instructions.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from simdist.errors import UnsupportedError
from simdist.kernel import Timer
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime, on_ranks
from simdist.process._signal_masks import MADE

if TYPE_CHECKING:
    from simdist.process._process import Handler

__all__ = ["install"]

_OF_THE_KERNEL = 128  # `SI_KERNEL`
_UNCHANGEABLE = (signal.SIGKILL, signal.SIGSTOP)


def install(patches: Patches) -> None:
    """Let ranks have handlers, and send signals to each other."""
    patches.redirect(_REPLACEMENTS)


class _Pause:
    """`signal.pause`."""

    interruptible = True

    def describe(self) -> str:
        """As the deadlock report names it."""
        return "signal.pause()"

    def waits_for(self) -> tuple[()]:
        """No task in particular."""
        return ()


def _kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def kill(pid: int, number: int) -> None:
        runtime = current_runtime()
        if runtime is None:
            original(pid, number)
            return
        runtime.simulation.check()
        process = current_process()
        if process is not None and (pid == 0 or pid < -1):
            os.killpg(-pid, number)
            return
        if process is not None and pid == process.parent_pid:
            if number != 0:
                raise UnsupportedError(f"rank {process.rank}: signals to the launcher are not simulated")
            return
        program = None if process is None else process.programs.get(pid)
        if program is not None:
            program.signal(number)
            return
        target = runtime.processes.get(pid)
        if target is None or not target.running:
            raise ProcessLookupError(3, "No such process")
        if number not in signal.valid_signals() and number != 0:
            raise OSError(22, "Invalid argument")
        target.signal(number, None, (0, process.pid if process is not None else target.parent_pid, 0))
        if process is not None and target is process:
            if number == signal.SIGSTOP:
                runtime.simulation.sleep(0)  # the running task stops where it parks
            process.handle_signals()

    return kill


def _raise_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def raise_signal(number: int) -> None:
        process = current_process()
        if process is None:
            original(number)
        elif number not in signal.valid_signals():
            raise OSError(22, "Invalid argument")
        else:
            process.signal_thread(number, process.simulation.check())

    return raise_signal


def _signal(original: Callable[[int, Handler], Handler]) -> Callable[[int, Handler], Handler]:
    @functools.wraps(original)
    def set_handler(signalnum: int, handler: Handler) -> Handler:
        process = current_process()
        if process is None:
            return original(signalnum, handler)
        if process.simulation.current is not process.main:
            raise ValueError("signal only works in main thread of the main interpreter")
        before = _handler_of(process, signalnum)
        if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        if signalnum in _UNCHANGEABLE:
            raise OSError(22, "Invalid argument")
        process.handlers[int(signalnum)] = handler if callable(handler) else signal.Handlers(handler)
        return before

    return set_handler


def _getsignal(original: Callable[[int], Handler]) -> Callable[[int], Handler]:
    @functools.wraps(original)
    def getsignal(signalnum: int) -> Handler:
        process = current_process()
        return original(signalnum) if process is None else _handler_of(process, signalnum)

    return getsignal


def _handler_of(process: SimProcess, number: int) -> Handler:
    if number not in signal.valid_signals():
        raise ValueError("signal number out of range")
    return process.handlers.get(int(number), signal.SIG_DFL)


def _setitimer(
    original: Callable[[int, float, float], tuple[float, float]],
) -> Callable[..., tuple[float, float]]:
    @functools.wraps(original)
    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        process = current_process()
        if process is None:
            return original(which, seconds, interval)
        if which != signal.ITIMER_REAL:
            raise UnsupportedError(
                f"rank {process.rank}: only signal.ITIMER_REAL is simulated; computing takes no virtual time"
            )
        if seconds < 0 or interval < 0:
            raise signal.ItimerError(22, "Invalid argument")
        return _set_alarm(process, round(seconds * 1e9), round(interval * 1e9))

    return setitimer


def _getitimer(original: Callable[[int], tuple[float, float]]) -> Callable[[int], tuple[float, float]]:
    @functools.wraps(original)
    def getitimer(which: int) -> tuple[float, float]:
        process = current_process()
        return original(which) if process is None else _left(process)

    return getitimer


def _alarm(original: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(original)
    def alarm(seconds: int) -> int:
        process = current_process()
        if process is None:
            return original(seconds)
        left_s, _ = _set_alarm(process, int(seconds) * 10**9, 0)
        return -int(-left_s // 1)  # what is left is rounded up

    return alarm


def _left(process: SimProcess) -> tuple[float, float]:
    timer: Timer | None = process.alarm
    if timer is None or timer.action is None:
        return 0.0, 0.0
    return (process.alarm_ns - process.simulation.now_ns) / 1e9, process.alarm_interval_ns / 1e9


def _set_alarm(process: SimProcess, duration_ns: int, interval_ns: int) -> tuple[float, float]:
    """Set the alarm, repeated if `interval_ns` is not 0; return what was left of the one before, in seconds."""
    before = _left(process)
    if process.alarm is not None:
        process.alarm.cancel()
        process.alarm = None
    if duration_ns:
        process.alarm_interval_ns = interval_ns
        process.alarm_ns = process.simulation.now_ns + duration_ns
        process.alarm = process.simulation.call_at(process.alarm_ns, functools.partial(_ring, process))
    return before


def _ring(process: SimProcess) -> None:
    if not process.running:
        return
    if process.alarm_interval_ns:
        process.alarm_ns += process.alarm_interval_ns
        process.alarm = process.simulation.call_at(process.alarm_ns, functools.partial(_ring, process))
    process.signal(signal.SIGALRM, None, (_OF_THE_KERNEL, 0, 0))


def _pause(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def pause() -> None:
        process = current_process()
        if process is None:
            original()
            return
        handled = process.handled
        process.handle_signals()
        while process.handled == handled:
            process.simulation.park(_Pause())
            process.drain()

    return pause


def _set_wakeup_fd(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def set_wakeup_fd(fd: int, *, warn_on_full_buffer: bool = True) -> int:
        process = current_process()
        if process is None:
            return original(fd, warn_on_full_buffer=warn_on_full_buffer)
        if process.simulation.current is not process.main:
            raise ValueError("set_wakeup_fd only works in main thread of the main interpreter")
        before, process.wakeup_descriptor = process.wakeup_descriptor, fd
        return before

    return set_wakeup_fd


_MADE: list[tuple[object, str, Make]] = [
    (os, "kill", _kill),
    (signal, "raise_signal", _raise_signal),
    (signal, "signal", _signal),
    (signal, "getsignal", _getsignal),
    (signal, "alarm", _alarm),
    (signal, "setitimer", _setitimer),
    (signal, "getitimer", _getitimer),
    (signal, "pause", _pause),
    (signal, "set_wakeup_fd", _set_wakeup_fd),
    (signal, "siginterrupt", on_ranks(lambda *_, **__: None)),
    *((signal, name, make) for name, make in MADE.items()),
]
_REPLACEMENTS = tuple(Replacement(owner, name, make) for owner, name, make in _MADE if hasattr(owner, name))
