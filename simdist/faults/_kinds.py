"""The fault kinds: frozen, keyword-only descriptions that say what strikes whom and when."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Annotated, Literal

from simdist.faults._fields import (
    DELAY,
    EXIT_CODE,
    GROUPS,
    LIFE,
    MOMENT,
    NUMBER,
    OPERATION,
    RANK,
    SIDE,
    TRUTH,
    Checked,
)
from simdist.faults._operations import operations_of
from simdist.values import Maybe, Text

__all__ = [
    "TORCH_ERRORS",
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
    "rank_of",
]

When = Literal["before", "during", "after"]

# What `Raise` can raise besides Python's own, by their names in torch.distributed (torch 2.13).
TORCH_ERRORS = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "QueueEmptyError")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankFault(Checked):
    """A fault that strikes one rank, once.

    The trigger is a virtual time (`at_ns`), a training step that the program names with `simdist.step(i)` (`at_step`),
    or an operation: `op` is a name such as "all_reduce", of an event or of the function that the program calls (None:
    any), `nth` counts matching operations from 1, from the start of the life or, with `at_step`, from the start of that
    step. `when` says on which side of the
    operation it strikes; "during" waits until the peers are inside it too and data is under way. `life` is the
    restart round it belongs to, 0 for the first; None strikes in every life.
    """

    rank: Annotated[int, RANK]
    at_ns: Annotated[int | None, MOMENT] = None
    at_step: Annotated[int | None, NUMBER] = None
    op: Annotated[str | None, OPERATION] = None
    nth: Annotated[int | None, NUMBER] = None
    when: Annotated[When, SIDE] = "before"
    life: Annotated[int | None, LIFE] = 0

    @property
    def on_operation(self) -> bool:
        """True if an operation triggers it."""
        return self.op is not None or self.nth is not None

    @property
    def operations(self) -> tuple[str, ...] | None:
        """The operations that match, as events name them; None: any."""
        return None if self.op is None else operations_of(self.op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(_RankFault):
    """The rank's process dies: by `signal`, or with `exit_code` as if by `os._exit`. No `finally` runs."""

    signal: Annotated[str, Text()] = "SIGKILL"
    exit_code: Annotated[int | None, EXIT_CODE] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(_RankFault):
    """The rank stops, as under SIGSTOP: its connections stay open. It goes on after `duration_ns`, or never (None)."""

    duration_ns: Annotated[int | None, MOMENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise(_RankFault):
    """An exception in the rank's own program, in place of an operation or at the start of a step.

    `error` names it: one of Python's, or one that torch.distributed exports. The operation is not issued; a program
    that catches the exception may call it again.
    """

    error: Annotated[str, Text()] = "RuntimeError"
    message: Annotated[str, Text()] = "injected by a fault"

    def make(self) -> Exception:
        """The exception itself."""
        if self.error in TORCH_ERRORS:
            import torch.distributed as dist

            made: Exception = getattr(dist, self.error)(self.message)
        else:
            made = getattr(builtins, self.error)(self.message)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank(Checked):
    """A straggler: every operation of `rank` starts `delay_ns` late, from `start_ns` until `until_ns` (None: ever)."""

    rank: Annotated[int, RANK]
    delay_ns: Annotated[int, DELAY]
    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDelay(Checked):
    """Every message from `src` to `dst` takes `delay_ns` longer; `both_ways` adds the other direction."""

    src: Annotated[int, RANK]
    dst: Annotated[int, RANK]
    delay_ns: Annotated[int, DELAY]
    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None
    both_ways: Annotated[bool, TRUTH] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Checked):
    """Nothing passes between different `groups` of ranks; ranks in no group reach everyone. Heals at `until_ns`."""

    groups: Annotated[tuple[tuple[int, ...], ...], GROUPS]
    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Checked):
    """Messages from `src` to `dst` stay in flight until `until_ns`, or until someone releases them (None).

    They keep their order, and leave at the time of release, as if sent then. `both_ways` holds the other direction too.
    """

    src: Annotated[int, RANK]
    dst: Annotated[int, RANK]
    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None
    both_ways: Annotated[bool, TRUTH] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDelay(Checked):
    """Every request of `rank` (None: of any rank) to the launcher's store takes `delay_ns` longer.

    The launcher's store is the one that torchrun serves, at MASTER_ADDR and MASTER_PORT; a store that a rank serves
    itself is not affected.
    """

    delay_ns: Annotated[int, DELAY]
    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None
    rank: Annotated[int | None, Maybe(RANK)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost(Checked):
    """The launcher's store is gone at `at_ns`: connections to it end, and nobody answers there any more.

    A restart brings a new one.
    """

    at_ns: Annotated[int, DELAY]


RankFault = Crash | Hang | Raise
Fault = Crash | Hang | Raise | SlowRank | LinkDelay | Partition | Hold | StoreDelay | StoreLost


def rank_of(fault: Fault) -> int | None:
    """The rank that the fault strikes; None if it strikes links or all ranks."""
    return None if isinstance(fault, LinkDelay | Partition | Hold | StoreLost) else fault.rank
