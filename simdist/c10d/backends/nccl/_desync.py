"""What a group's ranks know of each other once something has failed: the desync report, and remote errors (torch 2.13).

With TORCH_NCCL_DESYNC_DEBUG each rank writes into the store which collective it has begun last, and which it has
finished; a watchdog that finds a timeout reads all of that (TraceUtils.h). With TORCH_NCCL_PROPAGATE_ERROR it also
tells the others' watchdogs, which say so, and no more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._monitor import when_it_runs

__all__ = ["desync_report", "groups_of", "propagate"]

_State = dict[int, dict[int, tuple[str, bool]]]  # by number and rank: the last collective begun, and whether it is over


def groups_of(group: Any) -> dict[int, Any]:
    """The same group on each of its ranks that has made it."""
    found = {}
    for rank, member in enumerate(group._communicator.members):
        known = None if member is None else member.process.torch_state.nccl
        for other in () if known is None else known.groups:
            if other._communicator is group._communicator:
                found[rank] = other
    return found


def desync_report(group: Any) -> str:
    """Who has come how far, as the rank of `group` sees it."""
    states: _State = {}
    missing = []
    mine = "", 0
    known = groups_of(group)
    for rank in range(group.size()):
        begun = known[rank].last_begun() if rank in known else None
        if begun is None:
            missing.append(rank)
            continue
        number, name, done = begun
        states.setdefault(number, {})[rank] = name, done
        if rank == group.rank():
            mine = name, number
    said = f"\n\t - [{group.rank()}] Timeout at collective: {mine[0]}, #{mine[1]}"
    best = "\n\t - To our best knowledge, "
    if missing:
        return (
            f"{said}{best}ranks [{_listed(missing)}] are the lagging ranks that caused this timeout. They never joined "
            "any collectives"
        )
    return f"{said}{best}the lagging/dead/mismatched ranks that caused the desync are:{_lagging(states)}{_seen(states)}"


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
                said += "".join(f"\n\t     [{_listed(each)}] {word} {name}" for name, each in by_name.items())
    return said


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def propagate(group: Any) -> None:
    """Tell the other ranks of a group that this one has failed: their watchdogs see it when they next look."""
    failed = group.rank()
    group._store.announce(f"remote_error:{group.group_name}", struct.pack("<i", failed))
    for rank, other in groups_of(group).items():
        if rank == group.rank() or not other.environment.propagates:
            continue
        process = other._member.process

        def look(other: Any = other, process: Any = process) -> None:
            if other.error_kind() == "SUCCESS" and not other.closed:
                other.set_error("REMOTE_ERROR")
                log(process, "E", f"{other._prefix()} remote error detected from rank: {failed}", 2330)

        due_ns = other.watchdog.tick_after(process.simulation.now_ns)
        process.simulation.call_at(due_ns, lambda process=process, look=look: when_it_runs(process, look))
