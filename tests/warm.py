"""Interpreters that have imported torch, and do each job in a fork of their own.

A fresh process for each of a hundred jobs would import torch a hundred times, which takes seconds each. A fork has the
hash seed and the addresses of its interpreter, and has done nothing else. So tests that need their own process get it
from here. For each feature that starts fresh processes one test uses real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import os
import pickle
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

__all__ = ["HASH_SEEDS", "Interpreters"]

ROOT = Path(__file__).resolve().parents[1]
HASH_SEEDS = ("1", "2")
_WARM = (  # slow imports, and those that most jobs need; DDP needs dynamo
    *("torch._dynamo", "torch.distributed.checkpoint", "pytest", "hypothesis.strategies"),
    *("simdist.api", "simdist.scenario", "simdist.sweeps", "simdist.cli", "simdist.testing", "rich.table"),
    *("simdist.device", "simdist.judges", "simdist.c10d.backends.nccl"),
    *("execnet", "pdb"),  # which pytest's plugins import
    *("simdist.cli._run", "simdist.cli._launch", "simdist.cli._fuzz", "simdist.cli._explore", "simdist.cli._sweep"),
)
_SIZE = 8  # bytes of the number before each message


class Interpreters:
    """One interpreter for each of two hash seeds, started on demand; test processes with the same `name` share them."""

    def __init__(self, name: str = "") -> None:
        self._name = name or str(os.getpid())
        self._folder = Path(tempfile.gettempdir()) / f"simdist-warm-{self._name}"
        self._users: IO[str] | None = None  # the file that is locked while this process uses them

    def call(self, hash_seed: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `function(*arguments)` in a fork with this process's environment; fails if it raises.

        Function, arguments and result must pickle.
        """
        with self._connected(hash_seed) as connection, connection.makefile("rwb") as stream:
            _send(stream, pickle.dumps((dict(os.environ), function, arguments)))
            reported = _receive(stream)
        failed, answer = pickle.loads(reported) if reported else (True, "the fork ended without an answer")
        assert not failed, answer
        return answer

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        input: str = "",
        checks: bool = False,
        ends: bool = False,
        anew: Sequence[str] = (),
        **_: object,
    ) -> subprocess.CompletedProcess[str]:
        """Do what `subprocess.run` of Python does, with captured text: `-m MODULE`, `-c CODE` or a file, and arguments.

        With `checks`, a determinism check in that process takes its fresh processes from here, too. The modules and
        packages in `anew` are not imported in it yet. With `ends`, Python frees all that the process has made, as it
        does at the end of a real one.
        """
        assert words[0] == sys.executable
        environment = dict(os.environ if env is None else env)
        hash_seed = environment.get("PYTHONHASHSEED", "")
        reported = self.call(
            hash_seed if hash_seed in HASH_SEEDS else HASH_SEEDS[0],
            _python,
            list(words[1:]),
            str(cwd or Path.cwd()),
            environment,
            input,
            self._name if checks else "",
            ends,
            tuple(anew),
        )
        return subprocess.CompletedProcess(list(words), *reported)

    def close(self) -> None:
        """Let the interpreters end, if no other process uses them."""
        if self._users is None:
            return
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not list(self._folder.glob("*.socket")):  # no interpreter was started
                shutil.rmtree(self._folder, ignore_errors=True)
        self._users.close()
        self._users = None

    def _connected(self, hash_seed: str) -> socket.socket:
        if self._users is None:
            self._folder.mkdir(exist_ok=True)
            self._users = (self._folder / "users").open("w")
            fcntl.flock(self._users, fcntl.LOCK_SH)
        connection = socket.socket(socket.AF_UNIX)
        path = self._folder / f"{hash_seed}.socket"
        with (self._folder / "starting").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                words = [sys.executable, "-m", "tests.warm", str(path)]
                environment = os.environ | {"PYTHONHASHSEED": hash_seed}
                nothing = subprocess.DEVNULL
                subprocess.run(words, cwd=ROOT, env=environment, stdin=nothing, stdout=nothing, check=True)
                connection.connect(str(path))
        return connection


def _send(stream: Any, data: bytes) -> None:
    stream.write(len(data).to_bytes(_SIZE) + data)
    stream.flush()


def _receive(stream: Any) -> bytes:
    size = stream.read(_SIZE)
    data: bytes = stream.read(int.from_bytes(size)) if len(size) == _SIZE else b""
    return data


# -- the interpreter ---------------------------------------------------------------------------------------------------


def _serve(path: Path) -> None:
    """Answer at the socket `path`, in a background process, until no process holds a lock on the file "users" there."""
    plugins = importlib.import_module("_pytest.config").default_plugins
    for name in (*_WARM, *(f"_pytest.{plugin}" for plugin in plugins)):
        importlib.import_module(name)
    importlib.import_module("simdist.process._following")._EARLY.among(())  # it judges each module once
    # A count of the frozen objects takes longer than most worlds with devices.
    vars(importlib.import_module("simdist.process.stdlib._collector"))["host_froze"] = lambda: True
    if os.environ["PYTHONHASHSEED"] == HASH_SEEDS[0]:
        # What a process works out in its first world takes longer than most worlds. Forks of the other interpreter
        # begin with their first world, as real processes do, so a difference between first and later ones is noticed.
        api = importlib.import_module("simdist.api")
        with tempfile.TemporaryDirectory() as folder:
            api.run(_train, world_size=2, disk=importlib.import_module("simdist.storage").Mount(folder=folder))
        assert threading.active_count() == 1, "a fork has only one of these threads"
    gc.collect()
    gc.freeze()  # pytest collects garbage when it ends: a fork would visit all of torch, and so copy its memory

    os.dup2(2, 1)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    if os.fork():
        os._exit(0)
    os.setsid()
    listener.settimeout(1)
    users = (path.parent / "users").open("w")
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
                if not list(path.parent.glob("*.socket")):
                    shutil.rmtree(path.parent, ignore_errors=True)
                os._exit(0)
            continue
        with connection:
            if os.fork() == 0:
                listener.close()
                users.close()
                _answer(connection)


def _train() -> None:
    distributed, torch = importlib.import_module("torch.distributed"), importlib.import_module("torch")
    distributed.init_process_group("gloo")
    distributed.all_reduce(torch.ones(1))
    distributed.destroy_process_group()


def _answer(connection: socket.socket) -> NoReturn:
    with connection, connection.makefile("rwb") as stream:
        answer: tuple[bool, Any]
        try:
            environment, function, arguments = pickle.loads(_receive(stream))
            environment["PYTHONHASHSEED"] = os.environ["PYTHONHASHSEED"]
            os.environ.clear()
            os.environ.update(environment)
            answer = False, function(*arguments)
        except BaseException:
            answer = True, traceback.format_exc()
        _send(stream, pickle.dumps(answer))
    os._exit(0)


def _python(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    typed: str,
    fresh_from: str,
    ends: bool,
    anew: tuple[str, ...],
) -> tuple[int, str, str]:
    """Run `python WORDS` in a fork of this fork, and return its exit code and output."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(typed.encode())
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            for stream, fd in ((stdin, 0), (stdout, 1), (stderr, 2)):
                os.dup2(stream.fileno(), fd)
            sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            if fresh_from:
                from simdist.determinism import _fresh

                vars(_fresh)["_run"] = Interpreters(fresh_from).run
            if anew:  # else not a look: it would copy the memory of all names
                for name in [name for name in sys.modules if any(f"{name}.".startswith(f"{each}.") for each in anew)]:
                    del sys.modules[name]
            code = _exit_code(words)
            if ends:
                ctypes.pythonapi.Py_Exit(code)
            os._exit(code)
        _, status = os.waitpid(child, 0)
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _exit_code(words: list[str]) -> int:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        if words[0] == "-m":
            sys.path[:0] = [str(Path.cwd()), *paths]
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.path[:0] = ["", *paths]
            sys.argv[:] = ["-c", *words[2:]]
            sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[:0] = [str(Path(words[0]).resolve().parent), *paths]
            sys.argv[:] = words
            program = ModuleType("__main__")
            program.__file__ = words[0]
            sys.modules["__main__"] = sys.modules["__mp_main__"] = program
            exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(program))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if leaving.code is not None and not isinstance(leaving.code, int):
            sys.stderr.write(f"{leaving.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
