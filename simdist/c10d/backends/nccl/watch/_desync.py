"""The desync report: the progress of each rank of a group when one times out (torch 2.13).

With TORCH_NCCL_DESYNC_DEBUG each rank's watchdog writes its last launched work and its last finished work into the
store. A watchdog that finds a timeout reads the entries of all ranks (TraceUtils.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl.watch._monitor import put, when_it_runs
from simdist.inside.torch import Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._work import NcclWork
    from simdist.c10d.backends.nccl.watch._watched import WatchedMember
    from simdist.c10d.surface._store import SimStore

__all__ = ["DesyncDebugger"]

_State = dict[
    int, dict[int, tuple[str, bool]]
]  # by number and rank: the name of the rank's last work, and whether it is over


class DesyncDebugger:
    """Writes one rank's progress into the group's store, and reports the progress of all ranks.

    `NCCL_<rank>_trace_start` and `NCCL_<rank>_trace_end` hold a number of eight bytes, a name and a zero byte.
    """

    def __init__(self, group: WatchedMember) -> None:
        self._group = group
        self._enabled = True
        self._unseen: list[tuple[int, str]] = []  # works launched since the watchdog's last look
        self._over: list[tuple[int, str]] = []  # works ended since then
        self._looks = False  # a look at its next tick is scheduled

    def launched(self, work: NcclWork) -> None:
        """Note a launched work."""
        self._unseen.append((work.number, work.op_type))
        self._look_later()

    def ended(self, work: NcclWork) -> None:
        """Note a finished work."""
        self._over.append((work.number, work.op_type))
        self._look_later()

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            process = self._group.nccl.process
            due_ns = self._group.watchdog.tick_after(process.simulation.now_ns)
            process.simulation.call_at(due_ns, lambda: when_it_runs(process, self.look))

    def look(self) -> None:
        """Write the last launched and the last finished work into the store."""
        self._looks = False
        if self._group.watchdog.is_failing:
            return
        for seen, end in ((self._unseen, "start"), (self._over, "end")):
            if seen:
                self._write(end, *seen[-1])
                seen.clear()

    def _write(self, end: str, number: int, name: str) -> None:
        group = self._group
        key = f"NCCL_{group.rank()}_trace_{end}"
        if self._enabled:
            try:
                put(group.nccl.process, group._store, key, struct.pack("<Q", number) + name.encode() + b"\0")
            except dist.DistNetworkError:
                self._enabled = False
                text = f"Store is down while updating #{number} with key {key}"
                log(group.nccl.process, "E", text, Place.TRACE_STORE_GONE)

    def run(self) -> None:
        """Log the report, after the watchdog has found a timeout."""
        if not self._enabled:
            return
        group, place = self._group, Place.DESYNC_REPORT
        try:
            group._store.require_server(group.nccl.process, "multi_get")
            report = _report(group._store, group.rank(), group.size())
        except (dist.DistNetworkError, RuntimeError) as error:
            self._enabled, place = False, Place.DESYNC_FAILED
            report = f" Failed to retrieve TORCH_NCCL_DESYNC_DEBUG report.  Please file an issue. Error: {error}"
        log(group.nccl.process, "E", f"Rank {group.rank()}{report}", place)


def _report(store: SimStore, own: int, size: int) -> str:
    """Return the progress of each rank, from the store.

    Raises:
        RuntimeError: the store has no unfinished work of this rank; with torch's text.
    """
    states: _State = {}
    missing = []
    mine = 0, ""
    for rank in range(size):
        begun = _read(store, f"NCCL_{rank}_trace_start")
        if begun is None:
            missing.append(rank)
            continue
        number, name = begun
        over = _read(store, f"NCCL_{rank}_trace_end")
        states.setdefault(number, {})[rank] = name, over is not None and over[0] == number
        if rank == own:
            mine = number, name
    if not mine[1]:
        text = f"Timeout rank [{own}] must have collective tracking iteam in c10::Store trace"
        raise RuntimeError(Place.TRACE_HAS_NO_CALL.asserts("!thisCol.empty()", text, for_cuda=True))
    if states[mine[0]][own][1]:
        text = f"Timeout rank [{own}] last trace item must be kEventStart. thisSeq = {mine[0]}, col = {mine[1]}"
        condition = "traceMap[thisSeq][myRank].second == kEventStart"
        raise RuntimeError(Place.TRACE_HAS_ENDED.asserts(condition, text, for_cuda=True))
    said = f"\n\t - [{own}] Timeout at collective: {mine[1]}, #{mine[0]}"
    best = "\n\t - To our best knowledge, "
    if missing:
        return (
            f"{said}{best}ranks [{_listed(missing)}] are the lagging ranks that caused this timeout. They never joined "
            "any collectives"
        )
    return f"{said}{best}the lagging/dead/mismatched ranks that caused the desync are:{_lagging(states)}{_seen(states)}"


def _read(store: SimStore, key: str) -> tuple[int, str] | None:
    value = store.server.data.get(store._name(key))
    if value is None:
        return None
    (number,) = struct.unpack("<Q", value[:8].ljust(8, b"\0"))
    return number, value[8:].partition(b"\0")[0].decode(errors="replace")


def _lagging(states: _State) -> str:
    number = min(states)
    stuck = [rank for rank, (_, done) in states[number].items() if not done]
    absent = [rank for rank, (_, done) in states[number].items() if done]
    said = ""
    if stuck:
        said += f"\n\t   - [{_listed(stuck)}] joined but didn't finish collective #{number} (count from 1)"
    if absent:
        said += (
            f"\n\t     [{_listed(absent)}] finished collective #{number}, but didn't join collective #{number + 1} "
            "(count from 1)"
        )
    return said


def _seen(states: _State) -> str:
    said = "\n\t - Snapshot of ranks' latest states:"
    for number, ranks in sorted(states.items()):
        for is_over, word in ((False, "started"), (True, "finished")):
            by_name: dict[str, list[int]] = {}
            for rank, (name, done) in ranks.items():
                if done is is_over:
                    by_name.setdefault(name, []).append(rank)
            if by_name:
                said += f"\n\t   #{number} {word} ranks:"
                # An std::unordered_map lists the newest name first, unless two names share a bucket.
                named = reversed(by_name.items())
                said += "".join(f"\n\t     [{_listed(each)}] {word} {name}" for name, each in named)
    return said


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
