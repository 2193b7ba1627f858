"""The parent process of everything in a real run; it ends all of it after the death of its starter.

However the starter ends, SIGKILL included, its end of a socket closes. The keeper then kills every process of the run,
also those that have left their parents (it is their "subreaper": they become its children), removes the run's temporary
folder, and ends. So processes outlive the starter only for the instant that this takes. `_lifeline` ends the run's
processes in case the keeper itself is killed.

Run as `python -m simdist.hardware._keeper PARENT PREFIX`, with the socket as standard input. Requests and answers are
lines of JSON:

    ["start", words] with three descriptors -> ["started", pid]: a child with these as stdin, stdout and stderr
    ["end"] -> ["ended"]: nothing of the run lives any more
    -> ["exit", pid], unasked: a child that was started has ended

PREFIX is the folder for the temporary folder, and the beginning of its name; empty for none. The keeper's first line is
the folder's path. It uses the standard library only: it starts in a twentieth of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from simdist.errors import SimdistError
from simdist.hardware._lifeline import adopt_orphans, die_with

__all__ = ["Keeper", "descendants", "main"]

_ENDING_S = 10.0  # for the keeper to end everything; it takes milliseconds
_STUBBORN_S = 5.0  # for processes that SIGKILL does not reach at once, because the kernel holds them


class Keeper:
    """A keeper, seen from its starter; `folder` is the run's folder.

    With `keep`, the folder is that one, and it stays; else it is a temporary one, removed at the end.

    Example:
        >>> with Keeper() as keeper:
        ...     pid = keeper.start([sys.executable, "-c", "import this"], stdout=2)
        ...     keeper.wait(pid, limit_s=60)
        True
    """

    def __init__(self, keep: Path | None = None) -> None:
        self._lines = b""
        self._exited: set[int] = set()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX)
        prefix = "" if keep else f"{tempfile.gettempdir()}/simdist-"
        try:
            with theirs:
                # A session of its own: Ctrl-C goes to the starter, which ends everything in order.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "simdist.hardware._keeper", str(os.getpid()), prefix],
                    stdin=theirs.fileno(),
                    env=_environment(),
                    start_new_session=True,
                )
            path = self._answer("folder")[0]
        except BaseException:
            self._channel.close()
            raise
        self.pid = self._process.pid
        self._temporary = str(path)
        self.folder = keep if keep else Path(self._temporary)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, words: Sequence[str], *, stdin: int | None = None, stdout: int = 1, stderr: int = 2) -> int:
        """Start a command under the keeper; return its process id."""
        with Path(os.devnull).open("rb") as nothing:
            fds = [nothing.fileno() if stdin is None else stdin, stdout, stderr]
            with _kept():
                socket.send_fds(self._channel, [json.dumps(["start", list(words)]).encode() + b"\n"], fds)
            return int(str(self._answer("started")[0]))

    def wait(self, pid: int, limit_s: float) -> bool:
        """Wait until this child has ended; False if it still runs."""
        deadline = time.monotonic() + limit_s
        while pid not in self._exited:
            ready, _, _ = select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            self._read()
        return True

    def end(self) -> None:
        """Kill all processes under the keeper; none is left when this returns."""
        with _kept():
            self._channel.sendall(b'["end"]\n')
        self._answer("ended")

    def close(self) -> None:
        """End everything, including the keeper and the temporary folder."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        if self._temporary:  # removes it if the keeper was killed
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _answer(self, kind: str) -> list[object]:
        while True:
            while b"\n" not in self._lines:
                self._read()
            line, _, self._lines = self._lines.partition(b"\n")
            said, *values = json.loads(line)
            if said == kind:
                return list(values)

    def _read(self) -> None:
        """Read the keeper's lines; remember the children that have ended."""
        with _kept():
            data = self._channel.recv(1 << 16)
            if not data:
                raise ConnectionResetError
        self._lines += data
        for line in self._lines.split(b"\n")[:-1]:
            said, *values = json.loads(line)
            if said == "exit":
                self._exited.add(values[0])


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except ConnectionError:  # the keeper ends only with its starter
        raise SimdistError("the process that keeps the real run's processes has been killed") from None


def _environment() -> dict[str, str]:
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {key: value for key, value in os.environ.items() if key not in names} | {"PYTHONPATH": path}


# -- the process -------------------------------------------------------------------------------------------------------


def main(parent: int, prefix: str) -> None:
    """Keep the run's processes until the starter ends them, or dies."""
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the pipe reports them
    adopt_orphans()
    channel = socket.socket(fileno=0)
    started: list[int] = []
    folder = tempfile.mkdtemp(prefix=prefix.rpartition("/")[2], dir=prefix.rpartition("/")[0]) if prefix else ""
    try:
        # The starter's end may stay open in a process that it has forked, so the socket alone is not enough.
        die_with(parent, signal.SIGTERM)
        _say(channel, "folder", folder)
        _serve(channel, woken, started)
    except OSError:
        pass  # the starter died
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all(started)
        if folder:
            _remove(folder)


def _say(channel: socket.socket, *what: object) -> None:
    channel.sendall(json.dumps(what).encode() + b"\n")


def _serve(channel: socket.socket, woken: int, started: list[int]) -> None:
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready and signal.SIGTERM in os.read(woken, 1 << 10):
            return
        for pid in _reaped():
            if pid in started:
                _say(channel, "exit", pid)
        if channel.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 3)  # one request: its sender waits for the answer
        while data and not data.endswith(b"\n"):
            data += (more := channel.recv(1 << 16))
            if not more:
                return
        if not data:
            return
        asked, *values = json.loads(data)
        if asked == "start":
            # `preexec_fn` is safe here: this process has one thread.
            child = subprocess.Popen(
                values[0], stdin=fds[0], stdout=fds[1], stderr=fds[2], preexec_fn=_for_child(os.getpid())
            )
            for fd in fds:
                os.close(fd)
            child.returncode = 0  # `_reaped` waits for it, not the object
            started.append(child.pid)
            _say(channel, "started", child.pid)
        else:
            _end_all(started)
            _say(channel, "ended")


def _for_child(keeper: int) -> Callable[[], None]:
    return lambda: die_with(keeper, signal.SIGKILL)


def _reaped() -> Iterable[int]:
    """Return the children that have ended, including adopted ones."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            found.append(pid)
    return found


def _end_all(started: Sequence[int]) -> None:
    """Kill every process below this one, until none is left."""
    deadline = time.monotonic() + _STUBBORN_S
    while time.monotonic() < deadline:
        living = descendants(os.getpid()) if sys.platform == "linux" else started
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        gone = _reaped()
        if not living or not set(living) - set(gone):
            return
        time.sleep(0.005)


def descendants(pid: int) -> list[int]:
    """Return the processes below this one, as /proc has them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            # The name, in brackets, may hold anything; the parent is the second word after it.
            words = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
            children.setdefault(int(words[1]), []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _remove(folder: str) -> None:
    for _ in range(20):  # a process that the kernel held might still write
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
