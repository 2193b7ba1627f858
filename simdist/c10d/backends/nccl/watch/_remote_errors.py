"""Errors that ranks of a group report to each other through its store, with TORCH_NCCL_PROPAGATE_ERROR (torch 2.13).

The watchdog that finds a failure writes the rank's number into the group's store, under `remote_error:<group>`. The
watchdog of every other rank reads this key in each round, and only logs it. If the store is gone, each round logs that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl.watch._monitor import Poller, broadcast, when_it_runs
from simdist.inside.torch import Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember
    from simdist.c10d.surface._store import SimStore
    from simdist.process import SimProcess

__all__ = ["RemoteErrors"]


class RemoteErrors(Poller):
    """The part of one rank's watchdog that reads the errors of other ranks.

    It is an `Expiring` of the simulation while the store no longer answers.
    """

    def __init__(self, group: WatchedMember, process: SimProcess, store: SimStore) -> None:
        self._group = group
        self._process = process
        self._key = f"remote_error:{group.group_name}"
        self._looks = False  # a check at its next tick is scheduled
        self.deadline_ns: int | None = None
        store.server.monitors.append(self)
        if store._name(self._key) in store.server.data:  # left by an earlier group of this name
            self.notice()

    def report(self) -> None:
        """Report to the others that this rank has failed."""
        group = self._group
        broadcast(group, group._store, self._key, group.rank())
        for monitor in group._store.server.monitors:
            monitor.notice()

    def notice(self) -> None:
        """Schedule a look into the store."""
        if not self._looks and self._is_well():
            self._looks = True
            due_ns = self._group.watchdog.tick_after(self._process.simulation.now_ns)
            self._process.simulation.call_at(due_ns, lambda: when_it_runs(self._process, self._look))

    def stop(self) -> None:
        """Stop for good."""
        self._process.simulation.move_deadline(self, None)

    def expire(self) -> None:
        """Look into the store again; called at the deadline."""
        self.deadline_ns = None
        when_it_runs(self._process, self._look)

    def _is_well(self) -> bool:
        return self._group.error_kind() == "SUCCESS" and not self._group.closed

    def _look(self) -> None:
        self._looks = False
        if not self._is_well():
            return
        group, store = self._group, self._group._store
        try:
            store.require_server(self._process)
        except dist.DistNetworkError as error:
            failed = f"Failed to check the signal {self._key} on TCPStore, {error}"
            log(self._process, "W", f"{group._prefix()}{failed}", Place.SIGNAL_NOT_READ)
            self.go_round(group.watchdog.tick_after(self._process.simulation.now_ns + 1))
            return
        value = store.server.data.get(store._name(self._key))
        if value is not None:
            group.set_error("REMOTE_ERROR")
            (rank,) = struct.unpack("<i", value)
            log(self._process, "E", f"{group._prefix()} remote error detected from rank: {rank}", Place.SIGNAL_READ)
