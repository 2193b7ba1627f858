"""Masks of signals, and threads that wait for signals: a rank sees the same as a process."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import simdist
from tests.c10d.worlds import values

USR1, USR2, TERM, HUP = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def kept_until_unblocked() -> Any:
    seen: list[Any] = []
    signal.signal(USR1, lambda number, _: seen.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [USR1, signal.SIGKILL])
    for _ in range(3):
        send(USR1)
    seen.append(signal.sigpending())
    inside = signal.pthread_sigmask(signal.SIG_UNBLOCK, [USR1])
    return [before, seen, inside, signal.sigpending()]


def a_thread_that_handles() -> Any:
    """Wait for signals in a thread, while the main thread goes on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [TERM, HUP, USR1])
    seen: list[Any] = []

    def handle() -> None:
        while not seen or seen[-1] != TERM:
            seen.append(signal.sigwait([TERM, HUP, USR1]))

    thread = threading.Thread(target=handle)
    thread.start()
    for number in (HUP, USR1, TERM):
        time.sleep(0.05)
        send(number)
    thread.join()
    return seen


def lowest_first_and_once() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, [TERM, USR1, signal.SIGRTMIN])
    for number in (TERM, USR1, TERM, signal.SIGRTMIN, signal.SIGRTMIN):
        send(number)
    wanted = [TERM, USR1, signal.SIGRTMIN]
    found = [signal.sigtimedwait(wanted, 0) for _ in range(5)]
    return [None if each is None else each.si_signo for each in found]


def why_it_came() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, [USR1, signal.SIGALRM, signal.SIGCHLD])
    send(USR1)
    mine = signal.sigwaitinfo([USR1])
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    alarm = signal.sigwaitinfo([signal.SIGALRM])
    process = mp.get_context("fork").Process(target=os._exit, args=(3,))
    process.start()
    child = signal.sigwaitinfo([signal.SIGCHLD])
    process.join()
    return [
        (mine.si_code, mine.si_pid == os.getpid(), mine.si_uid == os.getuid()),
        tuple(alarm)[:6],
        (child.si_code, child.si_pid == process.pid, child.si_status),
    ]


def handled_meanwhile() -> Any:
    """Run a handler while the main thread waits for another signal, whose own handler does not run."""
    seen: list[int] = []
    for number in (USR1, USR2):
        signal.signal(number, lambda number, _: seen.append(int(number)))
    for delay, number in ((0.05, USR1), (0.1, USR2)):
        threading.Timer(delay, send, (number,)).start()
    found = signal.sigwaitinfo([USR2])
    return [found.si_signo, seen, signal.sigtimedwait([USR2], 0.05)]


def of_one_thread() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, [USR1])
    signal.raise_signal(USR1)
    found: list[Any] = []
    inherits = threading.Event()

    def other() -> None:
        found.append(signal.pthread_sigmask(signal.SIG_BLOCK, []) & {USR1})
        found.append(signal.sigpending())
        inherits.set()
        found.append(signal.sigwait([USR1]))

    thread = threading.Thread(target=other)
    thread.start()
    inherits.wait()
    time.sleep(0.05)
    assert thread.ident is not None
    signal.pthread_kill(thread.ident, 0)
    signal.pthread_kill(thread.ident, USR1)
    thread.join()
    return [*found, signal.sigpending(), signal.sigwait([USR1])]


def of_a_child() -> Any:
    signal.pthread_sigmask(signal.SIG_BLOCK, [USR1])
    send(USR1)
    context = mp.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        answers.put((signal.pthread_sigmask(signal.SIG_BLOCK, []) & {USR1, USR2}, signal.sigpending()))

    process = context.Process(target=child)
    process.start()
    found = answers.get()
    process.join()
    return [found, signal.sigpending()]


def ends_that_stay() -> Any:
    found = []
    program = subprocess.Popen(["sh", "-c", "exit 3"])
    process = mp.get_context("fork").Process(target=os._exit, args=(4,))
    process.start()
    for pid in (program.pid, process.pid or 0):
        for options in (os.WNOWAIT, os.WNOWAIT | os.WNOHANG, 0):
            seen = os.waitid(os.P_PID, pid, os.WEXITED | options)
            assert seen is not None
            found.append((seen.si_pid == pid, seen.si_status, seen.si_code == os.CLD_EXITED))
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(OSError, match="Invalid argument"):
        os.waitid(os.P_ALL, 0, os.WNOWAIT)
    return found


def bad_calls() -> Any:
    calls: tuple[Callable[[], object], ...] = (
        lambda: signal.pthread_sigmask(99, []),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [1000]),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ["x"]),  # type: ignore[list-item]
        lambda: signal.sigtimedwait([USR1], -1),
        lambda: signal.pthread_kill(threading.get_ident(), 1000),
        lambda: signal.raise_signal(1000),
    )
    texts = []
    for call in calls:
        with pytest.raises((OSError, ValueError, TypeError)) as caught:
            call()
        texts.append(repr(caught.value))
    return texts


BODIES: dict[Callable[[], Any], Any] = {
    kept_until_unblocked: [set(), [{USR1}, USR1], {USR1}, set()],
    a_thread_that_handles: [HUP, USR1, TERM],
    lowest_first_and_once: [USR1, TERM, signal.SIGRTMIN, signal.SIGRTMIN, None],
    why_it_came: [(0, True, True), (signal.SIGALRM, 128, 0, 0, 0, 0), (1, True, 3)],
    handled_meanwhile: [USR2, [USR1], None],
    of_one_thread: [{USR1}, set(), USR1, {USR1}, USR1],
    of_a_child: [({USR1}, set()), {USR1}],
    ends_that_stay: [(True, 3, True)] * 3 + [(True, 4, True)] * 3,
    bad_calls: [
        "OSError(22, 'Invalid argument')",
        "ValueError('signal number 1000 out of range [1; 64]')",
        """TypeError("'str' object cannot be interpreted as an integer")""",
        "ValueError('timeout must be non-negative')",
        "OSError(22, 'Invalid argument')",
        "OSError(22, 'Invalid argument')",
    ],
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_ranks_block_and_wait_for_signals(body: Callable[[], Any]) -> None:
    assert values(body, 2) == [BODIES[body]] * 2


@pytest.mark.real
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_so_do_processes(body: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("OMP", "OPENBLAS"):  # their threads block no signal
        monkeypatch.setenv(f"{library}_NUM_THREADS", "1")
    context = mp.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, body))
    process.start()
    theirs.close()

    assert mine.recv() == BODIES[body]
    process.join()


def _answer(end: Any, body: Callable[[], Any]) -> None:
    end.send(body())


def test_a_blocked_signal_does_not_kill_and_an_unblocked_one_does() -> None:
    def body() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [TERM])
        send(TERM)
        time.sleep(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [TERM])

    (rank,) = simdist.run(body, world_size=1).ranks

    assert (rank.exit_code, rank.ended_ns) == (-TERM, 10**9)


def test_a_signal_for_the_world_reaches_the_thread_that_waits() -> None:
    def body() -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, [TERM])
        found = signal.sigwaitinfo([TERM])
        return found.si_signo, time.monotonic()

    result = simdist.run(
        body, world_size=1, faults=[simdist.faults.Signal(rank=0, at_ns=2_000_000_000, signal="SIGTERM")]
    )

    assert result.values == [(TERM, 2.0)]


def test_waiting_for_a_signal_that_never_comes_hangs_and_is_reported() -> None:
    (rank,) = simdist.run(lambda: signal.sigwait([USR1, TERM]), world_size=1).ranks

    assert (rank.status, rank.waiting) == ("hung", "signal.sigwait(SIGTERM, SIGUSR1)")
