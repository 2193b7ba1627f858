"""Worker processes of this machine, which share their imports.

    this process --spawn--> fork server: imports torch, simdist and the program, once
                                 |--fork--> worker 1      this process sends each its tasks over a socket of its own
                                 |--fork--> worker 2      and learns of a death by the end of that socket
                                 ...

The server runs no world and starts no thread, so that it can be forked at any time. On systems without a safe fork,
workers are spawned and import separately.

- One thread of this process waits for each worker. It sends tasks and receives results; the thread that has the pool
  starts processes, since a world may run there meanwhile.
- A dead worker breaks one future, that of its tasks. `submit` and `renew` start another worker in its place.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from simdist.errors import SimdistError
from simdist.programs._pools import Answer, do, end
from simdist.result import exit_words

__all__ = ["DiedError", "Processes", "UnbornError", "Warm"]

_PATIENCE_S = 2  # for the end of a process
_NUMBER = struct.Struct("!i")
_FORK, _REAP = b"f", b"r"  # requests to a fork server
_HAS_FORK = hasattr(os, "fork") and sys.platform.startswith("linux")

Warm = Callable[[], object]
"""Imports a program's modules; called by a fork server before it forks."""


class DiedError(SimdistError):
    """A worker process that died in the middle of its tasks; the text says how: "was killed by SIGSEGV"."""


class UnbornError(SimdistError):
    """A worker process that died before its first task."""


class _Process(Protocol):
    """A running worker process."""

    def terminate(self) -> None:
        """Ask the process to end."""
        ...

    def exit_code(self) -> int | None:
        """Wait for the end; return None if the exit code is unknown."""
        ...


class Processes:
    """Up to `count` processes of this machine, which start with the first tasks."""

    broken: tuple[type[BaseException], ...] = (DiedError,)
    unborn: tuple[type[BaseException], ...] = (UnbornError,)
    lost: tuple[type[BaseException], ...] = ()

    def __init__(self, count: int, warm: bytes = b"") -> None:
        self._count = count
        self._warm = warm  # a pickled `Warm`, or empty
        self._server: _ForkServer | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lines: list[_Line] = []

    def size(self) -> int:
        """Return the requested number."""
        return self._count

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Submit tasks for one worker."""
        job = _Job(start, tasks, known)
        self._jobs.put(job)
        self.renew()
        return job.future

    def renew(self) -> None:
        """Start processes for waiting jobs, including replacements of dead ones."""
        self._lines = [line for line in self._lines if line.is_alive()]
        there = sum(not line.is_over for line in self._lines)
        for _ in range(min(self._jobs.qsize(), self._count - there)):
            self._lines.append(_Line(self._jobs, self._started()))

    def _started(self) -> Callable[[], tuple[connection.Connection, _Process]]:
        if not _HAS_FORK:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, Path.cwd()))
            process.start()
            theirs.close()
            return lambda: (ours, _Spawned(process))
        if self._server is None or not self._server.is_alive():
            self._server = _ForkServer(self._warm)
        return self._server.fork

    def close(self, *, at_once: bool) -> None:
        """End the processes, and wait for that; with `at_once` in the middle of their tasks."""
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._lines:
            self._jobs.put(None)
        if at_once:
            if self._server is not None and not any(line.has_begun for line in self._lines):
                self._server.terminate()  # it may import for a while
            for line in self._lines:
                line.terminate()
        for line in self._lines:
            line.join()
        if self._server is not None:
            self._server.close()


class _Job:
    """Tasks for a worker, and the future of their results."""

    def __init__(self, *message: Any) -> None:
        self.message = message
        self.future: Future[Answer] = Future()
        self.future.set_running_or_notify_cancel()


class _Line(threading.Thread):
    """The thread that waits for one worker process, from its start to its end."""

    def __init__(
        self, jobs: queue.SimpleQueue[_Job | None], begin: Callable[[], tuple[connection.Connection, _Process]]
    ) -> None:
        super().__init__(daemon=True)
        self._jobs = jobs
        self._begin = begin
        self._process: _Process | None = None
        self._unwanted = False
        self.has_begun = False  # True once it can do tasks
        self.is_over = False  # set before the future reports the death
        self.start()

    def run(self) -> None:
        try:
            line, process = self._begin()
        except OSError:
            self._fail(UnbornError("with the process that forks them"))
            return
        self._process = process
        if self._unwanted:
            process.terminate()
        with line:
            self._talk(line, process)
        process.exit_code()

    def _talk(self, line: connection.Connection, process: _Process) -> None:
        try:
            line.recv()
        except (EOFError, OSError):
            self._fail(UnbornError(_end_of(process)))
            return
        self.has_begun = True
        while (job := self._jobs.get()) is not None:
            try:
                good, answer = self._ask(line, job)
            except (EOFError, OSError):
                how = _end_of(process)
                self.is_over = True
                job.future.set_exception(DiedError(how))
                return
            except Exception as error:  # an object that can't be pickled
                job.future.set_exception(error)
                continue
            if good:
                job.future.set_result(answer)
            else:
                job.future.set_exception(answer)

    @staticmethod
    def _ask(line: connection.Connection, job: _Job) -> tuple[bool, Any]:
        line.send(job.message)
        answered: tuple[bool, Any] = line.recv()
        return answered

    def _fail(self, error: SimdistError) -> None:
        job = self._jobs.get()
        self.is_over = True
        if job is not None:
            job.future.set_exception(error)

    def terminate(self) -> None:
        """End the process in the middle of its tasks."""
        self._unwanted = True
        if self._process is not None:
            self._process.terminate()


def _end_of(process: _Process) -> str:
    """Describe the end of a process."""
    code = process.exit_code()
    return "is gone" if code is None else exit_words(code)


class _Spawned:
    """A process started by `multiprocessing`."""

    def __init__(self, process: SpawnProcess) -> None:
        self._process = process

    def terminate(self) -> None:
        self._process.terminate()

    def exit_code(self) -> int | None:
        self._process.join()
        return self._process.exitcode


class _Forked:
    """A child of the fork server."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self._server = server
        self._pid = pid
        self._code: int | None = None
        self._reaped = False

    def terminate(self) -> None:
        if not self._reaped:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def exit_code(self) -> int | None:
        if not self._reaped:
            with suppress(OSError):
                self._code = self._server.ask(_REAP, self._pid)
            self._reaped = True
        return self._code


class _ForkServer:
    """A process that imports everything once, and forks."""

    def __init__(self, warm: bytes) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, Path.cwd(), warm), daemon=True
        )
        self._process.start()
        theirs.close()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def fork(self) -> tuple[connection.Connection, _Process]:
        """Return a new worker, and this process's end of the line to it.

        Raises:
            OSError: the server died.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self.ask(_FORK, 0, theirs.fileno())
        return connection.Connection(ours.detach()), _Forked(self, pid)

    def ask(self, what: bytes, number: int, *handed: int) -> int:
        """Send a request; return the server's answer.

        Raises:
            OSError: the server died.
        """
        with self._asking:
            socket.send_fds(self._control, [what + _NUMBER.pack(number)], handed)
            answer = self._control.recv(_NUMBER.size)
        if not answer:
            raise ConnectionError("the fork server died")
        code: int = _NUMBER.unpack(answer)[0]
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        self._control.close()
        self._process.join()


def _serve(control: socket.socket, folder: Path, warm: bytes) -> None:
    """Run a fork server until its parent closes the line, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    _import_all(warm)
    gc.collect()
    gc.freeze()  # forks then share the memory of the imports
    while True:
        request, handed, _, _ = socket.recv_fds(control, 1 + _NUMBER.size, 1)
        if not request:
            return
        if request[:1] == _FORK:
            answer = _fork(control, handed[0])
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(_NUMBER.unpack(request[1:])[0], 0)[1])
        control.sendall(_NUMBER.pack(answer))


def _import_all(warm: bytes) -> None:
    import numpy.random  # noqa: F401
    import torch

    import simdist.api  # noqa: F401

    torch.set_num_threads(1)  # threads of OpenMP would not outlive a fork
    if warm:
        with suppress(Exception):  # a worker reports the error when it imports
            pickle.loads(warm)()


def _fork(control: socket.socket, line: int) -> int:
    pid = os.fork()
    if pid:
        os.close(line)
        return pid
    code = 1
    try:
        control.close()
        os.set_inheritable(line, False)
        _work(connection.Connection(line))
        code = 0
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _work(line: connection.Connection, folder: Path | None = None) -> None:
    """Run a worker process until the line ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the process that waits for the results is interrupted
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if folder is not None:
        os.chdir(folder)
    line.send(None)
    with suppress(EOFError, OSError):
        while True:
            message = line.recv()
            try:
                answer: tuple[bool, Any] = True, do(*message)
                sent = pickle.dumps(answer)
            except Exception as error:
                sent = pickle.dumps((False, _sendable(error)))
            line.send_bytes(sent)
    end()


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SimdistError(f"{type(error).__name__}: {error}")
    return error


def _end(number: int, frame: FrameType | None) -> None:
    """End the process; the current run cleans up if that takes at most `_PATIENCE_S`."""
    signal.alarm(_PATIENCE_S)
    sys.exit(1)


def _end_with_parent() -> None:
    """End this worker with its parent: if that is interrupted or killed, no tasks arrive any more."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
