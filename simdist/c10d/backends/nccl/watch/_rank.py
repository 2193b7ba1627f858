"""The state of NCCL in one rank's process: its groups, its recorder, its first monitor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._variables import Variables
from simdist.c10d.backends.nccl.watch._recorder import NcclRecorder
from simdist.inside.torch import Place
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.watch._monitor import Monitor
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember

__all__ = ["RankNccl", "known_nccl_of", "nccl_of"]

_EXIT_NS = 100_000_000  # least time in which an interpreter with torch exits
_PREFIX = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


class RankNccl:
    """The static variables of ProcessGroupNCCL in a rank's process."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.warned: dict[str, None] = {}  # warnings that appear only once
        variables = self.variables()
        limit = variables.number(2000, "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        variables.truth(False, "TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK")
        self.recorder = NcclRecorder(max(0, limit), process.calendar_ns)
        self.groups: list[WatchedMember] = []
        self.monitor: Monitor | None = None  # of the first group
        self.dump_is_due = False  # a dump was requested
        self.last_warning = ""  # NCCL's last warning, which torch repeats
        self._work_prefix = ""  # of log lines about works: the rank in the group of the first such line
        self._prefix: str | None = None  # of the dump files; set by the first dump
        process.at_exit.append((self._leave, (), {}))

    @property
    def global_rank(self) -> int:
        """The process's rank for torch: its rank in the first group over NCCL (`globalRank` in C++)."""
        return self.groups[0].rank()

    def variables(self) -> Variables:
        """Return the current environment variables of the process; callable at any moment, on any thread."""
        found = {os.fsdecode(name): os.fsdecode(value) for name, value in self.process.environ.items()}
        return Variables(found, self._warn)

    def _warn(self, key: str, text: str, place: Place) -> None:
        function = "(function check_env)" if not key else "(function operator())"
        if not key or self.once(key):
            log(self.process, "W", f"Warning: {text} {function}", place)

    def write_dump(self, say: Callable[..., None], *, frames: bool, active: bool) -> bool:
        """Write the flight record, if a file is named; False if nothing is recorded. `say` reports it."""
        if not self.recorder.limit:
            return False
        variables = self.variables()
        if self._prefix is None or variables.truth(False, "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"):
            self._prefix = variables.text("", *_PREFIX)
        if self._prefix:
            path = Path(f"{self._prefix}{self.global_rank}")
            path.parent.mkdir(parents=True, exist_ok=True)
            say(f"ProcessGroupNCCL dumping nccl trace to {path}", Place.DUMP_BEGUN)
            path.write_bytes(self.recorder.dump_bytes(self.process.simulation.now_ns, frames=frames, active=active))
            text = f"Finished writing Flight Recorder debug info to {path}"
            say(text, Place.DUMP_WRITTEN, prefixed=False)
            say("Flight Recorder trace successfully dumped.", Place.DUMP_ENDED)
        return True

    def work_prefix(self, group: WatchedMember) -> str:
        """Return the prefix of log lines about works; the first group that asks decides it for all."""
        self._work_prefix = self._work_prefix or f"[Rank {group.rank()}] "
        return self._work_prefix

    def once(self, key: str) -> bool:
        """True the first time for this key."""
        new = key not in self.warned
        self.warned[key] = None
        return new

    def _leave(self) -> None:
        """Abort the remaining groups at the end of the interpreter; the first rank of each host warns of them.

        For torch a rank is the first of its host if the number of the host's devices divides it. An abort takes real
        processes so long that launched works are over by then, unless they hang.
        """
        process = self.process
        left = [group for group in self.groups if not group.closed]
        for group in left:
            group.let_end(process.simulation.now_ns + _EXIT_NS)
        for group in left:
            group.informer.say("ProcessGroupNCCL destructor entered.", Place.DESTRUCTOR)
            if group.rank() % max(1, torch.cuda.device_count()) == 0 and self.once("left"):
                log(
                    process,
                    "W",
                    "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak "
                    "resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown "
                    "(function operator())",
                    Place.NOT_DESTROYED,
                )
            group.dump_extra()
            group.informer.say("Launching ProcessGroupNCCL abort asynchronously.", Place.ABORT_LAUNCHED)
            group.informer.say("ProcessGroupNCCL aborts successfully.", Place.ABORTED)
            group.end_threads()
        for group in self.groups:
            group.watchdog.join()


def nccl_of(process: SimProcess) -> RankNccl:
    """Return the state of a process, and make it with the first group; called on the rank.

    Raises:
        RuntimeError: torch does not accept the value of an environment variable.
    """
    state = process.torch_state
    if state.nccl is None:
        state.nccl = RankNccl(process)
    found: RankNccl = state.nccl
    return found


def known_nccl_of(process: SimProcess) -> RankNccl | None:
    """Return the state of a process, on any thread; None if the process has no group yet."""
    found: RankNccl | None = None if process.torch_state is None else process.torch_state.nccl
    return found
