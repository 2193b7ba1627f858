"""Programs that a rank starts: real ones, with the rank's environment and streams, and a length in virtual time.

`subprocess`, `os.system`, `os.popen`, `os.posix_spawn` and `os.spawnv` with its kin start what they always start, in
real time, while the rank keeps the baton: virtual time stands still meanwhile. `_programs` decides when a program ends
in virtual time, `_waits` waits for it by its pid. A program inherits from the rank and not from the host: the
environment, the signals that are ignored, and files for the streams, whose content joins the rank's output.

In doubt: what a program prints joins the rank's output when the program is waited for, or the rank writes or ends. So
if a rank and its program write at the same time, no seed decides the order of their lines. Programs that a C library
starts (`system` by ctypes) are not seen. Functions that replace this process or fork it are refused: `os.exec*`,
`os.fork`, `pty.fork`, and with it `pty.spawn`. Processes of `multiprocessing` are simulated (`_multiprocessing`).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, AnyStr

from simdist.inside.python import original as real
from simdist.process._process import SimProcess
from simdist.process._programs import Program, Spawned, ends_within, real_timeout_s
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime, on_ranks
from simdist.process._stdio import STREAMS
from simdist.process._when_imported import when_imported
from simdist.process.children._ignored_signals import program_ignores
from simdist.process.children._program_output import let_others_run_while_reading
from simdist.process.children._waits import replace_kin
from simdist.process.stdlib._standard_descriptors import for_program, standard_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from _typeshed import StrOrBytesPath

    from simdist.process._programs import AnyPopen, Command, Running

__all__ = ["install"]


# True while a Popen is made, which may start its program with `os.posix_spawn` (mostly from Python 3.13 on). The rank
# that makes it has the baton until the program has started.
_popen_begins = False


def install(patches: Patches) -> None:
    """Let programs that a rank starts inherit from the rank."""
    patches.redirect(_REPLACEMENTS)


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(
        self: AnyPopen,
        args: Command,
        bufsize: int = -1,
        executable: StrOrBytesPath | None = None,
        *rest: object,
        **named: object,
    ) -> None:
        process = current_process()
        if process is None:
            original(self, args, bufsize, executable, *rest, **named)
            return
        process.simulation.check()
        given = dict(zip(_PLACES, rest, strict=False)) | named
        if given.get("env") is None:
            given["env"] = dict(os.environ)
        for number, name in ((0, "stdin"), *STREAMS.items()):
            reported = given.get(name)
            meant = number if reported is None else standard_number(process, reported)
            if meant is not None:
                given[name] = _inherited(process, meant)
        runtime = current_runtime()
        assert runtime is not None
        with program_ignores(process), _by_popen(process), runtime.left_by_program():
            original(self, args, bufsize, executable, **given)
        if self.pid is not None:  # it is None if a mock starts nothing
            _began(process, self, args, sys._getframe(1))
            let_others_run_while_reading(process, self)

    return init


def _inherited(process: SimProcess, number: int) -> int:
    """The descriptor that a program gets for a standard one of its process, which has no terminal."""
    return for_program(process, number) if number else process.laid_over.get(0, subprocess.DEVNULL)


@contextmanager
def _by_popen(process: SimProcess) -> Iterator[None]:
    global _popen_begins
    _popen_begins = True
    try:
        with _really(process):  # it reads from a pipe until the program has started
            yield
    finally:
        _popen_begins = False


def _began(process: SimProcess, program: Running, args: Command, frame: FrameType) -> None:
    runtime = current_runtime()
    assert runtime is not None
    replace_kin(runtime)
    runtime.programs.begin(process, program, args, frame)


def _program(process: SimProcess, popen: AnyPopen) -> Program | None:
    """The program of a Popen, until its process knows that it has ended."""
    found = process.programs.get(popen.pid) if popen.returncode is None else None
    return found if found is not None and found.popen is popen else None


@contextmanager
def _polling_really(process: SimProcess) -> Iterator[None]:
    with _really(process):
        try:
            yield
        finally:
            if process.running:
                process.take_over()


@contextmanager
def _really(process: SimProcess) -> Iterator[None]:
    """The calling task polls what is outside the simulation."""
    tasks, task = process.really_polling, process.simulation.current
    if task is None or task in tasks:
        yield
        return
    tasks.add(task)
    try:
        yield
    finally:
        tasks.discard(task)


def _wait(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def wait(self: AnyPopen, timeout: float | None = None) -> int:
        process = current_process()
        if process is None:
            return original(self, timeout)
        program = _program(process, self)
        if program is None:
            with _polling_really(process):
                if timeout is not None and not ends_within(self, timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout)
                return original(self)
        if timeout is None:
            program.pass_time()
            return original(self)
        deadline_ns = program.due_at(timeout)
        if not program.pass_time(deadline_ns):
            raise subprocess.TimeoutExpired(self.args, timeout)
        if not program.ends_in_time(timeout):
            if not process.polls_really:  # `communicate` lets the time of its own timeout pass
                program.outlasts(deadline_ns)
            raise subprocess.TimeoutExpired(self.args, timeout)
        return original(self)

    return wait


def _communicate(original: Callable[..., tuple[AnyStr, AnyStr]]) -> Callable[..., tuple[AnyStr, AnyStr]]:
    @functools.wraps(original)
    def communicate(
        self: subprocess.Popen[AnyStr], input: AnyStr | None = None, timeout: float | None = None
    ) -> tuple[AnyStr, AnyStr]:
        process = current_process()
        if process is None:
            return original(self, input, timeout)
        program = _program(process, self)
        if program is None:
            with _polling_really(process):
                return original(self, input, timeout)
        if timeout is None:
            program.pass_time()
            with _polling_really(process):
                return original(self, input, None)
        deadline_ns = program.due_at(timeout)
        if not program.pass_time(deadline_ns):
            raise subprocess.TimeoutExpired(self.args, timeout)
        try:
            with _polling_really(process):
                return original(self, input, real_timeout_s(timeout))
        except subprocess.TimeoutExpired as error:
            said = error
        program.outlasts(deadline_ns)
        raise subprocess.TimeoutExpired(self.args, timeout, output=said.output, stderr=said.stderr)

    return communicate


def _send_signal(original: Callable[[AnyPopen, int], None]) -> Callable[[AnyPopen, int], None]:
    @functools.wraps(original)
    def send_signal(self: AnyPopen, sig: int) -> None:
        process = current_process()
        program = None if process is None else _program(process, self)
        runtime = current_runtime()
        if program is not None:
            program.signal(sig)
        elif process is not None and runtime is not None and self.pid in runtime.programs.of_torch:
            if self.poll() is None:
                real(os.kill)(self.pid, sig)
        else:
            original(self, sig)

    return send_signal


def _system(command: StrOrBytesPath) -> int:
    code = subprocess.call(command, shell=True)
    return code << 8 if code >= 0 else -code  # the status as `os.wait` gives it


def _posix_spawn(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def posix_spawn(
        path: StrOrBytesPath,
        argv: Sequence[StrOrBytesPath],
        env: Mapping[str, str] | Mapping[bytes, bytes],
        /,
        *,
        file_actions: Iterable[Sequence[object]] | None = (),
        **settings: object,
    ) -> int:
        process = current_process()
        if process is None or _popen_begins:
            return original(path, argv, env, file_actions=file_actions, **settings)
        process.simulation.check()
        streams: list[Sequence[object]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        streams += [(os.POSIX_SPAWN_DUP2, for_program(process, number), number) for number in STREAMS]
        with program_ignores(process):
            pid = original(path, argv, env, file_actions=[*streams, *(file_actions or ())], **settings)
        _began(process, Spawned(pid), [path], sys._getframe(1))
        return pid

    return posix_spawn


def _spawnvef(original: Callable[..., int]) -> Callable[..., int]:
    """For `os.spawnl` to `os.spawnvpe`, which all call it: `func` is the function of `os` that a fork would call."""

    @functools.wraps(original)
    def spawnvef(
        mode: int,
        file: StrOrBytesPath,
        args: Sequence[StrOrBytesPath],
        env: Mapping[str, str] | Mapping[bytes, bytes] | None,
        func: Callable[..., object],
    ) -> int:
        if current_process() is None:
            return original(mode, file, args, env, func)
        if not isinstance(args, (tuple, list)):
            raise TypeError("argv must be a tuple or a list")
        if not args or not args[0]:
            raise ValueError("argv first element cannot be empty")
        begin = os.posix_spawnp if func.__name__.startswith("execvp") else os.posix_spawn
        try:
            pid = begin(file, args, os.environ if env is None else env)
        except OSError:  # a forked child would end with this status
            if mode == os.P_WAIT:
                return 127
            raise
        return pid if mode == os.P_NOWAIT else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return spawnvef


def _close_transport(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """For a transport of asyncio, which kills its program unless that has ended: it must not wait for the end."""

    @functools.wraps(original)
    def close(self: Any) -> None:
        process, popen = current_process(), getattr(self, "_proc", None)
        program = None if process is None or popen is None else _program(process, popen)
        if program is not None:
            program.leave()
        original(self)

    return close


def _adapt_transports(patches: Patches) -> None:
    transport = sys.modules["asyncio.base_subprocess"].BaseSubprocessTransport
    patches.wrap(transport, "close", _close_transport)


when_imported("asyncio.base_subprocess", _adapt_transports, remembered=True)


# The positional parameters of Popen after `args`, `bufsize` and `executable`.
_PLACES = ("stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env", "universal_newlines")
_MADE: tuple[tuple[object, str, Make], ...] = (
    (subprocess.Popen, "__init__", _init),
    (subprocess.Popen, "wait", _wait),
    (subprocess.Popen, "communicate", _communicate),
    (subprocess.Popen, "send_signal", _send_signal),
    (os, "system", on_ranks(_system)),
    (os, "posix_spawn", _posix_spawn),
    (os, "posix_spawnp", _posix_spawn),
    (os, "_spawnvef", _spawnvef),
)
_REPLACEMENTS = tuple(Replacement(owner, name, make) for owner, name, make in _MADE if hasattr(owner, name))
