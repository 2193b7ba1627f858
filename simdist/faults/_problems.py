"""What is wrong with faults: each field by itself, the fault as a whole, and the fault in its world."""

from __future__ import annotations

import builtins
import signal as _signal
from collections import Counter
from collections.abc import Iterable, Iterator

from simdist.faults._kinds import (
    TORCH_ERRORS,
    Crash,
    Fault,
    Hold,
    LinkDelay,
    Partition,
    Raise,
    RankFault,
    SlowRank,
    StoreDelay,
    StoreLost,
    rank_of,
)
from simdist.values import brief, place, shown

__all__ = ["problems_of"]


def problems_of(faults: Iterable[object], world_size: int, *, max_restarts: int | None = None) -> list[str]:
    """One line for everything in `faults` that does not fit a world of `world_size` ranks; empty if all of it does.

    With `max_restarts`, a fault of a life that never comes does not fit either.
    """
    lines: list[str] = []
    for index, fault in enumerate(faults):
        where = f"faults[{index}]"
        if not isinstance(fault, Fault):
            lines.append(f"{where}: {_no_fault(fault)}")
            continue
        misfits = fault.misfits()
        lines += [
            f"{where}.{place((name, *finding.path))}: {finding.text}"
            for name, findings in misfits.items()
            for finding in findings
        ]
        lines += [f"{where}{line}" for line in _Judge(fault, frozenset(misfits), world_size, max_restarts).lines()]
    return lines


def _no_fault(value: object) -> str:
    kinds = {kind.__name__: kind for kind in Fault.__args__}
    if isinstance(value, type) and value in kinds.values():
        return f"expected a fault from simdist.faults, found the class {value.__name__}; call it with its arguments"
    name = "".join(word.title() for word in value.split("_")) if isinstance(value, str) else ""
    hint = f"; write simdist.faults.{name}(...)" if name in kinds else ""
    return f"expected a fault from simdist.faults, found {shown(value)}{hint}"


class _Judge:
    """What is wrong with one fault as a whole, and in its world; fields that are wrong by themselves are left alone."""

    def __init__(self, fault: Fault, wrong: frozenset[str], world_size: int, max_restarts: int | None) -> None:
        self._fault = fault
        self._wrong = wrong
        self._world_size = world_size
        self._max_restarts = max_restarts

    def lines(self) -> Iterator[str]:
        """The problems, each with the field before it."""
        fault = self._fault
        if isinstance(fault, RankFault):
            yield from self._of_trigger(fault)
        if isinstance(fault, Raise):
            yield from self._of_exception(fault)
        if isinstance(fault, Crash) and self._fine("exit_code", "signal"):
            yield from _of_signal(fault)
        yield from self._of_ranks(fault)
        if not isinstance(fault, RankFault | StoreLost) and self._fine("start_ns", "until_ns"):
            yield from _of_span(fault)
        if isinstance(fault, LinkDelay | Hold) and self._fine("src", "dst") and fault.src == fault.dst:
            yield ": a rank has no link to itself"
        if isinstance(fault, Partition) and self._fine("groups"):
            yield from _of_groups(fault)

    def _fine(self, *names: str) -> bool:
        return self._wrong.isdisjoint(names)

    def _of_trigger(self, fault: RankFault) -> Iterator[str]:
        if self._fine("at_ns", "at_step", "op", "nth"):
            if fault.at_ns is None and fault.at_step is None and not fault.on_operation:
                yield ": no trigger; give a time, a step, or an operation"
            if fault.at_ns is not None and (fault.at_step is not None or fault.on_operation):
                yield ": a time and a step or operation are two triggers; give one of them"
        if self._fine("when", "op", "nth") and fault.when != "before" and not fault.on_operation:
            yield f".when: {fault.when!r} needs an operation; give op or nth"
        if self._fine("nth") and fault.nth is not None and fault.nth < 1:
            yield f".nth: {fault.nth} is not a count; the first operation is 1"
        last = self._max_restarts
        if last is not None and self._fine("life") and fault.life is not None and fault.life > last:
            yield f".life: {fault.life} never comes: with max_restarts = {last} the last life is {last}"

    def _of_exception(self, fault: Raise) -> Iterator[str]:
        if self._fine("at_ns") and fault.at_ns is not None:
            yield ".at_ns: no program raises at a time; give an operation or a step"
        if self._fine("when", "op", "nth") and fault.when in ("during", "after") and fault.on_operation:
            yield f".when: {fault.when!r} is too late to raise; the exception comes in place of the operation"
        if self._fine("error") and not _can_be_raised(fault.error):
            yield (
                f".error: unknown exception {brief(fault.error)}; expected one of Python's that takes a text, or one "
                f"of torch.distributed: {', '.join(TORCH_ERRORS)}"
            )

    def _of_ranks(self, fault: Fault) -> Iterator[str]:
        if isinstance(fault, LinkDelay | Hold):
            ranks = [("src", fault.src), ("dst", fault.dst)]
        elif isinstance(fault, Partition):
            ranks = [("groups", rank) for group in fault.groups for rank in group] if self._fine("groups") else []
        else:
            rank = rank_of(fault)
            ranks = [] if rank is None else [("rank", rank)]
        for name, rank in ranks:
            if self._fine(name) and not 0 <= rank < self._world_size:
                yield f".{name}: rank {rank} is outside the world of {self._world_size} ranks"


def _of_signal(fault: Crash) -> Iterator[str]:
    if fault.exit_code is None and fault.signal not in _signal.Signals.__members__:
        yield f".signal: unknown signal {brief(fault.signal)}; expected a name such as 'SIGKILL'"


def _of_span(fault: SlowRank | LinkDelay | Partition | Hold | StoreDelay) -> Iterator[str]:
    if fault.until_ns is not None and fault.until_ns <= fault.start_ns:
        yield ".until_ns: ends before it starts"


def _of_groups(fault: Partition) -> Iterator[str]:
    members = Counter(rank for group in fault.groups for rank in group)
    if len(fault.groups) < 2:
        yield ".groups: a partition needs at least two groups"
    for rank in sorted(members):
        if members[rank] > 1:
            yield f".groups: rank {rank} is in more than one group"


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
