"""The fault kinds: frozen, keyword-only descriptions that say what strikes whom and when."""

from __future__ import annotations

import builtins
import signal as _signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Crash",
    "Fault",
    "Hang",
    "Hold",
    "LinkDelay",
    "Partition",
    "Raise",
    "RankFault",
    "SlowRank",
    "StoreDelay",
    "StoreLost",
    "When",
    "problems_of",
    "rank_of",
]

When = Literal["before", "during", "after"]

# What `Raise` can raise besides Python's own, by their names in torch.distributed (torch 2.13).
TORCH_ERRORS = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "QueueEmptyError")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankFault:
    """A fault that strikes one rank, once.

    The trigger is a virtual time (`at_ns`), a training step that the program names with `simdist.step(i)` (`at_step`),
    or an operation: `op` is a c10d name such as "all_reduce" (None: any), `nth` counts matching operations from 1,
    from the start of the life or, with `at_step`, from the start of that step. `when` says on which side of the
    operation it strikes; "during" waits until the peers are inside it too and data is under way. `life` is the
    restart round it belongs to, 0 for the first; None strikes in every life.
    """

    rank: int
    at_ns: int | None = None
    at_step: int | None = None
    op: str | None = None
    nth: int | None = None
    when: When = "before"
    life: int | None = 0

    @property
    def on_operation(self) -> bool:
        """True if an operation triggers it."""
        return self.op is not None or self.nth is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(_RankFault):
    """The rank's process dies: by `signal`, or with `exit_code` as if by `os._exit`. No `finally` runs."""

    signal: str = "SIGKILL"
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(_RankFault):
    """The rank stops, as under SIGSTOP: its connections stay open. It goes on after `duration_ns`, or never (None)."""

    duration_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise(_RankFault):
    """An exception in the rank's own program, in place of an operation or at the start of a step.

    `error` names it: one of Python's, or one that torch.distributed exports. The operation is not issued; a program
    that catches the exception may call it again.
    """

    error: str = "RuntimeError"
    message: str = "injected by a fault"

    def make(self) -> Exception:
        """The exception itself."""
        if self.error in TORCH_ERRORS:
            import torch.distributed as dist

            made: Exception = getattr(dist, self.error)(self.message)
        else:
            made = getattr(builtins, self.error)(self.message)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A straggler: every operation of `rank` starts `delay_ns` late, from `start_ns` until `until_ns` (None: ever)."""

    rank: int
    delay_ns: int
    start_ns: int = 0
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDelay:
    """Every message from `src` to `dst` takes `delay_ns` longer; `both_ways` adds the other direction."""

    src: int
    dst: int
    delay_ns: int
    start_ns: int = 0
    until_ns: int | None = None
    both_ways: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Nothing passes between different `groups` of ranks; ranks in no group reach everyone. Heals at `until_ns`."""

    groups: tuple[tuple[int, ...], ...]
    start_ns: int = 0
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Messages from `src` to `dst` stay in flight until `until_ns`, or until someone releases them (None).

    They keep their order, and leave at the time of release, as if sent then. `both_ways` holds the other direction too.
    """

    src: int
    dst: int
    start_ns: int = 0
    until_ns: int | None = None
    both_ways: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDelay:
    """Every request of `rank` (None: of any rank) to the launcher's store takes `delay_ns` longer.

    The launcher's store is the one that torchrun serves, at MASTER_ADDR and MASTER_PORT; a store that a rank serves
    itself is not affected.
    """

    delay_ns: int
    start_ns: int = 0
    until_ns: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost:
    """The launcher's store is gone at `at_ns`: connections to it end, and nobody answers there any more.

    A restart brings a new one.
    """

    at_ns: int


RankFault = Crash | Hang | Raise
Fault = Crash | Hang | Raise | SlowRank | LinkDelay | Partition | Hold | StoreDelay | StoreLost


def rank_of(fault: Fault) -> int | None:
    """The rank whom the fault befalls; None if it befalls links or all ranks."""
    return None if isinstance(fault, LinkDelay | Partition | Hold | StoreLost) else fault.rank


def problems_of(faults: Iterable[Fault], world_size: int) -> list[str]:
    """One line for everything in `faults` that does not fit a world of `world_size` ranks; empty if all of it does."""
    lines: list[str] = []
    for index, fault in enumerate(faults):
        where = f"faults[{index}]"
        if isinstance(fault, RankFault):
            lines += _trigger_problems(where, fault)
        if isinstance(fault, Raise):
            lines += _raise_problems(where, fault)
        if isinstance(fault, Crash) and fault.exit_code is None and fault.signal not in _signal.Signals.__members__:
            lines.append(f"{where}.signal: unknown signal {fault.signal!r}; expected a name such as 'SIGKILL'")
        for name, rank in _ranks_of(fault):
            if not 0 <= rank < world_size:
                lines.append(f"{where}.{name}: rank {rank} is outside the world of {world_size} ranks")
        lines += _time_problems(where, fault)
        if isinstance(fault, LinkDelay | Hold) and fault.src == fault.dst:
            lines.append(f"{where}: a rank has no link to itself")
        if isinstance(fault, Partition):
            members = [rank for group in fault.groups for rank in group]
            if len(fault.groups) < 2:
                lines.append(f"{where}.groups: a partition needs at least two groups")
            lines += [
                f"{where}.groups: rank {r} is in more than one group"
                for r in sorted(set(members))
                if members.count(r) > 1
            ]
    return lines


def _ranks_of(fault: Fault) -> list[tuple[str, int]]:
    if isinstance(fault, LinkDelay | Hold):
        return [("src", fault.src), ("dst", fault.dst)]
    if isinstance(fault, Partition):
        return [("groups", rank) for group in fault.groups for rank in group]
    rank = rank_of(fault)
    return [] if rank is None else [("rank", rank)]


def _trigger_problems(where: str, fault: _RankFault) -> list[str]:
    lines = []
    if fault.at_ns is None and fault.at_step is None and not fault.on_operation:
        lines.append(f"{where}: no trigger; give a time, a step, or an operation")
    if fault.at_ns is not None and (fault.at_step is not None or fault.on_operation):
        lines.append(f"{where}: a time and a step or operation are two triggers; give one of them")
    if fault.when not in ("before", "during", "after"):
        lines.append(f"{where}.when: unknown {fault.when!r}; expected 'before', 'during' or 'after'")
    if fault.when != "before" and not fault.on_operation:
        lines.append(f"{where}.when: {fault.when!r} needs an operation; give op or nth")
    if fault.nth is not None and fault.nth < 1:
        lines.append(f"{where}.nth: {fault.nth} is not a count; the first operation is 1")
    return lines


def _raise_problems(where: str, fault: Raise) -> list[str]:
    lines = []
    if fault.at_ns is not None:
        lines.append(f"{where}.at_ns: no program raises at a time; give an operation or a step")
    if fault.when in ("during", "after") and fault.on_operation:
        lines.append(
            f"{where}.when: {fault.when!r} is too late to raise; the exception comes in place of the operation"
        )
    if not _can_be_raised(fault.error):
        lines.append(
            f"{where}.error: unknown exception {fault.error!r}; expected one of Python's that takes a text, or one of "
            f"torch.distributed: {', '.join(TORCH_ERRORS)}"
        )
    return lines


def _can_be_raised(name: str) -> bool:
    kind = getattr(builtins, name, None)
    if name in TORCH_ERRORS:
        return True
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return False
    try:
        kind("text")
    except TypeError:  # it wants more than a text
        return False
    return True


def _time_problems(where: str, fault: Fault) -> list[str]:
    names = ("at_ns", "delay_ns", "duration_ns", "start_ns", "until_ns")
    times = {name: getattr(fault, name) for name in names if getattr(fault, name, None) is not None}
    lines = [f"{where}.{name}: {value} ns lies before the start" for name, value in times.items() if value < 0]
    if "until_ns" in times and times["until_ns"] <= times["start_ns"]:
        lines.append(f"{where}.until_ns: ends before it starts")
    return lines
