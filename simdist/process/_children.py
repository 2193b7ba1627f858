"""Programs that a rank starts: real ones, with the rank's environment and streams.

`subprocess`, `os.system` and `os.popen` start what they always start, in real time and with the baton in hand: virtual
time stands still meanwhile. What a child gets from its parent without being told is the rank's and not the host's: the
environment, and files for the streams, which end up in the rank's output.

In doubt: what a child prints comes into the rank's output when somebody waits for the child, or the rank writes or
ends, so a rank that writes while a child of its own does so too sees their lines in an order that no seed decides.
What replaces this process is refused: `os.exec*`. Processes of `multiprocessing` are simulated (`_multiprocessing`).
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any

from simdist.process._runtime import Patches, Replacement, current_process
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

    return init


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **named: Any) -> Any:
        process = current_process()
        if process is None:
            return original(self, *args, **named)
        before, process.polls_really = process.polls_really, True
        try:
            return original(self, *args, **named)
        finally:
            process.polls_really = before
            if process.running:
                process.take_over()

    return wait


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
        (subprocess.Popen, "wait", _waiting),
        (subprocess.Popen, "communicate", _waiting),
        (os, "system", _system),
    )
    if hasattr(owner, name)
)
