"""What a run's events say of a fault: the same words from a simulation and from real processes."""

from __future__ import annotations

import re
from dataclasses import fields

from simdist.faults._kinds import Crash, Fault, Hang, Hold, LinkDelay, Partition, Raise, SlowRank, StoreDelay

__all__ = ["begin_text", "end_text", "fault_call", "kind_of"]


def kind_of(fault: Fault) -> str:
    """The fault's kind as scenario files and events name it."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", type(fault).__name__).lower()


def fault_call(fault: Fault) -> str:
    """The call that makes this fault, with what differs from the defaults."""
    parts = [
        f"{each.name}={getattr(fault, each.name)!r}"
        for each in fields(fault)
        if getattr(fault, each.name) != each.default
    ]
    return f"{type(fault).__name__}({', '.join(parts)})"


def begin_text(fault: Fault) -> str:
    """What is told when it strikes or begins."""
    if isinstance(fault, Crash):
        how = f"exits with code {fault.exit_code}" if fault.exit_code is not None else f"dies of {fault.signal}"
        return f"rank {fault.rank} {how}"
    if isinstance(fault, Hang):
        until = "for good" if fault.duration_ns is None else f"for {_ms(fault.duration_ns)}"
        return f"rank {fault.rank} hangs {until}"
    if isinstance(fault, Raise):
        return f"rank {fault.rank} raises {fault.error}: {fault.message}"
    if isinstance(fault, SlowRank):
        return f"rank {fault.rank} starts each operation {_ms(fault.delay_ns)} late"
    if isinstance(fault, LinkDelay):
        return f"messages between ranks {fault.src} and {fault.dst} take {_ms(fault.delay_ns)} longer"
    if isinstance(fault, Partition):
        return f"the network splits: ranks {_sides(fault)}"
    if isinstance(fault, Hold):
        return f"messages {_between(fault)} are held"
    if isinstance(fault, StoreDelay):
        return f"requests of {_whose(fault)} to the launcher's store take {_ms(fault.delay_ns)} longer"
    return "the launcher's store is gone"


def end_text(fault: Fault) -> str:
    """What is told when it is over."""
    if isinstance(fault, Partition):
        return f"the network heals: ranks {_sides(fault)}"
    if isinstance(fault, Hold):
        return f"messages {_between(fault)} are released"
    if isinstance(fault, LinkDelay):
        return f"messages between ranks {fault.src} and {fault.dst} take no longer any more"
    if isinstance(fault, StoreDelay):
        return f"requests of {_whose(fault)} to the launcher's store take no longer any more"
    if isinstance(fault, SlowRank):
        return f"rank {fault.rank} is in time again"
    return ""


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:g} ms"


def _whose(fault: StoreDelay) -> str:
    return "all ranks" if fault.rank is None else f"rank {fault.rank}"


def _between(fault: Hold) -> str:
    if fault.both_ways:
        return f"between ranks {fault.src} and {fault.dst}"
    return f"from rank {fault.src} to rank {fault.dst}"


def _sides(fault: Partition) -> str:
    return " | ".join(", ".join(map(str, group)) for group in fault.groups)
