"""A launch as a frozen, plain description."""

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
    nodes: int = 1  # the nodes at the beginning: the most that may take part
    workers: int = 1  # on each node
    max_restarts: int = 0
    run_id: str = "none"
    role: str = "default"
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    agent_store: bool = True  # the agent serves the store for `env://`
    fixed_master: bool = False  # at the given address; otherwise the agent chooses it, anew in each round
    monitor_ns: int = 100_000_000
    grace_ns: int = 30_000_000_000
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    log_dir: str | None = None
    shown: frozenset[int] | None = None  # the local ranks with output; None: all
    redirects: int | Mapping[int, int] = 0  # 1: stdout, 2: stderr, 3: both go to files; for all, or by local rank
    tee: int | Mapping[int, int] = 0  # likewise, and on the console, too
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()  # by stream: a line with one of these words is kept twice
    prefix: str | None = None  # of teed lines, if not torchrun's own
    launcher: str = "torchrun"  # the script gets this launcher's variables
    env: tuple[tuple[str, str], ...] = ()  # set by that launcher for all workers alike
    leaves_out: tuple[str, ...] = ()  # variables of torchrun that it does not set
    of_shell: tuple[tuple[str, str], ...] = ()  # those among them that the command was started with
    devices: int = 0  # virtual CUDA devices on each node
    device_model: DeviceModel | None = None  # for the duration of their computations
    program_ns: int = 0  # the duration of a program that a worker starts
    isolate: tuple[str, ...] = ()
    share: tuple[str, ...] = ()
    stall_s: float = 30.0
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    judges: bool | tuple[str | Judge, ...] = False
    words: tuple[str, ...] = field(default=(), compare=False)  # as given

    @property
    def world_size(self) -> int:
        """The number of workers on all nodes together."""
        return self.nodes * self.workers

    @property
    def replay(self) -> str:
        """The command that repeats the launch, as a shell takes it."""
        return shlex.join(["simdist", "launch", *self.words])
