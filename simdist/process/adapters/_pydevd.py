"""pydevd, the debugger of VS Code and PyCharm, on a rank: a rank that stops keeps the baton until it goes on.

pydevd stops a thread by a call in it, which waits for the user's requests. If the rank waited there, the others would
run on and virtual time would pass. So the thread acts for the host while it is stopped: nothing else runs, and the
watchdog does not count.

- Before it stops, the rank waits until its devices are done, and the others run meanwhile: then the user can look at
  all tensors.
- A variable or an expression that the user asks for is evaluated on the rank: `dist.get_rank()` is its own. If the
  evaluation has to wait, time passes; the others run only if nothing happens without them.
- Threads that pydevd starts to watch a long evaluation are the host's.
"""

from __future__ import annotations

import _thread
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simdist.process._runtime import Patches, active_runtime, current_runtime
from simdist.process.threads._tracing import debugger_of_host

__all__ = ["NAME", "adapt"]

NAME = "pydevd"
_CLOCKS = "_pydevd_bundle.pydevd_timeout"  # its threads watch evaluations


def adapt(patches: Patches) -> None:
    """Let the user stop ranks, look at them, and have them go on."""
    debugger = debugger_of_host()  # its class is `__main__`'s if pydevd is the program that runs, as under PyCharm
    classes = (sys.modules[NAME].PyDB, *(() if debugger is None else (type(debugger),)))
    for each in dict.fromkeys(classes):
        patches.wrap(each, "set_suspend", _stopping)
        patches.wrap(each, "do_wait_suspend", _stopped)
        patches.wrap(each, "post_internal_command", _posting)
    clocks = sys.modules.get(_CLOCKS)
    if clocks is not None:
        patches.wrap(vars(clocks)["TimeoutTracker"], "call_on_timeout", _as_host)


def _stopping(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def set_suspend(*args: object, **kwargs: object) -> object:
        runtime = current_runtime()
        if runtime is not None:
            for settle in runtime.stops:
                settle()
        return original(*args, **kwargs)

    return set_suspend


def _stopped(original: Callable[..., object]) -> Callable[..., object]:
    waits = _as_host(original)

    @functools.wraps(original)
    def do_wait_suspend(*args: object, **kwargs: object) -> object:
        runtime = current_runtime()
        if runtime is None:
            return original(*args, **kwargs)
        simulation = runtime.simulation
        before, simulation.watched = simulation.watched, False
        try:
            return waits(*args, **kwargs)
        finally:
            simulation.watched = before

    return do_wait_suspend


def _as_host(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> object:
        if current_runtime() is None:
            return original(*args, **kwargs)
        with _acting_for(0):
            return original(*args, **kwargs)

    return call


def _posting(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def post_internal_command(debugger: object, command: object, *args: object) -> object:
        return original(debugger, _OfThread(command), *args)

    return post_internal_command


class _OfThread:
    """A command of the user, carried out by the stopped thread: for its rank, if the thread is a rank's."""

    def __init__(self, command: Any) -> None:
        self._command = command

    def __getattr__(self, name: str) -> Any:
        return getattr(self._command, name)

    def do_it(self, debugger: object) -> None:
        """Carry it out."""
        runtime, ident = active_runtime(), _thread.get_ident()
        task = None if runtime is None else runtime.simulation.current
        if task is None or task.ident != ident:
            self._command.do_it(debugger)
            return
        with _acting_for(ident), task.simulation.alone():
            self._command.do_it(debugger)


@contextmanager
def _acting_for(ident: int) -> Iterator[None]:
    """Let the calling thread act for its task, if `ident` is the thread's, or for the host if it is 0."""
    runtime = active_runtime()
    assert runtime is not None
    simulation = runtime.simulation
    before, simulation.current_ident = simulation.current_ident, ident
    try:
        yield
    finally:
        simulation.current_ident = before
