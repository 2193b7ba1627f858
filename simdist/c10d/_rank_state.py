"""The state that torch keeps per process, for one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from simdist.c10d.calls._futures import SimFuture
from simdist.c10d.calls._remembered import Remembered
from simdist.c10d.surface.state._rank_world import RankWorld
from simdist.c10d.watch._flight_record import FlightRecord
from simdist.c10d.watch._profiling import ProfiledCalls

if TYPE_CHECKING:
    from datetime import timedelta
    from weakref import WeakKeyDictionary

    from torch.distributed.distributed_c10d import DebugLevel

    from simdist.c10d._ddp_times import Times
    from simdist.c10d.backends.nccl._options import NcclOptions
    from simdist.c10d.backends.nccl.watch._rank import RankNccl
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.surface._compat import Work
    from simdist.c10d.surface.state._backend_tables import Tables

__all__ = ["Making", "RankState"]


class RankState:
    """The state that torch keeps per process, for one rank."""

    __slots__ = (
        "backends",
        "ddp_times",
        "debug_level",
        "default_dtype",
        "failed",
        "flight_record",
        "futures",
        "graph_task",
        "group_in_making",
        "init_method",
        "made_futures",
        "making",
        "nccl",
        "profile",
        "ranks_in_making",
        "shown_once",
        "stands_for_threads",
        "unwaited",
        "waits_in_cxx",
        "warned_of_options",
        "works_of_joins",
        "world",
    )

    warned_of_options: None  # set once Gloo has been given the options of another backend

    def __init__(self, debug_level: DebugLevel, default_dtype: torch.dtype) -> None:
        self.world = RankWorld()
        self.init_method: str | None = None
        self.default_dtype = default_dtype
        self.debug_level = debug_level
        self.backends: Tables | None = None  # the rank's own tables of `Backend`, once it has registered a backend
        self.futures: dict[SimFuture, None] = {}  # not done yet
        self.made_futures: Remembered[SimFuture] = Remembered()
        self.failed: list[BaseException] = []  # errors of failed futures that the program has not read
        self.unwaited: dict[SimWork, object] = {}  # works that were not waited for; with a judge's notes on their calls
        self.profile: ProfiledCalls | None = None  # while the rank's profiler runs
        # Warnings that C++ shows once and that the process was shown, by their places; None: it is shown them always.
        self.shown_once: set[str] | None = set()
        self.stands_for_threads = False  # a thread of torch's threaded groups, which take what no process does
        self.waits_in_cxx = 0  # how many C++ calls are under way that wait for futures which they request
        self.graph_task = -1  # the autograd graph task that has our callback queued
        self.flight_record: FlightRecord | None = None  # from the first group on
        self.nccl: RankNccl | None = None  # NCCL's state, from its first group on
        self.ranks_in_making: list[int] = []  # likewise, its members in the world; none of the default group
        self.group_in_making = ""  # its name, from when torch begins to make a group until it has its backend
        self.making: Making | None = None  # likewise, what else is known of it
        self.ddp_times: WeakKeyDictionary[object, Times] | None = (
            None  # of modules on devices, by DDP's reducer and by its logger; None: there are none
        )
        self.works_of_joins: WeakKeyDictionary[object, Work] | None = (
            None  # by DDP's reducer, what its next backward waits for; None: no model has joined
        )

    def forget(self) -> None:
        """Cut what refers to the world, which is over, where Python does not see all of a cycle."""
        self.world.forget()
        for future in self.made_futures:
            future.forget()


@dataclass(slots=True)
class Making:
    """A group that torch is making, with the arguments of the function that makes it.

    `parts` are the backends by type of device, if there are several; empty once the first has been made.
    """

    timeout: timedelta
    options: NcclOptions | None
    device: torch.device | None
    parts: dict[str, str]
