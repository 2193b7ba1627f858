"""Run a function on real Gloo: forked processes on loopback, one per rank, always brought to an end.

The reference arm of every test that compares a simulation with reality. `run_real` takes the same argument as
`simdist.run` (a function that needs nothing but `torch.distributed` and torchrun's environment) and returns in the same
words how each process ended.

The parent must not have an accelerator in use, and torch must be imported before the fork so that a rank costs
milliseconds, not seconds. Intra-op threads are set to 1 in each child: an OpenMP pool does not survive a fork.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Literal

import torch

__all__ = ["RealOutcome", "RealStatus", "RealWorld", "reserve_port", "run_real"]

RealStatus = Literal["returned", "raised", "exited", "killed", "hung"]


@dataclass(frozen=True, slots=True)
class RealOutcome:
    """How one process ended; the words are those of `simdist.result.RankResult`.

    `seconds` is real time from the start of the world to the end of the rank's function, or to the death that the
    parent saw. `exit_code` is None for a rank that had to be killed because the time was up ("hung").
    """

    status: RealStatus
    value: Any = None
    exception_type: str | None = None
    message: str = ""
    exit_code: int | None = None
    seconds: float = 0.0


def run_real(
    fn: Callable[..., Any],
    world_size: int,
    *,
    args: Sequence[Any] = (),
    timeout_s: float = 60,
    kill: Mapping[int, float] | None = None,
) -> list[RealOutcome]:
    """Call `fn(*args)` in `world_size` forked processes with torchrun's environment and return how each one ended.

    A rank's process is gone as soon as its function ends: sockets close, threads stop, no destructor runs. `kill` maps
    a rank to the seconds after the start at which it gets SIGKILL. Whatever still lives after `timeout_s` is killed
    and reported as "hung". Values must pickle; tensors travel by value.
    """
    with RealWorld(fn, world_size, args=args, timeout_s=timeout_s, kill=kill) as world:
        return world.finish()


class RealWorld:
    """A world of forked processes that is running; see `run_real`.

    Worlds that mostly sleep can overlap: start several, then finish each. As a context manager it leaves no process
    behind.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        world_size: int,
        *,
        args: Sequence[Any] = (),
        timeout_s: float = 60,
        kill: Mapping[int, float] | None = None,
    ) -> None:
        self._port = reserve_port()
        self._started = time.monotonic()
        self._timeout_s = timeout_s
        self._kill = dict(kill or {})
        port: int = self._port.getsockname()[1]
        self._children = [_fork(fn, tuple(args), rank, world_size, port, self._started) for rank in range(world_size)]

    def __enter__(self) -> RealWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> list[RealOutcome]:
        """Wait for every rank to end, kill each one that is due, and return how each one ended."""
        open_readers = {child.reader: child for child in self._children}
        while open_readers:
            now = time.monotonic() - self._started
            self._kill_what_is_due(now)
            if now >= self._timeout_s:
                break
            until = min([self._timeout_s, *self._kill.values()])
            for ready in connection.wait(list(open_readers), max(0.0, until - now)):
                assert isinstance(ready, connection.Connection)
                child = open_readers[ready]
                try:
                    child.outcome = pickle.loads(ready.recv_bytes())
                except (EOFError, ConnectionResetError):
                    del open_readers[ready]
                    child.reap(self._started)
        return [child.outcome or RealOutcome("hung", seconds=self._timeout_s) for child in self._children]

    def close(self) -> None:
        """Kill all processes that still live."""
        for child in self._children:
            child.end()
        self._port.close()

    def _kill_what_is_due(self, now: float) -> None:
        for rank in [rank for rank, at in self._kill.items() if at <= now]:
            del self._kill[rank]
            if not self._children[rank].reaped:
                os.kill(self._children[rank].pid, signal.SIGKILL)


@dataclass(slots=True)
class _Child:
    pid: int
    reader: connection.Connection  # at an end when the child dies, at the latest
    outcome: RealOutcome | None = None
    reaped: bool = False

    def reap(self, started: float) -> None:
        """Wait for the process, whose end of the pipe is closed, and settle the outcome."""
        _, status = os.waitpid(self.pid, 0)
        self.reaped = True
        code = os.waitstatus_to_exitcode(status)
        if self.outcome is None:
            how: RealStatus = "killed" if code < 0 else "exited"
            self.outcome = RealOutcome(how, exit_code=code, seconds=time.monotonic() - started)

    def end(self) -> None:
        """Kill the process if it lives, and close the pipe."""
        if not self.reaped:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.reaped = True
        self.reader.close()


def _fork(
    fn: Callable[..., Any], args: tuple[Any, ...], rank: int, world_size: int, port: int, started: float
) -> _Child:
    reader, writer = connection.Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on fork in a process that has threads
        pid = os.fork()
    if pid:
        writer.close()
        return _Child(pid, reader)
    code = 1
    try:
        code = _child_main(fn, args, rank, world_size, port, started, writer)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _child_main(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    port: int,
    started: float,
    writer: connection.Connection,
) -> int:
    gc.freeze()  # a collection would visit all objects of the parent, and so copy its memory
    signal.set_wakeup_fd(-1)
    faulthandler.disable()  # pytest's: the outcome shows how a rank dies, without a dump in the log
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # a rank does not use the parent's handlers (pytest-timeout)
    torch.set_num_threads(1)
    os.environ.update(_torchrun_environment(rank, world_size, port))
    outcome: RealOutcome
    try:
        value = fn(*args)
        outcome = RealOutcome("returned", value, exit_code=0, seconds=time.monotonic() - started)
        payload = pickle.dumps(outcome)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        outcome = RealOutcome("exited", exit_code=code, seconds=time.monotonic() - started)
        payload = pickle.dumps(outcome)
    except BaseException as error:
        outcome = RealOutcome(
            "raised", None, type(error).__name__, str(error), exit_code=1, seconds=time.monotonic() - started
        )
        payload = pickle.dumps(outcome)
    writer.send_bytes(payload)
    sys.stdout.flush()
    sys.stderr.flush()
    return outcome.exit_code or 0


def _torchrun_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": "1",
    }


def reserve_port() -> socket.socket:
    """Return a socket that reserves a TCP port for a rank to listen on; no other socket gets it until it is closed.

    It is bound but does not listen, and both sides set SO_REUSEADDR: Linux then lets the store listen on the port, but
    gives it to no other socket meanwhile.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    return holder
