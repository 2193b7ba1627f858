"""Signals that wait: masks of threads, and functions that take a signal off the queue instead of having it handled.

A signal for a process goes to the first of its threads, the main one before all others, that does not block it or waits
for it (`sigwait`). If all block it, it is kept until one unblocks it or asks for it: once, however often it came,
except that real-time signals are kept each. A signal for a thread (`raise_signal`, `pthread_kill`) is for that alone.
Threads begin with the mask of the thread that started them. So do children, with no signals kept.

A process that has no mask and never waited for a signal has none of this (`SimProcess.masks` is None).
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterable
from typing import SupportsIndex

from simdist.kernel import Task, TaskKilled, TaskState
from simdist.process._lateness import due_at
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, current_process

__all__ = ["MADE", "SignalMasks"]

_NEVER_BLOCKED = (signal.SIGKILL, signal.SIGSTOP)
_FIRST_KEPT_EACH = getattr(signal, "SIGRTMIN", 1_000)
_Signals = set[signal.Signals | int]
Origin = tuple[int, int, int]
"""Why a signal came (`si_code`), from which process, and with what status."""


class _SignalWait:
    """What a task waits on until a signal comes."""

    __slots__ = ("interruptible", "name", "numbers")

    def __init__(self, name: str, numbers: frozenset[int], *, interruptible: bool) -> None:
        self.name = name
        self.numbers = numbers
        self.interruptible = interruptible  # by handlers of others

    def describe(self) -> str:
        """In words."""
        names = sorted(getattr(each, "name", str(each)) for each in _as_signals(self.numbers))
        return f"signal.{self.name}({', '.join(names)})"

    def waits_for(self) -> Iterable[Task]:
        """No task in particular."""
        return ()


class SignalMasks:
    """The signal masks of one process's tasks, and the signals that are kept for them."""

    def __init__(self, process: SimProcess, mask: frozenset[int] = frozenset()) -> None:
        self._process = process
        self._masks: dict[Task, frozenset[int]] = dict.fromkeys(process.tasks, mask)
        self._at_begin = mask  # of the process's first task, which no other has started
        self._kept: list[tuple[int, Task | None, Origin]] = []  # with the thread that it is for; None: any

    def mask_of(self, task: Task | None) -> frozenset[int]:
        """The signals that the task blocks."""
        return self._at_begin if task is None else self._masks.get(task, self._at_begin)

    def begin(self, starter: Task | None, task: Task) -> None:
        """Give a new task the mask of the task that has started it."""
        self._masks[task] = self.mask_of(starter)

    def kept_for(self, task: Task) -> set[int]:
        """The signals that have arrived and that the task blocks."""
        return {number for number, of, _ in self._kept if of in (None, task)} & self.mask_of(task)

    def keeps(self, number: int, thread: Task | None, origin: Origin) -> bool:
        """Receive a signal; True if it is kept, for later or for a task that waits for it."""
        if number in _NEVER_BLOCKED:
            return False
        process = self._process
        for task in process.tasks if thread is None else [thread]:
            if task.state in (TaskState.DONE, TaskState.FROZEN):
                continue
            blocked = number in self.mask_of(task)
            waiting = task.waiting if isinstance(task.waiting, _SignalWait) else None
            if (
                waiting is not None
                and number in waiting.numbers
                and (blocked or callable(process.handlers.get(number)))
            ):
                self._keep(number, task if thread is not None else None, origin)
                process.simulation.wake(task)
                return True
            if not blocked:
                return False
        self._keep(number, thread, origin)
        return True

    def _keep(self, number: int, thread: Task | None, origin: Origin) -> None:
        known = any(each == number and of is thread for each, of, _ in self._kept)
        if not known or number >= _FIRST_KEPT_EACH:
            self._kept.append((number, thread, origin))

    def set_mask(self, task: Task, mask: frozenset[int]) -> None:
        """Set what the task blocks from now on; kept signals that are not blocked any more act now."""
        self._masks[task] = mask - set(_NEVER_BLOCKED)
        kept, self._kept = self._kept, []
        for number, thread, origin in kept:
            self._process.signal(number, thread, origin)  # it is kept again, or acts

    def _take(self, task: Task, numbers: frozenset[int]) -> tuple[int, Origin] | None:
        """Take the first of these signals for the task off the queue: its own before others, then the lowest number."""
        found = [each for each in self._kept if each[0] in numbers and each[1] in (None, task)]
        if not found:
            return None
        first = min(found, key=lambda each: (each[1] is None, each[0]))
        self._kept.remove(first)
        return first[0], first[2]

    def wait(self, name: str, numbers: frozenset[int], timeout_ns: int | None) -> tuple[int, Origin] | None:
        """Wait for one of these signals; None after the timeout."""
        process = self._process
        simulation = process.simulation
        task = simulation.check()
        deadline_ns = None if timeout_ns is None else due_at(process, timeout_ns)
        wait = _SignalWait(name, numbers, interruptible=name != "sigwait")
        found, in_time = self._take(task, numbers), True
        while found is None and in_time:
            if task.doomed:
                raise TaskKilled
            in_time = simulation.park(wait, deadline_ns)
            if wait.interruptible:
                process.drain()
            found = self._take(task, numbers)
        if self._kept:
            self.set_mask(task, self.mask_of(task))  # signals kept for the wait that it did not take
        return found


def _masks_of(process: SimProcess) -> SignalMasks:
    """The masks of the process, made if there were none."""
    if process.masks is None:
        process.masks = SignalMasks(process)
    return process.masks


def _numbers(given: Iterable[SupportsIndex]) -> frozenset[int]:
    numbers = []
    for each in given:
        if not hasattr(each, "__index__"):
            raise TypeError(f"{type(each).__name__!r} object cannot be interpreted as an integer")
        if not 1 <= int(each) < signal.NSIG:
            raise ValueError(f"signal number {int(each)} out of range [1; {signal.NSIG - 1}]")
        numbers.append(int(each))
    return frozenset(numbers)


def _as_signals(numbers: Iterable[int]) -> _Signals:
    known = signal.valid_signals()
    return {next((each for each in known if each == number), number) for number in numbers}


def _pthread_sigmask(
    original: Callable[[int, Iterable[SupportsIndex]], _Signals],
) -> Callable[[int, Iterable[SupportsIndex]], _Signals]:
    def pthread_sigmask(how: int, mask: Iterable[SupportsIndex]) -> _Signals:
        process = current_process()
        if process is None:
            return original(how, mask)
        numbers = _numbers(mask)
        masks, task = _masks_of(process), process.simulation.check()
        before = masks.mask_of(task)
        made = {
            signal.SIG_BLOCK: before | numbers,
            signal.SIG_UNBLOCK: before - numbers,
            signal.SIG_SETMASK: numbers,
        }
        if how not in made:
            raise OSError(22, "Invalid argument")
        masks.set_mask(task, made[signal.Sigmasks(how)])
        process.handle_signals()
        return _as_signals(before)

    return pthread_sigmask


def _sigpending(original: Callable[[], _Signals]) -> Callable[[], _Signals]:
    def sigpending() -> _Signals:
        process = current_process()
        if process is None:
            return original()
        return _as_signals(_masks_of(process).kept_for(process.simulation.check()))

    return sigpending


def _sigwait(
    original: Callable[[Iterable[SupportsIndex]], signal.Signals | int],
) -> Callable[[Iterable[SupportsIndex]], signal.Signals | int]:
    def sigwait(sigset: Iterable[SupportsIndex]) -> signal.Signals | int:
        process = current_process()
        if process is None:
            return original(sigset)
        found = _masks_of(process).wait("sigwait", _numbers(sigset), None)
        assert found is not None
        process.handle_signals()
        return next(iter(_as_signals(found[:1])))

    return sigwait


def _info(found: tuple[int, Origin]) -> signal.struct_siginfo:
    number, (code, pid, status) = found
    user = 0 if pid == 0 else os.getuid()
    return signal.struct_siginfo((number, code, 0, pid, user, status, pid | user << 32))


def _sigwaitinfo(
    original: Callable[[Iterable[SupportsIndex]], signal.struct_siginfo],
) -> Callable[[Iterable[SupportsIndex]], signal.struct_siginfo]:
    def sigwaitinfo(sigset: Iterable[SupportsIndex], /) -> signal.struct_siginfo:
        process = current_process()
        if process is None:
            return original(sigset)
        found = _masks_of(process).wait("sigwaitinfo", _numbers(sigset), None)
        assert found is not None
        return _info(found)

    return sigwaitinfo


def _sigtimedwait(
    original: Callable[[Iterable[SupportsIndex], float], signal.struct_siginfo | None],
) -> Callable[[Iterable[SupportsIndex], float], signal.struct_siginfo | None]:
    def sigtimedwait(sigset: Iterable[SupportsIndex], timeout: float, /) -> signal.struct_siginfo | None:
        process = current_process()
        if process is None:
            return original(sigset, timeout)
        if not hasattr(timeout, "__index__") and not hasattr(timeout, "__float__"):
            raise TypeError(f"{type(timeout).__name__!r} object cannot be interpreted as an integer")
        numbers = _numbers(sigset)
        if timeout < 0:
            raise ValueError("timeout must be non-negative")
        found = _masks_of(process).wait("sigtimedwait", numbers, math.ceil(timeout * 1e9))
        return None if found is None else _info(found)

    return sigtimedwait


def _pthread_kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def pthread_kill(thread_id: int, signalnum: int, /) -> None:
        process = current_process()
        if process is None:
            original(thread_id, signalnum)
            return
        thread = next((task for task in process.tasks if task.ident == thread_id), None)
        if thread is None or thread.state is TaskState.DONE:
            raise ProcessLookupError(3, "No such process")
        if signalnum not in signal.valid_signals() and signalnum != 0:
            raise OSError(22, "Invalid argument")
        if signalnum:
            process.signal_thread(signalnum, thread)

    return pthread_kill


MADE: dict[str, Make] = {
    "pthread_kill": _pthread_kill,
    "pthread_sigmask": _pthread_sigmask,
    "sigpending": _sigpending,
    "sigtimedwait": _sigtimedwait,
    "sigwait": _sigwait,
    "sigwaitinfo": _sigwaitinfo,
}
"""By function of `signal`: makes the function that ranks call."""
