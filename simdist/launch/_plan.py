"""What a launch does: a frozen, plain description."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simdist.cluster import DeviceModel
from simdist.faults import Fault

if TYPE_CHECKING:
    from simdist.judges import Judge

__all__ = ["Launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command line, checked."""

    script: str  # a path, or with `module` a module's name
    script_args: tuple[str, ...] = ()
    module: bool = False
    min_nodes: int = 1
    nodes: int = 1  # those that are there in the beginning: the most that may take part
    workers: int = 1  # on each node
    max_restarts: int = 0
    run_id: str = "none"
    role: str = "default"
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    agent_store: bool = True  # the agent serves the store that `env://` finds
    fixed_master: bool = False  # at the address that was given; otherwise where the agent likes, anew in each round
    monitor_ns: int = 100_000_000
    grace_ns: int = 30_000_000_000
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    log_dir: str | None = None
    shown: frozenset[int] | None = None  # local ranks whose output is; None: all
    redirects: int | Mapping[int, int] = 0  # 1: stdout, 2: stderr, 3: both go to files; for all, or by local rank
    tee: int | Mapping[int, int] = 0  # likewise, and to the console too
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by stream: words of which a line needs one to be kept twice
    prefix: str | None = None  # of lines that are teed, if not torchrun's own
    launcher: str = "torchrun"  # whose variables the script finds
    env: tuple[tuple[str, str], ...] = ()  # what that launcher sets for all workers alike
    leaves_out: tuple[str, ...] = ()  # variables of torchrun's that it does not set
    devices: int = 0  # virtual CUDA devices on each node
    device_model: DeviceModel | None = None  # how long they compute
    program_ns: int = 0  # what a program takes that a worker starts
    share: tuple[str, ...] = ()
    stall_s: float = 30.0
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    judges: bool | tuple[str | Judge, ...] = False
    words: tuple[str, ...] = field(default=(), compare=False)  # as they were given

    @property
    def world_size(self) -> int:
        """Workers on all nodes together."""
        return self.nodes * self.workers

    @property
    def replay(self) -> str:
        """The command that repeats it, as a shell takes it."""
        return shlex.join(["simdist", "launch", *self.words])
