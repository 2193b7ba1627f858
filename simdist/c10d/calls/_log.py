"""Lines of torch's log on a rank's stderr: `[rank0]:[E101 00:10:00.000000000 ProcessGroupNCCL.cpp:690] text`."""

from __future__ import annotations

import datetime

from simdist.inside.torch import Place
from simdist.process import SimProcess

__all__ = ["log", "shows"]

_LEVELS = "IWEF"
_NAMES = {"INFO": 0, "WARNING": 1, "ERROR": 2, "FATAL": 3, "0": 0, "1": 1, "2": 2, "3": 3}


def shows(process: SimProcess, level: str) -> bool:
    """True if the rank's TORCH_CPP_LOG_LEVEL shows lines of a level. Callable at any moment, on any thread."""
    name = process.environ.get(b"TORCH_CPP_LOG_LEVEL", b"WARNING")
    return _LEVELS.index(level) >= _NAMES.get(name.decode(), 1)


def log(process: SimProcess, level: str, text: str, place: Place | str) -> None:
    """Write a line, unless the rank's TORCH_CPP_LOG_LEVEL hides it. Callable at any moment, on any thread.

    The line begins with the rank in the default group, if the process has one.
    """
    if not shows(process, level):
        return
    now_ns = process.calendar_ns(process.simulation.now_ns)
    seconds, rest_ns = divmod(now_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    stamp = f"{level}{moment.month}{moment:%d %H:%M:%S}.{rest_ns:09d}"
    state = process.torch_state
    rank = None if state is None else state.world.global_rank
    whose = "" if rank is None else f"[rank{rank}]:"
    process.add_output("stderr", f"{whose}[{stamp} {place}] {text}\n")
