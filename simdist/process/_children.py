"""Programs that a rank starts: real ones, with the rank's environment and streams, and a length in virtual time.

`subprocess`, `os.system` and `os.popen` start what they always start, in real time and with the baton in hand: virtual
time stands still meanwhile. When a program ends in virtual time is `_programs`' affair. What a child gets from its
parent without being told is the rank's and not the host's: the environment, and files for the streams, which end up in
the rank's output.

In doubt: what a child prints comes into the rank's output when somebody waits for the child, or the rank writes or
ends, so a rank that writes while a child of its own does so too sees their lines in an order that no seed decides.
What replaces this process is refused: `os.exec*`. Processes of `multiprocessing` are simulated (`_multiprocessing`).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simdist.process._child_processes import wait_for_child
from simdist.process._process import SimProcess
from simdist.process._programs import Program
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime
from simdist.process._stdio import descriptor_of

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Have children of a rank be its own."""
    patches.redirect(_REPLACEMENTS)


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, args: Any, bufsize: int = -1, executable: Any = None, *rest: Any, **named: Any) -> None:
        process = current_process()
        if process is None:
            original(self, args, bufsize, executable, *rest, **named)
            return
        process.simulation.check()
        given = dict(zip(_PLACES, rest, strict=False)) | named
        if given.get("env") is None:
            given["env"] = dict(os.environ)
        if given.get("stdin") is None:
            given["stdin"] = subprocess.DEVNULL  # a rank has no terminal
        for name in ("stdout", "stderr"):
            if given.get(name) is None:
                given[name] = descriptor_of(process, name)
        original(self, args, bufsize, executable, **given)
        runtime = current_runtime()
        assert runtime is not None
        runtime.programs.begin(process, self, args, sys._getframe(1))

    return init


def _program(process: SimProcess, popen: Any) -> Program | None:
    """The program that runs, as far as its process knows."""
    found = process.programs.get(popen.pid) if popen.returncode is None else None
    return found if found is not None and found.popen is popen else None


@contextmanager
def _polling_really(process: SimProcess) -> Iterator[None]:
    before, process.polls_really = process.polls_really, True
    try:
        yield
    finally:
        process.polls_really = before
        if process.running:
            process.take_over()


def _wait(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def wait(self: Any, timeout: float | None = None) -> int:
        process = current_process()
        if process is None:
            return original(self, timeout)
        program = _program(process, self)
        if program is not None and not program.pass_time(process, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with _polling_really(process):
            if program is None:
                return original(self, timeout)
            program.wait_really(patient=timeout is None)
        code: int = self.returncode
        return code

    return wait


def _communicate(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        process = current_process()
        if process is None:
            return original(self, input, timeout)
        program = _program(process, self)
        if program is not None:
            if not program.pass_time(process, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            timeout = None
        with _polling_really(process):
            try:
                return original(self, input, timeout)
            finally:
                if program is not None:
                    program.note_end()

    return communicate


def _poll(original: Callable[[Any], int | None]) -> Callable[[Any], int | None]:
    @functools.wraps(original)
    def poll(self: Any) -> int | None:
        process = current_process()
        program = None if process is None else _program(process, self)
        if process is None or program is None:
            return original(self)
        if process.simulation.read_clock() < program.ends_ns:
            return None
        with _polling_really(process):
            program.wait_really(patient=False)
        code: int | None = self.returncode
        return code

    return poll


def _send_signal(original: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    @functools.wraps(original)
    def send_signal(self: Any, sig: int) -> None:
        process = current_process()
        program = None if process is None else _program(process, self)
        if program is None:
            original(self, sig)
        else:
            program.signal(sig)

    return send_signal


def _waitpid(original: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    @functools.wraps(original)
    def waitpid(pid: int, options: int, /) -> Any:
        process = current_process()
        if process is None:
            return original(pid, options)
        if process.children and (found := wait_for_child(pid, options)):
            return found
        program = process.programs.get(pid)
        if program is not None:
            if options & os.WNOHANG and process.simulation.read_clock() < program.ends_ns:
                return 0, 0
            program.pass_time(process)
        return original(pid, options)

    return waitpid


def _system(original: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(original)
    def system(command: Any) -> int:
        if current_process() is None:
            return original(command)
        code = subprocess.call(command, shell=True)
        return code << 8 if code >= 0 else -code  # the status as `os.wait` gives it

    return system


# The parameters of Popen behind `args`, `bufsize` and `executable`, which it takes by place.
_PLACES = ("stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env", "universal_newlines")
_REPLACEMENTS = tuple(
    Replacement(owner, name, make)
    for owner, name, make in (
        (subprocess.Popen, "__init__", _init),
        (subprocess.Popen, "wait", _wait),
        (subprocess.Popen, "communicate", _communicate),
        (subprocess.Popen, "poll", _poll),
        (subprocess.Popen, "send_signal", _send_signal),
        (os, "system", _system),
        (os, "waitpid", _waitpid),
    )
    if hasattr(owner, name)
)
