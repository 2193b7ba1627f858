"""What NCCL keeps per process, of one rank: its number of groups, its recorder, its monitor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simdist.c10d.backends.nccl._environment import Environment
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._recorder import NcclRecorder
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._watchdog import Monitor

__all__ = ["RankNccl", "nccl_of"]

_EXIT_NS = 100_000_000  # that an interpreter with torch in it takes to end, at least


class RankNccl:
    """The static variables of ProcessGroupNCCL in a rank's process."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.environment = Environment.read(os.environ, lambda text: log(process, "W", text, 61, "Utils.hpp"))
        self.recorder = NcclRecorder(self.environment.record_size, process.epoch_ns)
        self.groups: list[Any] = []
        self.monitor: Monitor | None = None  # of the first group
        self.warned: dict[str, None] = {}  # what is said once
        process.at_exit.append((self._leave, (), {}))

    def write_dump(self) -> None:
        """Write the flight record, if a file is named."""
        environment, process = self.environment, self.process
        prefix = environment.dump_prefix
        if environment.dynamic_prefix:
            name: Any = b"TORCH_FR_DUMP_TEMP_FILE"
            prefix = os.fsdecode(process.environ.get(name, prefix))
        if prefix:
            path = Path(f"{prefix}{process.rank}")
            path.parent.mkdir(parents=True, exist_ok=True)
            what = {"frames": environment.dumps_stacks, "active": environment.dumps_active_only}
            path.write_bytes(self.recorder.dump_bytes(process.simulation.now_ns, **what))

    def once(self, key: str) -> bool:
        """True the first time."""
        new = key not in self.warned
        self.warned[key] = None
        return new

    def _leave(self) -> None:
        """The interpreter ends: the first rank of each host says that groups are left.

        That takes real processes so long that what ranks have launched is over by then, unless it hangs.
        """
        process = self.process
        left = [group for group in self.groups if not group.closed]
        for group in left:
            group.let_end(process.simulation.now_ns + _EXIT_NS)
        if not left or int(os.environ.get("LOCAL_RANK", process.rank)) != 0:
            return
        log(
            process,
            "W",
            "Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. "
            "For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
            1553,
        )


def nccl_of(process: SimProcess) -> RankNccl:
    """That of a process, made with its first group; called on the rank.

    Raises:
        RuntimeError: a variable of its environment has no value that torch knows.
    """
    state = process.torch_state
    if state.nccl is None:
        state.nccl = RankNccl(process)
    found: RankNccl = state.nccl
    return found
