"""Durations: completion hooks for works, and estimates of calls by NCCL's tuning model (torch 2.13)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.c10d.backends.nccl._log import log
from simdist.cluster import NcclModel
from simdist.inside.torch import RECORDER_HEADER, Place, c10d_bindings

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.backends.nccl.kernels._preferences import Preferences
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember
    from simdist.c10d.calls._operation import Operation
    from simdist.c10d.engine._streamed import StreamCommunicator

__all__ = ["Hook", "WorkInfo", "estimated_us"]

_NEEDS_TIMING = (
    "ProcessGroupNCCL OnCompletion hook requires recording start and end events which require setting "
    "TORCH_NCCL_ENABLE_TIMING environment variable. This is only available for NCCL version >= 2.4."
)
_DEPRECATED = (
    "Warning: ProcessGroupNCCL OnCompletion hook will be deprecated in favor of Flight Recorder. Please check out "
    f"{RECORDER_HEADER} for information that is recorded at work completion. You can file an issue if you want "
    "additional information to be recorded. You can also file an RFC if you want Flight Recorder to accept plugins "
    "that customize the recording. (function operator())"
)


@dataclass(frozen=True, slots=True)
class WorkInfo:
    """The fields of torch's `WorkInfo`: a finished operation, its begin and end, and its duration on the device."""

    op_type: object
    seq: int
    time_started: datetime
    time_finished: datetime
    active_duration: timedelta


class Hook:
    """Calls a function of the program for each finished work of a group, soon after its watchdog has seen the end."""

    def __init__(self, group: WatchedMember, function: Callable[[WorkInfo], None]) -> None:
        if group.nccl.once("completion hook"):
            log(group.member.process, "W", _DEPRECATED, Place.HOOK_IS_OLD)
        if group.hook is not None:
            raise dist.DistBackendError("ProcessGroupNCCL OnCompletion hook already registered")
        if not group.timing:
            raise ValueError(_NEEDS_TIMING)
        self._group = group
        self._function = function
        self._due: dict[NcclWork, None] = {}  # over, and not reported yet

    def over(self, work: NcclWork) -> None:
        """Schedule the report of a finished work."""
        process = work.process
        self._due[work] = None
        seen_ns = self._group.watchdog.tick_after(process.simulation.now_ns)
        process.simulation.call_at(seen_ns, lambda: process.deliver(functools.partial(self._report, work)))

    def flush(self) -> None:
        """Report all finished works, on the calling thread."""
        for work in list(self._due):
            self._report(work)

    def _report(self, work: NcclWork) -> None:
        if self._due.pop(work, work) is not None:
            return
        process = work.process
        begun, ended = (
            datetime.fromtimestamp(process.calendar_ns(moment) / 1e9, UTC) for moment in (work.issued_ns, work.ended_ns)
        )
        kinds = c10d_bindings.OpType.__members__
        kind = kinds.get(work.op_type, kinds["UNKNOWN"])
        took = timedelta(microseconds=work._get_duration() * 1000)
        try:
            self._function(WorkInfo(kind, work.number, begun, ended, took))
        except Exception as error:
            text = (
                f"Caught exception on rank {self._group.rank()} while running onCompletion hook for ProcessGroupNCCL: "
                f"{type(error).__name__}: {error}. Aborting all communicators."
            )
            self._group.abort_connections(reason=text)


def estimated_us(
    communicator: StreamCommunicator, operations: list[Operation], preferences: Preferences | None
) -> float:
    """Return the microseconds that consecutive operations would take, by the cluster's NCCL model or the default."""
    from simdist.c10d.backends.nccl.kernels._tuned import TunedAlgorithm

    cluster = communicator.network.cluster
    ranks = communicator.ranks
    if len(ranks) == 1:
        return 0.0
    algorithm = TunedAlgorithm(cluster, cluster.nccl or NcclModel(), ranks)
    algorithm.heed(0, preferences)
    latency_ns, byte_ns = communicator.slowest()
    costs = [algorithm.costs_ns(operation, len(ranks), latency_ns, byte_ns)[0] for operation in operations]
    return sum(costs) / 1000
