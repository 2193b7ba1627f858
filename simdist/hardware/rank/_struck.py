"""The actions of a fault on a real rank, from inside its process."""

from __future__ import annotations

import os
import signal as _signal
import time

from simdist.errors import UnsupportedError
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal

__all__ = ["RealRank"]

_HARMLESS = (_signal.SIGCHLD, _signal.SIGURG, _signal.SIGWINCH, _signal.SIGCONT)  # to a program without a handler


class RealRank:
    """This process, which a fault strikes; see `simdist.faults.StruckRank`. `index` is the fault's place in the job.

    `orders` is the supervisor's pipe: a stopped process can't wake itself.
    """

    def __init__(self, job: Job, journal: Journal, rank: int, life: int, orders: int, index: int) -> None:
        self._job = job
        self._journal = journal
        self._orders = orders
        self._index = index
        self.rank = rank
        self.life = life
        self.is_real = True

    def kill(self, signal: str) -> None:
        """Send the signal, for real; it is delivered even if the program blocks it."""
        self._ends("killed")
        number = _signal.Signals[signal]
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        time.sleep(1.0)  # until it is delivered
        os._exit(1)

    def exit(self, code: int) -> None:
        """`os._exit`."""
        self._ends("exited")
        os._exit(code)

    def signal(self, signal: str) -> None:
        """Send the signal, for real; a handler runs on the main thread when Python gets to it."""
        number = _signal.Signals[signal]
        dies = _signal.getsignal(number) == _signal.SIG_DFL and number not in _HARMLESS
        self._ends("killed" if dies else "")
        os.kill(os.getpid(), number)

    def stop(self, duration_ns: int | None) -> None:
        """Stop by SIGSTOP; the supervisor sends SIGCONT."""
        self._ends("hung")
        seconds = "never" if duration_ns is None else str(self._job.scaled_s(duration_ns))
        os.write(self._orders, f"{seconds}\n".encode())
        os.kill(os.getpid(), _signal.SIGSTOP)

    def crash_host(
        self, down_ns: int | None, *, every: bool = False, outcome: int | None = None, disks: str = "own"
    ) -> None:
        """Refused: the machine runs the whole run."""
        raise UnsupportedError("no machine is switched off for a run")

    def break_device(self, error: str) -> None:
        """Refused: others use the device after the run."""
        raise UnsupportedError("no real device is broken for a run")

    def _ends(self, how: str) -> None:
        self._journal.note("strike", self._index, self.life, how)
